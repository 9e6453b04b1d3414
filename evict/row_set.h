// Rows that are chosen from together: those of one KV head, or the rows that several heads share.
#ifndef KVSIEVE_EVICT_ROW_SET_H_
#define KVSIEVE_EVICT_ROW_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "evict/top_k.h"

namespace kvsieve::evict {

// Before the budget is split.
struct RowSet {
  std::int64_t rows = 0;
  std::int64_t budget = 0;               // at most rows
  std::int64_t share = 0;                // what it brings into a split: the budget before that cap
  bool whole = false;                    // every row stays; takes no part in a split
  std::vector<RowRange> protected_rows;  // ascending, disjoint
  std::int64_t protected_count = 0;
  std::string note;  // why not everything asked for happened; empty otherwise

  // Whether a split may take rows from it or give it some: not when its protected rows alone pass
  // the budget.
  bool splits() const { return !whole && protected_count <= budget; }
};

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_ROW_SET_H_
