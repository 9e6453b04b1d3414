// What a selection means for one head: how many rows stay, and which of them whatever their score.
#ifndef KVSIEVE_EVICT_PROTECTION_H_
#define KVSIEVE_EVICT_PROTECTION_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "evict/selection.h"
#include "evict/top_k.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

struct HeadPlan {
  std::vector<RowRange> kept;  // ascending, disjoint: rows that stay unscored
  std::int64_t best = 0;       // rows to add by score
  std::string note;            // why not everything asked for happened; empty otherwise
};

// positions: of the head's rows, ascending. window: rows of the observation window, clipped here.
HeadPlan PlanHead(const Selection& selection, int window, std::span<const TokenPos> positions);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_PROTECTION_H_
