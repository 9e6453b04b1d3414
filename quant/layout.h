// Where codes and scales of a block lie. Every codec's sizes come from here, for allocation and
// for accounting; kernels and encoders address blocks only through it.
//
// A block holds up to kBlockRows rows of one head and side, with room for 16, 32, 48 or 64 of
// them: first the codes, then the scale plane, then the zero-point plane, rounded up to 64 bytes.
//
//   panels, keys: lane = row, so that scores need no sum across lanes
//     half    [panel][dim][16 rows]             f16 or bf16
//     int8    [panel][dim / 4][16 rows][4 dims] i8
//     nibble  [panel][dim / 8][16 rows][4]      byte j: low = dim 8o + j, high = dim 8o + 4 + j
//   interleaved, values: lane = dim, rows side by side, so that weights are broadcast
//     half    [row][dim]                        f16 or bf16
//     int8    [row / 4][dim][4 rows]            i8
//     nibble  [row / 8][dim][4]                 byte j: low = row 8o + j, high = row 8o + 4 + j
//   bit planes, both sides (1, 2, 3 and 5 bits)
//     [row][plane 4 bits][plane 2 bits][plane 1 bit], of each only what the width needs; in a
//     plane the code parts of consecutive dims fill bytes from the low end
//   scales, zero points: [group of dims][capacity_rows] of 2 bytes
//
// Keys pad dims up to whole quads (int8) or octets (nibble) with zero codes, bit planes to octets.
#ifndef KVSIEVE_QUANT_LAYOUT_H_
#define KVSIEVE_QUANT_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kvsieve/codec.h"
#include "kvsieve/types.h"

namespace kvsieve::quant {

constexpr std::size_t RoundUp(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

enum class CodeLayout : std::uint8_t { kHalf, kInt8, kNibble, kBitPlanes };

struct BlockLayout {
  CodeLayout codes = CodeLayout::kHalf;
  Side side = Side::kKey;
  int dim = 0;
  int bits = 16;       // per code
  int groups = 0;      // scales per row; 0 = no scale plane
  bool zeros = false;  // a zero-point plane as well

  // Bytes of one row's codes, without padding of dims.
  constexpr std::int64_t code_row_bytes() const {
    if (codes != CodeLayout::kBitPlanes) return (std::int64_t{dim} * bits + 7) / 8;
    std::int64_t bytes = 0;
    for (const int width : {4, 2, 1}) {
      if ((bits & width) != 0) bytes += (std::int64_t{dim} * width + 7) / 8;
    }
    return bytes;
  }
  constexpr std::int64_t scale_row_bytes() const { return std::int64_t{groups} * (zeros ? 4 : 2); }

  // Bytes of one row's codes with the padding of dims.
  constexpr std::size_t padded_row_bytes() const {
    const auto d = static_cast<std::size_t>(dim);
    if (side == Side::kKey && codes == CodeLayout::kInt8) return RoundUp(d, 4);
    if (side == Side::kKey && codes == CodeLayout::kNibble) return RoundUp(d, 8) / 2;
    // Two rows of one value share a byte, so a row is half a byte per dim.
    if (codes == CodeLayout::kNibble) return (d + 1) / 2;
    if (codes == CodeLayout::kBitPlanes) return RoundUp(d, 8) / 8 * static_cast<std::size_t>(bits);
    return static_cast<std::size_t>(code_row_bytes());
  }
  constexpr std::size_t code_plane_bytes(int capacity_rows) const {
    if (side == Side::kValue && codes == CodeLayout::kNibble) {
      return static_cast<std::size_t>(capacity_rows) / 2 * static_cast<std::size_t>(dim);
    }
    return static_cast<std::size_t>(capacity_rows) * padded_row_bytes();
  }
  // Byte offsets of the planes in a block, and the block's size. Code planes are padded to 64
  // bytes so that scale planes are aligned.
  constexpr std::size_t scales_at(int capacity_rows) const {
    return RoundUp(code_plane_bytes(capacity_rows), 64);
  }
  constexpr std::size_t zeros_at(int capacity_rows) const {
    return scales_at(capacity_rows) +
           static_cast<std::size_t>(groups) * static_cast<std::size_t>(capacity_rows) * 2;
  }
  constexpr std::size_t block_bytes(int capacity_rows) const {
    const std::size_t planes = static_cast<std::size_t>(groups) * (zeros ? 2 : 1);
    return RoundUp(scales_at(capacity_rows) + planes * static_cast<std::size_t>(capacity_rows) * 2,
                   64);
  }
};

// Place of one code. Nibbles: the byte, and the shift (0 or 4) in it.
struct CodeAt {
  std::size_t byte;
  int shift;
};
constexpr CodeAt HalfAt(Side side, int dim_count, int row, int d) {
  const auto r = static_cast<std::size_t>(row);
  const auto n = static_cast<std::size_t>(dim_count);
  if (side == Side::kValue) return {(r * n + d) * 2, 0};
  return {((r / 16 * n + d) * 16 + r % 16) * 2, 0};
}
constexpr CodeAt Int8At(Side side, int dim_count, int row, int d) {
  const auto r = static_cast<std::size_t>(row);
  const auto n = static_cast<std::size_t>(dim_count);
  if (side == Side::kValue) return {(r / 4 * n + d) * 4 + r % 4, 0};
  const std::size_t quads = RoundUp(n, 4) / 4;
  return {((r / 16 * quads + d / 4) * 16 + r % 16) * 4 + d % 4, 0};
}
constexpr CodeAt NibbleAt(Side side, int dim_count, int row, int d) {
  const auto r = static_cast<std::size_t>(row);
  const auto n = static_cast<std::size_t>(dim_count);
  if (side == Side::kValue) {
    return {(r / 8 * n + d) * 4 + r % 4, static_cast<int>(r % 8 / 4) * 4};
  }
  const std::size_t octets = RoundUp(n, 8) / 8;
  return {((r / 16 * octets + d / 8) * 16 + r % 16) * 4 + d % 4, d % 8 / 4 * 4};
}

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_LAYOUT_H_
