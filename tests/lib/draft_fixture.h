// Caches with a layer of each kind, and the rows that drafts append to them.
#ifndef KVSIEVE_TESTS_LIB_DRAFT_FIXTURE_H_
#define KVSIEVE_TESTS_LIB_DRAFT_FIXTURE_H_

#include <cstdint>
#include <vector>

#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {

// Three layers, numbered from 10: all rows, a window of 24, V in K.
Life LifeOf(const char* spec);

// `count` rows of every layer behind the last one, the same for caches that are equally far.
void AppendNext(Cache& cache, Phase phase, std::int64_t count);
// The same rows in calls of these many.
void AppendPieces(Cache& cache, Phase phase, const std::vector<std::int64_t>& pieces);

}  // namespace kvsieve::state_test

#endif  // KVSIEVE_TESTS_LIB_DRAFT_FIXTURE_H_
