#include "quant/code_rows.h"

#include <algorithm>
#include <cstring>

namespace kvsieve::quant {
namespace {

constexpr int kPlaneWidths[] = {4, 2, 1};

// The planes of a code from the widest to the narrowest hold its bits from the low end: 3 bits
// are bits 0..1 in the 2-bit plane and bit 2 in the 1-bit plane.
void StoreBitPlanes(const BlockLayout& layout, std::uint8_t* to, const std::uint8_t* codes) {
  int shift = 0;
  for (const int width : kPlaneWidths) {
    if ((layout.bits & width) == 0) continue;
    const int per_byte = 8 / width;
    const unsigned mask = (1U << width) - 1U;
    for (int d = 0; d < layout.dim; d += per_byte) {
      unsigned byte = 0;
      for (int i = 0; i < per_byte; ++i) {
        byte |= ((static_cast<unsigned>(codes[d + i]) >> shift) & mask) << (i * width);
      }
      *to++ = static_cast<std::uint8_t>(byte);
    }
    shift += width;
  }
}

void LoadBitPlanes(const BlockLayout& layout, const std::uint8_t* from, std::uint8_t* codes) {
  int shift = 0;
  for (const int width : kPlaneWidths) {
    if ((layout.bits & width) == 0) continue;
    const int per_byte = 8 / width;
    const unsigned mask = (1U << width) - 1U;
    for (int d = 0; d < layout.dim; d += per_byte) {
      const unsigned byte = *from++;
      for (int i = 0; i < per_byte; ++i) {
        const unsigned part = ((byte >> (i * width)) & mask) << shift;
        codes[d + i] = static_cast<std::uint8_t>(shift == 0 ? part : codes[d + i] | part);
      }
    }
    shift += width;
  }
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
    case CodeLayout::kF16:
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
    case CodeLayout::kF16:
      break;
  }
  KVS_DCHECK(false);
}

void StoreF16Codes(const BlockLayout& layout, BlockRef block, int row_in_block,
                   const std::uint16_t* codes) {
  for (int d = 0; d < layout.dim; ++d) {
    std::memcpy(block.data + F16At(layout.side, layout.dim, row_in_block, d).byte, codes + d, 2);
  }
}

void LoadF16Codes(const BlockLayout& layout, ConstBlockRef block, int row_in_block,
                  std::uint16_t* codes) {
  for (int d = 0; d < layout.dim; ++d) {
    std::memcpy(codes + d, block.data + F16At(layout.side, layout.dim, row_in_block, d).byte, 2);
  }
}

}  // namespace kvsieve::quant
