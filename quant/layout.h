// Where codes and scales of a block lie. Every codec's sizes come from here, for allocation and
// for accounting; kernels and encoders address blocks only through it.
//
// A block holds up to kBlockRows rows of one head and side, with room for 16, 32, 48 or 64 of
// them: first the codes, then the scale plane, then the zero-point plane, rounded up to 64 bytes.
//
//   panels, keys: lane = row, so that scores need no sum across lanes
//     half    [panel][dim][16 rows]             f16 or bf16
//     pairs   [panel][dim / 2][16 rows][2 dims] fp8
//     int8    [panel][dim / 4][16 rows][4 dims] i8
//     nibble  [panel][dim / 8][16 rows][4]      byte j: low = dim 8o + j, high = dim 8o + 4 + j
//   interleaved, values: lane = dim, rows side by side, so that weights are broadcast
//     half    [row][dim]                        f16 or bf16
//     pairs   [row / 2][dim][2 rows]            fp8
//     int8    [row / 4][dim][4 rows]            i8
//     nibble  [row / 8][dim][4]                 byte j: low = row 8o + j, high = row 8o + 4 + j
//   bit planes (1, 2, 3 and 5 bits): a code is cut into parts of 4, 2 and 1 bits, and a unit of
//   codes (32; 16 where there is no single bit) has whole lines for each part, the widest first.
//   A line is 4 bytes a lane. 3 bits: lines 0 and 1 hold bits 0 and 1 of 16 codes each, line 2
//   holds bit 2 of all 32.
//     keys    [panel][unit of dims][line][16 rows][4]
//     values  [unit of rows][line][dim][4]
//     Byte j of a line has codes j, 4 + j, 8 + j ... from the low end; single bits: see kBitShift.
//   scales, zero points: [group of dims][capacity_rows] of 2 bytes
//
// Keys pad dims up to whole pairs, quads (int8), octets (nibble) or units (bit planes) with zero
// codes; values in bit planes have room for whole units of rows.
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

// Bit planes: codes that share lines. kUnitCodes is a multiple of each width's.
constexpr int kUnitCodes = 32;
constexpr int UnitCodes(int bits) { return (bits & 1) != 0 ? 32 : 16; }

enum class CodeLayout : std::uint8_t { kHalf, kPairs, kInt8, kNibble, kBitPlanes };

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
  // Keys: lines of 16 rows times 4 bytes in a panel. A unit of 32 dims fills `bits` of them.
  constexpr int panel_lines() const {
    const int unit = codes == CodeLayout::kBitPlanes ? UnitCodes(bits) : 32 / bits;
    return (dim + unit - 1) / unit * unit * bits / 32;
  }
  constexpr std::int64_t scale_row_bytes() const { return std::int64_t{groups} * (zeros ? 4 : 2); }

  // At least what the rows count for: values share bytes across rows, while each row's codes are
  // counted in whole bytes.
  constexpr std::size_t code_plane_bytes(int capacity_rows) const {
    const auto counted = static_cast<std::size_t>(capacity_rows * code_row_bytes());
    const std::size_t held = packed_code_bytes(capacity_rows);
    return counted > held ? counted : held;
  }
  constexpr std::size_t packed_code_bytes(int capacity_rows) const {
    const auto rows = static_cast<std::size_t>(capacity_rows);
    const auto d = static_cast<std::size_t>(dim);
    const bool key = side == Side::kKey;
    switch (codes) {
      case CodeLayout::kHalf:
        return rows * d * 2;
      case CodeLayout::kPairs:
        return rows * (key ? RoundUp(d, 2) : d);
      case CodeLayout::kInt8:
        return rows * (key ? RoundUp(d, 4) : d);
      case CodeLayout::kNibble:
        return rows * (key ? RoundUp(d, 8) : d) / 2;
      case CodeLayout::kBitPlanes:
        break;
    }
    const auto unit = static_cast<std::size_t>(UnitCodes(bits));
    const std::size_t padded_rows = key ? rows : RoundUp(rows, unit);
    const std::size_t padded_dims = key ? RoundUp(d, unit) : d;
    return padded_rows * padded_dims / 8 * static_cast<std::size_t>(bits);
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

// Place of one code: the byte, and where it holds several, the shift in it.
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
constexpr CodeAt PairAt(Side side, int dim_count, int row, int d) {
  const auto r = static_cast<std::size_t>(row);
  const auto n = static_cast<std::size_t>(dim_count);
  if (side == Side::kValue) return {(r / 2 * n + d) * 2 + r % 2, 0};
  const std::size_t pairs = RoundUp(n, 2) / 2;
  return {((r / 16 * pairs + d / 2) * 16 + r % 16) * 2 + d % 2, 0};
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

// Bit planes. The part of a code that lies in the lines of `width` bits (4, 2 or 1) is what its
// bits from PartShift on say.
constexpr int PartShift(int bits, int width) { return bits & ~(2 * width - 1); }
// Single bits: shifts of the eight quads of a unit, such that a kernel gets at quads 0 and 2, 1
// and 3, 4 and 6, 5 and 7 with one shift of the line: they become bits 2 and 6, above the two
// bits of the other lines.
constexpr int kBitShift[8] = {2, 3, 6, 7, 1, 0, 5, 4};

constexpr CodeAt PlaneAt(const BlockLayout& layout, int width, int row, int d) {
  const auto r = static_cast<std::size_t>(row);
  const auto n = static_cast<std::size_t>(layout.dim);
  const int unit = UnitCodes(layout.bits);
  const int unit_lines = layout.bits * unit / 32;
  const int line_codes = 32 / width;
  const int along = layout.side == Side::kKey ? d : row;
  const int quad = along % line_codes / 4;
  const int shift = width == 1 ? kBitShift[quad] : quad * width;
  const auto line = static_cast<std::size_t>(
      along / unit * unit_lines + PartShift(layout.bits, width) + along % unit / line_codes);
  if (layout.side == Side::kValue) return {(line * n + d) * 4 + r % 4, shift};
  const auto panel_units = static_cast<std::size_t>((layout.dim + unit - 1) / unit);
  const std::size_t panel_line = r / 16 * panel_units * static_cast<std::size_t>(unit_lines) + line;
  return {(panel_line * 16 + r % 16) * 4 + d % 4, shift};
}

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_LAYOUT_H_
