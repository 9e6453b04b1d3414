#include "quant/code_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvsieve::quant {
namespace {

static_assert(std::endian::native == std::endian::little, "codes are packed as 64-bit words");

// `width` ones in every `period` bits.
constexpr std::uint64_t Mask(int width, int period) {
  std::uint64_t mask = 0;
  for (int at = 0; at < 64; at += period) mask |= ((std::uint64_t{1} << width) - 1) << at;
  return mask;
}

// Eight codes, one a byte, of which kWidth bits count: packed to kWidth bytes from the low end.
template <int kWidth>
std::uint64_t PackEight(std::uint64_t codes) {
  constexpr int kGap = 8 - kWidth;
  codes &= Mask(kWidth, 8);
  codes = (codes | codes >> kGap) & Mask(2 * kWidth, 16);
  codes = (codes | codes >> 2 * kGap) & Mask(4 * kWidth, 32);
  return (codes | codes >> 4 * kGap) & ((std::uint64_t{1} << 8 * kWidth) - 1);
}

template <int kWidth>
std::uint64_t UnpackEight(std::uint64_t packed) {
  constexpr int kGap = 8 - kWidth;
  packed = (packed | packed << 4 * kGap) & Mask(4 * kWidth, 32);
  packed = (packed | packed << 2 * kGap) & Mask(2 * kWidth, 16);
  return (packed | packed << kGap) & Mask(kWidth, 8);
}

// One plane of a row: bits [shift, shift + kWidth) of its codes. Both return the plane's end.
template <int kWidth>
std::uint8_t* StorePlane(const std::uint8_t* codes, int dim, int shift, std::uint8_t* to) {
  for (int d = 0; d < dim; d += 8, to += kWidth) {
    std::uint64_t eight;
    std::memcpy(&eight, codes + d, sizeof eight);
    const std::uint64_t packed = PackEight<kWidth>(eight >> shift);
    std::memcpy(to, &packed, kWidth);
  }
  return to;
}

template <int kWidth>
const std::uint8_t* LoadPlane(const std::uint8_t* from, int dim, int shift, std::uint8_t* codes) {
  for (int d = 0; d < dim; d += 8, from += kWidth) {
    std::uint64_t packed = 0;
    std::memcpy(&packed, from, kWidth);
    std::uint64_t eight = 0;
    if (shift > 0) std::memcpy(&eight, codes + d, sizeof eight);
    eight |= UnpackEight<kWidth>(packed) << shift;
    std::memcpy(codes + d, &eight, sizeof eight);
  }
  return from;
}

// Planes from the widest to the narrowest hold a code's bits from the low end: 3 bits are bits
// 0..1 in the 2-bit plane and bit 2 in the 1-bit plane. dim is a multiple of 8.
void StoreBitPlanes(const BlockLayout& layout, std::uint8_t* to, const std::uint8_t* codes) {
  if ((layout.bits & 4) != 0) to = StorePlane<4>(codes, layout.dim, 0, to);
  if ((layout.bits & 2) != 0) to = StorePlane<2>(codes, layout.dim, 0, to);
  if ((layout.bits & 1) != 0) StorePlane<1>(codes, layout.dim, layout.bits & 6, to);
}

void LoadBitPlanes(const BlockLayout& layout, const std::uint8_t* from, std::uint8_t* codes) {
  if ((layout.bits & 4) != 0) from = LoadPlane<4>(from, layout.dim, 0, codes);
  if ((layout.bits & 2) != 0) from = LoadPlane<2>(from, layout.dim, 0, codes);
  if ((layout.bits & 1) != 0) LoadPlane<1>(from, layout.dim, layout.bits & 6, codes);
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

void StoreCodes(const BlockLayout& layout, BlockRef block, int row_in_block, CodeRow& row) {
  const auto padded = static_cast<int>(RoundUp(static_cast<std::size_t>(layout.dim), 8));
  std::fill(row.codes + layout.dim, row.codes + padded, std::uint8_t{0});
  switch (layout.codes) {
    case CodeLayout::kInt8:
      return StoreInt8(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kNibble:
      return StoreNibbles(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kBitPlanes:
      return StoreBitPlanes(
          layout, block.data + static_cast<std::size_t>(row_in_block) * layout.padded_row_bytes(),
          row.codes);
    case CodeLayout::kHalf:
      break;
  }
  KVS_DCHECK(false);
}

void LoadCodes(const BlockLayout& layout, ConstBlockRef block, int row_in_block, CodeRow& row) {
  switch (layout.codes) {
    case CodeLayout::kInt8:
      return LoadInt8(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kNibble:
      return LoadNibbles(layout, block.data, row_in_block, row.codes);
    case CodeLayout::kBitPlanes:
      return LoadBitPlanes(
          layout, block.data + static_cast<std::size_t>(row_in_block) * layout.padded_row_bytes(),
          row.codes);
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
