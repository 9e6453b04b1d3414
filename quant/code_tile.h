// The codes of a few rows on their way into a block: eight rows at a time fill whole lines of every
// layout, which a vector at a time is several times as fast as row by row.
#ifndef KVSIEVE_QUANT_CODE_TILE_H_
#define KVSIEVE_QUANT_CODE_TILE_H_

#include <algorithm>
#include <cstdint>

#include "quant/code_rows.h"

namespace kvsieve::quant {

// A tile never crosses a multiple of kTileRows in its block.
inline constexpr int kTileRows = 8;

// Codes of rows of `dim` elements, one a byte, in dim order, on lines of 64 bytes that zeros fill
// up.
class CodeTile {
 public:
  explicit CodeTile(int dim)
      : stride_(static_cast<int>(RoundUp(static_cast<std::size_t>(dim), 64))) {
    for (int r = 0; r < kTileRows; ++r) std::fill(row(r) + dim, row(r) + stride_, std::uint8_t{0});
  }
  std::uint8_t* row(int r) { return codes_ + r * stride_; }
  const std::uint8_t* row(int r) const { return codes_ + r * stride_; }

 private:
  int stride_;
  alignas(64) std::uint8_t codes_[kTileRows * kMaxDim];  // NOLINT: written before it is read
};

// Rows [0, count) of the tile become rows [first_row, first_row + count) of the block.
void StoreTile(const BlockLayout& layout, BlockRef block, int first_row, int count,
               const CodeTile& tile);

// visit(first, count) for the tiles of `count` rows that go to a block from first_row on.
template <int kRows, class Visit>
void ForEachTile(int first_row, int count, Visit visit) {
  for (int first = 0; first < count;) {
    const int room = kRows - (first_row + first) % kRows;
    const int tile_rows = std::min(room, count - first);
    visit(first, tile_rows);
    first += tile_rows;
  }
}

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_CODE_TILE_H_
