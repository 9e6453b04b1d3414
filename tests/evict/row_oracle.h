// What the scorers that look at rows one by one should compute, in f64 and plain loops. Includes
// nothing of evict/.
#ifndef KVSIEVE_TESTS_EVICT_ROW_ORACLE_H_
#define KVSIEVE_TESTS_EVICT_ROW_ORACLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/evict/oracle.h"

namespace kvsieve::oracle {

// Per KV head, raw and raw_bound filled; the bounds are derived in row_oracle.cc.
std::vector<HeadScores> KeyNorm(const Layer& layer);
std::vector<HeadScores> KeyDiff(const Layer& layer);

// lag(across=score); a row without a score has bound 0.
std::vector<HeadScores> Lag(const Layer& layer, std::int64_t lag, std::int64_t sinks);

// group: mean, sum, max.
std::vector<HeadScores> ExpectedAttention(const Layer& layer, int window, const std::string& group);

// The layer as key_proxy sees it: one query head per KV head, its queries the head's last keys.
Layer KeysAsQueries(const Layer& layer, int window);

}  // namespace kvsieve::oracle

#endif  // KVSIEVE_TESTS_EVICT_ROW_ORACLE_H_
