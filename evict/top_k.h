// Choosing rows by score: the one place where rows are ordered.
#ifndef KVSIEVE_EVICT_TOP_K_H_
#define KVSIEVE_EVICT_TOP_K_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/types.h"

namespace kvsieve::evict {

// Rows [begin, end) of one head.
struct RowRange {
  RowIndex begin = 0;
  RowIndex end = 0;

  std::int64_t rows() const { return end - begin; }
};

// Which of two rows with equal scores is the better one.
enum class Ties : std::uint8_t { kLowPosition, kHighPosition };

// Scores of one head, [rows] each.
struct HeadScores {
  std::span<const float> smoothed;  // ranks first
  std::span<const float> raw;       // separates equal smoothed scores
};

// Reused between calls; holds about 8 bytes a row.
struct TopKScratch {
  std::vector<std::uint32_t> keys;
  std::vector<std::uint32_t> survivors;
  std::vector<std::uint64_t> contested;
};

// Appends to *rows, ascending, all rows of `kept` and the `best` highest of the others. Order of
// rows: smoothed descending, raw descending, then position by `ties`; NaN is lowest, -0 equals +0.
// `kept` is ascending and disjoint. Precondition: 0 <= best <= rows outside `kept`;
// without rows to choose the scores may be empty.
// O(rows) whatever the scores: histogram of order-preserving keys, then a radix descent among the
// rows that share the deciding bin.
void SelectRows(const HeadScores& scores, std::span<const RowRange> kept, std::int64_t best,
                Ties ties, TopKScratch* scratch, std::vector<RowIndex>* rows);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_TOP_K_H_
