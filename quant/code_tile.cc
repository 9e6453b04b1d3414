#include "quant/code_tile.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/code_tile.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// A unit of 32 codes fills kBits lines, whatever the layout: kBits is 8, 4 or those of bit planes.
constexpr int kVectorCodes = 32;
constexpr std::size_t kLineBytes = std::size_t{kPanelRows} * 4;

using D8x32 = hn::FixedTag<std::uint8_t, kVectorCodes>;
using V8x32 = hn::Vec<D8x32>;

// The part of each code that lies in lines of kWidth bits.
template <int kBits, int kWidth>
HWY_INLINE V32x8 PartOf(V32x8 codes) {
  if constexpr (kBits == kWidth) return codes;
  constexpr std::uint32_t kMask = ((1U << kWidth) - 1) * 0x01010101U;
  return hn::And(hn::ShiftRight<PartShift(kBits, kWidth)>(codes), hn::Set(D32x8(), kMask));
}

// Keys. Lines of one width, of 8 rows, that hold the quads given.
template <int kWidth>
constexpr int QuadShift(int quad) {
  return kWidth == 1 ? kBitShift[quad] : quad % (8 / kWidth) * kWidth;
}
template <int kBits, int kWidth, int kQuad>
HWY_INLINE V32x8 Placed(V32x8 quad) {
  return hn::ShiftLeft<QuadShift<kWidth>(kQuad)>(PartOf<kBits, kWidth>(quad));
}

// Stores lines while there are any in the panel.
struct PanelLines {
  std::uint8_t* next;
  int left;
  HWY_INLINE void Store(V32x8 line) {
    if (left-- <= 0) return;
    hn::StoreU(line, D32x8(), reinterpret_cast<std::uint32_t*>(next));
    next += kLineBytes;
  }
};

template <int kBits, int kWidth>
HWY_INLINE void StoreQuads(const Vectors8& q, PanelLines lines) {
  const V32x8 v0 = Placed<kBits, kWidth, 0>(q.v0);
  const V32x8 v1 = Placed<kBits, kWidth, 1>(q.v1);
  const V32x8 v2 = Placed<kBits, kWidth, 2>(q.v2);
  const V32x8 v3 = Placed<kBits, kWidth, 3>(q.v3);
  const V32x8 v4 = Placed<kBits, kWidth, 4>(q.v4);
  const V32x8 v5 = Placed<kBits, kWidth, 5>(q.v5);
  const V32x8 v6 = Placed<kBits, kWidth, 6>(q.v6);
  const V32x8 v7 = Placed<kBits, kWidth, 7>(q.v7);
  if constexpr (kWidth == 8) {
    lines.Store(v0);
    lines.Store(v1);
    lines.Store(v2);
    lines.Store(v3);
    lines.Store(v4);
    lines.Store(v5);
    lines.Store(v6);
    lines.Store(v7);
    return;
  }
  const V32x8 v01 = hn::Or(v0, v1);
  const V32x8 v23 = hn::Or(v2, v3);
  const V32x8 v45 = hn::Or(v4, v5);
  const V32x8 v67 = hn::Or(v6, v7);
  if constexpr (kWidth == 4) {
    lines.Store(v01);
    lines.Store(v23);
    lines.Store(v45);
    lines.Store(v67);
  } else if constexpr (kWidth == 2) {
    lines.Store(hn::Or(v01, v23));
    lines.Store(hn::Or(v45, v67));
  } else {
    lines.Store(hn::Or(hn::Or(v01, v23), hn::Or(v45, v67)));
  }
}

