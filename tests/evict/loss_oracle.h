// What waterfill should say of each row, in f64 and plain loops, from the formula in docs/tiers.md.
// Includes nothing of evict/.
#ifndef KVSIEVE_TESTS_EVICT_LOSS_ORACLE_H_
#define KVSIEVE_TESTS_EVICT_LOSS_ORACLE_H_

#include <vector>

#include "tests/evict/oracle.h"

namespace kvsieve::oracle {

struct LossOptions {
  int window = 32;
  Options pool = {.pool = "max", .width = 15};  // pool, width and pad_zero of it
  double power = 0.5;
  double drop_weight = 4;
  TokenPos exact_before = 0;
  int sinks = 4;
  double level = 0;
  double floor = 0;
  int follow = 0;
  double follow_weight = 0.1;
};

// What f32 may give.
struct Range {
  double least = 0;
  double most = 0;
};
struct HeadLosses {
  std::vector<Range> key, value, drop;  // [rows]
};
std::vector<HeadLosses> Losses(const Layer& layer, const LossOptions& options);

}  // namespace kvsieve::oracle

#endif  // KVSIEVE_TESTS_EVICT_LOSS_ORACLE_H_
