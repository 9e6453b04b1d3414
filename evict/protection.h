// What a selection means for the rows of one head, or of several that share a set: how many stay,
// and which of them whatever their score.
#ifndef KVSIEVE_EVICT_PROTECTION_H_
#define KVSIEVE_EVICT_PROTECTION_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "evict/row_set.h"
#include "evict/selection.h"
#include "evict/set_table.h"
#include "evict/top_k.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

// The rows that stay whatever their score, ascending and disjoint. window: rows of the observation
// window, clipped here.
std::vector<RowRange> ProtectedRows(const Selection& selection, std::int64_t budget, int window,
                                    const RowPositions& positions);

// fits: the budget, or that of all sets which share theirs, holds every row.
RowSet Protect(const Selection& selection, std::int64_t budget, int window,
               const SetTable::Set& rows, bool fits);

struct SetPlan {
  std::vector<RowRange> kept;  // ascending, disjoint: rows that stay unscored
  std::int64_t best = 0;       // rows to add by score, at most
  std::string note;

  std::int64_t rows() const;  // kept and best
};

// budget: the set's share after the split.
SetPlan PlanSet(const Selection& selection, const RowSet& set, std::int64_t budget);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_PROTECTION_H_
