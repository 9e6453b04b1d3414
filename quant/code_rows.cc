#include "quant/code_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvsieve::quant {
namespace {

static_assert(std::endian::native == std::endian::little, "codes are packed as 32-bit words");

// Low `width` bits of each byte.
constexpr std::uint32_t ByteMask(int width) { return ((1U << width) - 1) * 0x01010101U; }

// The layout is passed by value: byte stores may alias it.
//
// Keys: four dims at a time, whose parts are four bytes of one line.
template <int kWidth>
void StoreKeyPlane(BlockLayout layout, std::uint8_t* block, int r, const std::uint8_t* codes) {
  constexpr int kLineCodes = 32 / kWidth;
  const int part = PartShift(layout.bits, kWidth);
  for (int d = 0; d < layout.dim; d += kLineCodes) {
    std::uint32_t line = 0;
    for (int j = 0; j < kLineCodes; j += 4) {
      std::uint32_t four;
      std::memcpy(&four, codes + d + j, 4);
      line |= (four >> part & ByteMask(kWidth)) << PlaneAt(layout, kWidth, r, d + j).shift;
    }
    std::memcpy(block + PlaneAt(layout, kWidth, r, d).byte, &line, 4);
  }
}

template <int kWidth>
void LoadKeyPlane(BlockLayout layout, const std::uint8_t* block, int r, std::uint8_t* codes) {
  constexpr int kLineCodes = 32 / kWidth;
  const int part = PartShift(layout.bits, kWidth);
  for (int d = 0; d < layout.dim; d += kLineCodes) {
    std::uint32_t line;
    std::memcpy(&line, block + PlaneAt(layout, kWidth, r, d).byte, 4);
    for (int j = 0; j < kLineCodes; j += 4) {
      std::uint32_t four = 0;
      if (part > 0) std::memcpy(&four, codes + d + j, 4);
      four |= (line >> PlaneAt(layout, kWidth, r, d + j).shift & ByteMask(kWidth)) << part;
      std::memcpy(codes + d + j, &four, 4);
    }
  }
}

// Values: one row's parts have one place in every fourth byte of a line, beside other rows'.
template <int kWidth>
void StoreValuePlane(BlockLayout layout, std::uint8_t* block, int r, const std::uint8_t* codes) {
  const CodeAt at = PlaneAt(layout, kWidth, r, 0);
  const int part = PartShift(layout.bits, kWidth);
  constexpr unsigned kMask = (1U << kWidth) - 1;
  const unsigned others = ~(kMask << at.shift);
  std::uint8_t* line = block + at.byte;
  const int dim = layout.dim;
  for (int d = 0; d < dim; ++d) {
    const unsigned bits = (codes[d] >> part & kMask) << at.shift;
    line[d * 4] = static_cast<std::uint8_t>((line[d * 4] & others) | bits);
  }
}

template <int kWidth>
void LoadValuePlane(BlockLayout layout, const std::uint8_t* block, int r, std::uint8_t* codes) {
  const CodeAt at = PlaneAt(layout, kWidth, r, 0);
  const int part = PartShift(layout.bits, kWidth);
  constexpr unsigned kMask = (1U << kWidth) - 1;
  const std::uint8_t* line = block + at.byte;
  const int dim = layout.dim;
  for (int d = 0; d < dim; ++d) {
    const unsigned bits = (line[d * 4] >> at.shift & kMask) << part;
    codes[d] = static_cast<std::uint8_t>(part > 0 ? codes[d] | bits : bits);
  }
}

template <int kWidth>
void StorePlane(const BlockLayout& layout, std::uint8_t* block, int r, const std::uint8_t* codes) {
  if ((layout.bits & kWidth) == 0) return;
  if (layout.side == Side::kKey) return StoreKeyPlane<kWidth>(layout, block, r, codes);
  StoreValuePlane<kWidth>(layout, block, r, codes);
}
template <int kWidth>
void LoadPlane(const BlockLayout& layout, const std::uint8_t* block, int r, std::uint8_t* codes) {
  if ((layout.bits & kWidth) == 0) return;
  if (layout.side == Side::kKey) return LoadKeyPlane<kWidth>(layout, block, r, codes);
  LoadValuePlane<kWidth>(layout, block, r, codes);
}

void StoreBitPlanes(const BlockLayout& layout, std::uint8_t* block, int r,
                    const std::uint8_t* codes) {
  StorePlane<4>(layout, block, r, codes);
  StorePlane<2>(layout, block, r, codes);
  StorePlane<1>(layout, block, r, codes);
}

void LoadBitPlanes(const BlockLayout& layout, const std::uint8_t* block, int r,
                   std::uint8_t* codes) {
  LoadPlane<4>(layout, block, r, codes);
  LoadPlane<2>(layout, block, r, codes);
  LoadPlane<1>(layout, block, r, codes);
}

void StoreInt8(const BlockLayout& layout, std::uint8_t* block, int r, const std::uint8_t* codes) {
  if (layout.side == Side::kValue) {
    for (int d = 0; d < layout.dim; ++d) {
      block[Int8At(Side::kValue, layout.dim, r, d).byte] = codes[d];
    }
    return;
  }
  for (int d = 0; d < layout.dim; d += 4) {
    std::memcpy(block + Int8At(Side::kKey, layout.dim, r, d).byte, codes + d, 4);
  }
}

void LoadInt8(const BlockLayout& layout, const std::uint8_t* block, int r, std::uint8_t* codes) {
  if (layout.side == Side::kValue) {
    for (int d = 0; d < layout.dim; ++d) {
      codes[d] = block[Int8At(Side::kValue, layout.dim, r, d).byte];
    }
    return;
  }
  for (int d = 0; d < layout.dim; d += 4) {
    std::memcpy(codes + d, block + Int8At(Side::kKey, layout.dim, r, d).byte, 4);
  }
}

void StorePairs(const BlockLayout& layout, BlockRef block, int r, const std::uint8_t* codes) {
  const int dim = layout.dim;
  std::uint8_t* to = block.data + PairAt(layout.side, dim, r, 0).byte;
  if (layout.side == Side::kValue) {
    for (int d = 0; d < dim; ++d) to[d * 2] = codes[d];
    return;
  }
  for (int d = 0; d < dim; d += 2) std::memcpy(to + d * kPanelRows, codes + d, 2);
}

void LoadPairs(const BlockLayout& layout, ConstBlockRef block, int r, std::uint8_t* codes) {
  const int dim = layout.dim;
  const std::uint8_t* from = block.data + PairAt(layout.side, dim, r, 0).byte;
  if (layout.side == Side::kValue) {
    for (int d = 0; d < dim; ++d) codes[d] = from[d * 2];
    return;
  }
  for (int d = 0; d < dim; d += 2) std::memcpy(codes + d, from + d * kPanelRows, 2);
}

void StoreNibbles(const BlockLayout& layout, std::uint8_t* block, int r,
                  const std::uint8_t* codes) {
  if (layout.side == Side::kValue) {
    const int shift = NibbleAt(Side::kValue, layout.dim, r, 0).shift;
    const unsigned other = 0xF0U >> shift;  // the half byte of the row beside this one
    for (int d = 0; d < layout.dim; ++d) {
      std::uint8_t& byte = block[NibbleAt(Side::kValue, layout.dim, r, d).byte];
      byte = static_cast<std::uint8_t>((byte & other) | (codes[d] << shift));
    }
    return;
  }
  for (int d = 0; d < layout.dim; d += 8) {
    std::uint8_t* octet = block + NibbleAt(Side::kKey, layout.dim, r, d).byte;
    for (int j = 0; j < 4; ++j) {
      octet[j] = static_cast<std::uint8_t>(codes[d + j] | (codes[d + 4 + j] << 4));
    }
  }
}

void LoadNibbles(const BlockLayout& layout, const std::uint8_t* block, int r, std::uint8_t* codes) {
  if (layout.side == Side::kValue) {
    const int shift = NibbleAt(Side::kValue, layout.dim, r, 0).shift;
    for (int d = 0; d < layout.dim; ++d) {
      codes[d] = (block[NibbleAt(Side::kValue, layout.dim, r, d).byte] >> shift) & 0xF;
    }
    return;
  }
  for (int d = 0; d < layout.dim; d += 8) {
    const std::uint8_t* octet = block + NibbleAt(Side::kKey, layout.dim, r, d).byte;
    for (int j = 0; j < 4; ++j) {
      codes[d + j] = octet[j] & 0xF;
      codes[d + 4 + j] = octet[j] >> 4;
    }
  }
}

}  // namespace