template <int kBits>
void StoreKeys(const BlockLayout& layout, std::uint8_t* codes, int first_row,
               const CodeTile& tile) {
  const D32x8 d;
  const int panel_lines = layout.panel_lines();
  std::uint8_t* panel =
      codes + static_cast<std::size_t>(first_row / kPanelRows * panel_lines) * kLineBytes +
      first_row % kPanelRows * 4;
  const auto load = [&](int r, int d0) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(tile.row(r) + d0));
  };
  for (int d0 = 0, line = 0; line < panel_lines; d0 += kVectorCodes, line += kBits) {
    const Vectors8 quads = Transpose({load(0, d0), load(1, d0), load(2, d0), load(3, d0),
                                      load(4, d0), load(5, d0), load(6, d0), load(7, d0)});
    const auto lines_from = [&](int part) HWY_ATTR {
      const int at = line + part;
      return PanelLines{panel + static_cast<std::size_t>(at) * kLineBytes, panel_lines - at};
    };
    if constexpr ((kBits & 8) != 0) StoreQuads<kBits, 8>(quads, lines_from(0));
    if constexpr ((kBits & 4) != 0) StoreQuads<kBits, 4>(quads, lines_from(PartShift(kBits, 4)));
    if constexpr ((kBits & 2) != 0) StoreQuads<kBits, 2>(quads, lines_from(PartShift(kBits, 2)));
    if constexpr ((kBits & 1) != 0) StoreQuads<kBits, 1>(quads, lines_from(PartShift(kBits, 1)));
  }
}

// Values. Byte j of every 32-bit word from vector j, written to 32 words or, where `keep` has bits,
// merged with these bits of what is there.
template <bool kMerge>
HWY_INLINE void StoreWords(V32x8 words, std::uint32_t keep, std::uint8_t* to) {
  const D32x8 d;
  auto* at = reinterpret_cast<std::uint32_t*>(to);
  if constexpr (kMerge) words = hn::Or(words, hn::And(hn::LoadU(d, at), hn::Set(d, keep)));
  hn::StoreU(words, d, at);
}
template <bool kMerge>
HWY_INLINE void StoreInterleaved(V8x32 b0, V8x32 b1, V8x32 b2, V8x32 b3, std::uint32_t keep,
                                 std::uint8_t* to) {
  const D8x32 d8;
  const D32x8 d32;
  const hn::Repartition<std::uint16_t, D8x32> d16;
  const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d8, b0, b1));
  const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d8, b0, b1));
  const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d8, b2, b3));
  const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d8, b2, b3));
  // Dims 0..3 and 16..19, 4..7 and 20..23, ...
  const V32x8 w0 = hn::BitCast(d32, hn::InterleaveLower(d16, low01, low23));
  const V32x8 w1 = hn::BitCast(d32, hn::InterleaveUpper(d16, low01, low23));
  const V32x8 w2 = hn::BitCast(d32, hn::InterleaveLower(d16, high01, high23));
  const V32x8 w3 = hn::BitCast(d32, hn::InterleaveUpper(d16, high01, high23));
  StoreWords<kMerge>(hn::ConcatLowerLower(d32, w1, w0), keep, to);
  StoreWords<kMerge>(hn::ConcatLowerLower(d32, w3, w2), keep, to + 32);
  StoreWords<kMerge>(hn::ConcatUpperUpper(d32, w1, w0), keep, to + 64);
  StoreWords<kMerge>(hn::ConcatUpperUpper(d32, w3, w2), keep, to + 96);
}

// 32 dims of the tile's lines of one width. Rows j and 4 + j share byte j, but for kWidth 8, where
// rows from 4 on have a line of their own.
template <int kBits, int kWidth>
HWY_INLINE void StoreDims(const CodeTile& tile, int d0, int first_row, std::uint8_t* to,
                          std::size_t next_line) {
  const D8x32 d8;
  const hn::Repartition<std::uint16_t, D8x32> d16;
  constexpr int kLineRows = 32 / kWidth;
  const int quad = first_row % kLineRows / 4;
  const int shift = kWidth == 1 ? kBitShift[quad] : quad * kWidth;
  const int next_shift = kWidth == 1 ? kBitShift[quad + 1] : (quad + 1) * kWidth;
  const auto load = [&](int r) HWY_ATTR { return hn::LoadU(d8, tile.row(r) + d0); };
  if constexpr (kWidth == 8) {
    StoreInterleaved<false>(load(0), load(1), load(2), load(3), 0, to);
    StoreInterleaved<false>(load(4), load(5), load(6), load(7), 0, to + next_line);
    return;
  } else {
    const auto placed = [&](int r, int by) HWY_ATTR {
      const V32x8 part = PartOf<kBits, kWidth>(hn::BitCast(D32x8(), load(r)));
      return hn::ShiftLeftSame(hn::BitCast(d16, part), by);
    };
    const auto byte = [&](int j) HWY_ATTR {
      return hn::BitCast(d8, hn::Or(placed(j, shift), placed(j + 4, next_shift)));
    };
    constexpr std::uint32_t kMask = ((1U << kWidth) - 1) * 0x01010101U;
    const std::uint32_t keep = ~(kMask << shift | kMask << next_shift);
    StoreInterleaved<(kWidth < 4)>(byte(0), byte(1), byte(2), byte(3), keep, to);
  }
}

