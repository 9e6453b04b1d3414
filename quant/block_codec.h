// What every codec of kvsieve shares: a BlockLayout, from which sizes and the moving of rows
// follow.
#ifndef KVSIEVE_QUANT_BLOCK_CODEC_H_
#define KVSIEVE_QUANT_BLOCK_CODEC_H_

#include "kvsieve/codec.h"
#include "quant/code_tile.h"
#include "quant/group_codes.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace kvsieve::quant {

// What the next tile will read, while this one is encoded.
inline void PrefetchRows(const float* rows, int floats) {
  for (int j = 0; j < floats; j += 16) __builtin_prefetch(rows + j);
}

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

  // Encode, a tile at a time, so that a row is read from memory once. encode(first, rows, count,
  // planes) fills codes and scales of rows [first, first + count), or says why it cannot: then the
  // rows before them are wiped out again.
  template <class EncodeTile>
  Status EncodeTiles(const float* rows, int count, BlockRef block, int first_row,
                     EncodeTile encode) const {
    CodeTile tile(layout_.dim);
    Status status;
    ForEachTile<kTileRows>(first_row, count, [&](int first, int tile_rows) {
      if (!status.ok()) return;
      const float* tile_data = rows + std::ptrdiff_t{first} * layout_.dim;
      PrefetchRows(tile_data + std::ptrdiff_t{tile_rows} * layout_.dim, kTileRows * layout_.dim);
      const int at = first_row + first;
      TilePlanes planes{&tile, ScalePlane(layout_, block) + at, nullptr, block.capacity_rows};
      if (layout_.zeros) planes.zeros = ZeroPlane(layout_, block) + at;
      status = encode(first, tile_data, tile_rows, planes);
      if (!status.ok()) return WipeRows(block, first_row, first + tile_rows);
      StoreTile(layout_, block, at, tile_rows, tile);
    });
    return status;
  }

  // The block as a fused kernel takes it: planes filled in, codebook and scale type left to the
  // caller.
  KernelBlock MakeKernelBlock(ConstBlockRef block, int rows, Prefetch ahead) const;

  // Rows as if never written.
  void WipeRows(BlockRef block, int first_row, int count) const;

 private:
  BlockLayout layout_;
};

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_BLOCK_CODEC_H_
