// Which tier each row that stays is stored in: the lowest rows go to the coldest.
#ifndef KVSIEVE_EVICT_TIERS_H_
#define KVSIEVE_EVICT_TIERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "evict/top_k.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

// Memory of AssignTiers, reused between calls.
struct TierScratch {
  TopKScratch top_k;
  std::vector<std::size_t> places;  // of the rows still to be placed, in the list of all that stay
  std::vector<float> smoothed;      // scores of these
  std::vector<float> raw;
  std::vector<RowIndex> warmer;  // which of these do not go to the tier at hand
};

// rows: those that stay, ascending. never_cold: ascending, disjoint. cold_rows: of tiers 1, 2, ...
// Writes the tier of each row. Of the rows outside never_cold the lowest in the order of SelectRows
// fill the last tier, the next ones the tier before it, and so on while there are any.
void AssignTiers(const HeadScores& scores, std::span<const RowIndex> rows,
                 std::span<const RowRange> never_cold, std::span<const std::int64_t> cold_rows,
                 Ties ties, TierScratch* scratch, std::vector<std::uint8_t>* tiers);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_TIERS_H_
