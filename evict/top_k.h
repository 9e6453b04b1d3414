// Choosing rows by score: the one place where rows are ordered.
#ifndef KVSIEVE_EVICT_TOP_K_H_
#define KVSIEVE_EVICT_TOP_K_H_

#include <bit>
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

// Ascending and disjoint: rows that several ranges name count once. Empty ranges go.
void MergeRanges(std::vector<RowRange>* ranges);

// Calls body(RowRange) for each maximal run of rows outside `kept`, which is ascending and
// disjoint.
template <class Body>
void ForEachGap(std::span<const RowRange> kept, RowIndex rows, Body&& body) {
  RowIndex begin = 0;
  for (const RowRange& range : kept) {
    if (begin < range.begin) body(RowRange{begin, range.begin});
    begin = range.end;
  }
  if (begin < rows) body(RowRange{begin, rows});
}

// Larger score <=> larger key. NaN is 0, below the key of -inf; -0 has the key of +0.
inline std::uint32_t OrderKey(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 + 0 = +0
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const auto negative = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31);
  return is_nan ? 0U : bits ^ (negative | 0x80000000U);
}
// Smoothed score first, then the raw one.
inline std::uint64_t OrderKey(float smoothed, float raw) {
  return (std::uint64_t{OrderKey(smoothed)} << 32) | OrderKey(raw);
}

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