template <int kBits, int kWidth>
void StoreValueLines(const BlockLayout& layout, std::uint8_t* codes, int first_row,
                     const CodeTile& tile) {
  constexpr int kLineRows = 32 / kWidth;
  const int dim = layout.dim;
  const std::size_t line_bytes = static_cast<std::size_t>(dim) * 4;
  const auto line = static_cast<std::size_t>(first_row / 32 * kBits + PartShift(kBits, kWidth) +
                                             first_row % 32 / kLineRows);
  std::uint8_t* to = codes + line * line_bytes;
  int d0 = 0;
  for (; d0 + kVectorCodes <= dim; d0 += kVectorCodes, to += kVectorCodes * 4) {
    StoreDims<kBits, kWidth>(tile, d0, first_row, to, line_bytes);
  }
  if (d0 == dim) return;
  const std::size_t rest = static_cast<std::size_t>(dim - d0) * 4;
  constexpr std::size_t kVectorBytes = kVectorCodes * 4;
  constexpr int kLines = kWidth == 8 ? 2 : 1;
  std::uint8_t buffer[kLines * kVectorBytes] = {};
  for (int i = 0; i < kLines; ++i)
    std::memcpy(buffer + i * kVectorBytes, to + i * line_bytes, rest);
  StoreDims<kBits, kWidth>(tile, d0, first_row, buffer, kVectorBytes);
  for (int i = 0; i < kLines; ++i)
    std::memcpy(to + i * line_bytes, buffer + i * kVectorBytes, rest);
}

template <int kBits>
void StoreFullTile(const BlockLayout& layout, std::uint8_t* codes, int first_row,
                   const CodeTile& tile) {
  if (layout.side == Side::kKey) return StoreKeys<kBits>(layout, codes, first_row, tile);
  if constexpr ((kBits & 8) != 0) StoreValueLines<kBits, 8>(layout, codes, first_row, tile);
  if constexpr ((kBits & 4) != 0) StoreValueLines<kBits, 4>(layout, codes, first_row, tile);
  if constexpr ((kBits & 2) != 0) StoreValueLines<kBits, 2>(layout, codes, first_row, tile);
  if constexpr ((kBits & 1) != 0) StoreValueLines<kBits, 1>(layout, codes, first_row, tile);
}
#endif  // AVX2 or AVX3

// False where the target has no vectors for it.
bool StoreFullTileOf(const BlockLayout& layout, std::uint8_t* codes, int first_row,
                     const CodeTile& tile) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  switch (layout.bits) {
    case 1:
      StoreFullTile<1>(layout, codes, first_row, tile);
      return true;
    case 2:
      StoreFullTile<2>(layout, codes, first_row, tile);
      return true;
    case 3:
      StoreFullTile<3>(layout, codes, first_row, tile);
      return true;
    case 4:
      StoreFullTile<4>(layout, codes, first_row, tile);
      return true;
    case 5:
      StoreFullTile<5>(layout, codes, first_row, tile);
      return true;
    case 8:
      StoreFullTile<8>(layout, codes, first_row, tile);
      return true;
    default:
      break;
  }
#endif
  static_cast<void>(layout);
  static_cast<void>(codes);
  static_cast<void>(first_row);
  static_cast<void>(tile);
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {

HWY_EXPORT(StoreFullTileOf);

void StoreTile(const BlockLayout& layout, BlockRef block, int first_row, int count,
               const CodeTile& tile) {
  KVS_DCHECK(first_row % kTileRows + count <= kTileRows);
  if (count == kTileRows &&
      HWY_DYNAMIC_DISPATCH(StoreFullTileOf)(layout, block.data, first_row, tile)) {
    return;
  }
  for (int r = 0; r < count; ++r) StoreCodes(layout, block, first_row + r, tile.row(r));
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