void StoreCodes(const BlockLayout& layout, BlockRef block, int row_in_block,
                const std::uint8_t* codes) {
  switch (layout.codes) {
    case CodeLayout::kPairs:
      return StorePairs(layout, block, row_in_block, codes);
    case CodeLayout::kInt8:
      return StoreInt8(layout, block.data, row_in_block, codes);
    case CodeLayout::kNibble:
      return StoreNibbles(layout, block.data, row_in_block, codes);
    case CodeLayout::kBitPlanes:
      return StoreBitPlanes(layout, block.data, row_in_block, codes);
    case CodeLayout::kHalf:
      break;
  }
  KVS_DCHECK(false);
}

void StoreCodes(const BlockLayout& layout, BlockRef block, int row_in_block, CodeRow& row) {
  const auto padded = static_cast<int>(RoundUp(static_cast<std::size_t>(layout.dim), kUnitCodes));
  std::fill(row.codes + layout.dim, row.codes + padded, std::uint8_t{0});
  StoreCodes(layout, block, row_in_block, row.codes);
}

void LoadCodes(const BlockLayout& layout, ConstBlockRef block, int row_in_block, CodeRow& row) {
  switch (layout.codes) {
    case CodeLayout::kPairs:
      return LoadPairs(layout, block, row_in_block, row.codes);
    case CodeLayout::kInt8:
      return LoadInt8(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kNibble:
      return LoadNibbles(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kBitPlanes:
      return LoadBitPlanes(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kHalf:
      break;
  }
  KVS_DCHECK(false);
}

// Layout fields go to locals: byte stores may alias them.
void StoreHalves(const BlockLayout& layout, BlockRef block, int row_in_block,
                 const std::uint16_t* codes) {
  const int dim = layout.dim;
  std::uint8_t* to = block.data + HalfAt(layout.side, dim, row_in_block, 0).byte;
  if (layout.side == Side::kValue) {
    std::memcpy(to, codes, static_cast<std::size_t>(dim) * 2);
    return;
  }
  for (int d = 0; d < dim; ++d) std::memcpy(to + d * kPanelRows * 2, codes + d, 2);
}

void LoadHalves(const BlockLayout& layout, ConstBlockRef block, int row_in_block,
                std::uint16_t* codes) {
  const int dim = layout.dim;
  const std::uint8_t* from = block.data + HalfAt(layout.side, dim, row_in_block, 0).byte;
  if (layout.side == Side::kValue) {
    std::memcpy(codes, from, static_cast<std::size_t>(dim) * 2);
    return;
  }
  for (int d = 0; d < dim; ++d) std::memcpy(codes + d, from + d * kPanelRows * 2, 2);
}

}  // namespace kvsieve::quant
