// Moves the codes of one row between a plain array (one code a byte, in dim order) and its place
// in a block. Every codec writes and reads codes through this file, so that the layouts of
// quant/layout.h are spelled out once.
#ifndef KVSIEVE_QUANT_CODE_ROWS_H_
#define KVSIEVE_QUANT_CODE_ROWS_H_

#include <cstdint>

#include "kvsieve/codec.h"
#include "quant/layout.h"

namespace kvsieve::quant {

// Scratch for the codes of one row, with room for the padding of dims.
struct alignas(64) CodeRow {
  std::uint8_t codes[kMaxDim];
};

// Plane of 2-byte scales or zero points: element [group * capacity_rows + row].
inline std::uint16_t* ScalePlane(const BlockLayout& layout, BlockRef block) {
  return reinterpret_cast<std::uint16_t*>(block.data + layout.scales_at(block.capacity_rows));
}
inline const std::uint16_t* ScalePlane(const BlockLayout& layout, ConstBlockRef block) {
  return reinterpret_cast<const std::uint16_t*>(block.data + layout.scales_at(block.capacity_rows));
}
inline std::uint16_t* ZeroPlane(const BlockLayout& layout, BlockRef block) {
  return reinterpret_cast<std::uint16_t*>(block.data + layout.zeros_at(block.capacity_rows));
}
inline const std::uint16_t* ZeroPlane(const BlockLayout& layout, ConstBlockRef block) {
  return reinterpret_cast<const std::uint16_t*>(block.data + layout.zeros_at(block.capacity_rows));
}

// Codes of 1 to 8 bits (kPairs, kInt8, kNibble, kBitPlanes).
// codes: [dim], then zeros up to a multiple of kUnitCodes.
void StoreCodes(const BlockLayout& layout, BlockRef block, int row_in_block,
                const std::uint8_t* codes);
// Writes the zeros behind row.codes[dim) itself.
void StoreCodes(const BlockLayout& layout, BlockRef block, int row_in_block, CodeRow& row);
void LoadCodes(const BlockLayout& layout, ConstBlockRef block, int row_in_block, CodeRow& row);

// 16-bit codes (kHalf), [dim].
void StoreHalves(const BlockLayout& layout, BlockRef block, int row_in_block,
                 const std::uint16_t* codes);
void LoadHalves(const BlockLayout& layout, ConstBlockRef block, int row_in_block,
                std::uint16_t* codes);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_CODE_ROWS_H_
