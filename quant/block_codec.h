// What every codec of kvsieve shares: a BlockLayout, from which sizes and the moving of rows
// follow.
#ifndef KVSIEVE_QUANT_BLOCK_CODEC_H_
#define KVSIEVE_QUANT_BLOCK_CODEC_H_

#include "kvsieve/codec.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace kvsieve::quant {

class BlockCodec : public Codec {
 public:
  int dim() const final { return layout_.dim; }
  Side side() const final { return layout_.side; }
  RowBytes row_bytes() const final { return {layout_.code_row_bytes(), layout_.scale_row_bytes()}; }
  std::size_t BlockBytes(int capacity_rows) const final {
    return layout_.block_bytes(capacity_rows);
  }
  void MoveRow(ConstBlockRef from, int from_row, BlockRef to, int to_row) const final;

 protected:
  explicit BlockCodec(const BlockLayout& layout) : layout_(layout) {}
  const BlockLayout& layout() const { return layout_; }

  // The block as a fused kernel takes it: planes filled in, codebook and scale type left to the
  // caller.
  KernelBlock MakeKernelBlock(ConstBlockRef block, int rows, Prefetch ahead) const;

 private:
  BlockLayout layout_;
};

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_BLOCK_CODEC_H_
