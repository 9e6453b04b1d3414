#include "quant/block_codec.h"

#include "quant/code_rows.h"

namespace kvsieve {

std::string_view KernelPathName(KernelPath path) {
  switch (path) {
    case KernelPath::kFused:
      return "fused";
    case KernelPath::kPortable:
      return "portable";
    case KernelPath::kReference:
      return "reference";
  }
  return "";
}

namespace quant {

void BlockCodec::MoveRow(ConstBlockRef from, int from_row, BlockRef to, int to_row) const {
  if (layout_.codes == CodeLayout::kHalf) {
    std::uint16_t codes[kMaxDim];
    LoadHalves(layout_, from, from_row, codes);
    StoreHalves(layout_, to, to_row, codes);
    return;
  }
  CodeRow row;
  LoadCodes(layout_, from, from_row, row);
  StoreCodes(layout_, to, to_row, row);
  for (int g = 0; g < layout_.groups; ++g) {
    const int source = g * from.capacity_rows + from_row;
    const int target = g * to.capacity_rows + to_row;
    ScalePlane(layout_, to)[target] = ScalePlane(layout_, from)[source];
    if (layout_.zeros) ZeroPlane(layout_, to)[target] = ZeroPlane(layout_, from)[source];
  }
}

void BlockCodec::WipeRows(BlockRef block, int first_row, int count) const {
  alignas(64) const std::uint16_t zeros[kMaxDim] = {};
  for (int r = first_row; r < first_row + count; ++r) {
    if (layout_.codes == CodeLayout::kHalf) {
      StoreHalves(layout_, block, r, zeros);
      continue;
    }
    StoreCodes(layout_, block, r, reinterpret_cast<const std::uint8_t*>(zeros));
    for (int g = 0; g < layout_.groups; ++g) {
      ScalePlane(layout_, block)[g * block.capacity_rows + r] = 0;
      if (layout_.zeros) ZeroPlane(layout_, block)[g * block.capacity_rows + r] = 0;
    }
  }
}

KernelBlock BlockCodec::MakeKernelBlock(ConstBlockRef block, int rows, Prefetch ahead) const {
  KernelBlock view;
  view.codes = block.data;
  if (layout_.groups > 0) view.scales = ScalePlane(layout_, block);
  if (layout_.zeros) view.zeros = ZeroPlane(layout_, block);
  view.capacity_rows = block.capacity_rows;
  view.rows = rows;
  view.dim = layout_.dim;
  view.bits = layout_.bits;
  view.group = layout_.groups > 0 ? layout_.dim / layout_.groups : layout_.dim;
  view.ahead = ahead.data;
  view.ahead_bytes = BlockBytes(block.capacity_rows);
  return view;
}

}  // namespace quant
}  // namespace kvsieve
