// Where rows lie that a decision keeps, as far as that is known before it is made.
#ifndef KVSIEVE_LIB_KEPT_POSITIONS_H_
#define KVSIEVE_LIB_KEPT_POSITIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/types.h"

namespace kvsieve {

// `rows` of the positions of `domain`, all of `certain` among them. No choice of the others puts
// the i-th row lower than taking the lowest ones does, or higher than taking the highest.
class KeptPositions {
 public:
  // certain: ascending and disjoint; what lies outside the domain does not count. Precondition:
  // rows is no less than what is certain and no more than the domain.
  KeptPositions(PositionRange domain, std::span<const PositionRange> certain, std::int64_t rows);

  // Bounds of the position of the i-th row.
  TokenPos Lowest(std::int64_t i) const;
  TokenPos Highest(std::int64_t i) const;
  // Bounds of last - first + 1 of rows [begin, begin + count). Precondition: count > 0.
  RowBounds Span(std::int64_t begin, std::int64_t count) const;

  static std::int64_t CertainRows(PositionRange domain, std::span<const PositionRange> certain);

 private:
  PositionRange domain_;
  std::vector<PositionRange> certain_;  // inside the domain
  TokenPos low_end_ = 0;                // taking the lowest: all rows before it, then certain ones
  TokenPos high_begin_ = 0;             // taking the highest: certain rows before it, then all
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_KEPT_POSITIONS_H_
