// int8: one symmetric scale per row.
//
//   scale = bf16 rounded up of max|x| / 127        (so no code leaves -127..127)
//   code  = round-half-even(x / scale), against the stored scale
//   x'    = code * scale                           |x - x'| <= scale / 2
#include "kvsieve/float16.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

constexpr int kLimit = 127;

class Int8Codec final : public BlockCodec {
 public:
  Int8Codec(int dim, Side side) : BlockCodec({CodeLayout::kInt8, side, dim, 8, 1, false}) {}

  std::string Canonical() const override { return "int8"; }
  KernelPath path() const override { return KernelPath::kFused; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(kMaxScaled, rows, [&](RowIndex r, const float* row) {
      return CheckScaled(row, dim(), r, "int8");
    });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    return EncodeTiles(
        rows, count, block, first_row,
        [&](int first, const float* tile, int tile_rows, const TilePlanes& to) {
          const float largest = EncodeSym({tile, tile_rows, dim(), dim()}, {kLimit, 0}, to);
          return CheckScaledRows(largest, tile, tile_rows, dim(), first, "int8");
        });
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    CodeRow codes;
    const std::uint16_t* scales = ScalePlane(layout(), block);
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadCodes(layout(), block, first_row + r, codes);
      const float scale = ToFloat(BF16{scales[first_row + r]});
      for (int j = 0; j < dim(); ++j) {
        rows[j] = static_cast<float>(static_cast<std::int8_t>(codes.codes[j])) * scale;
      }
    }
  }

  std::size_t QueryBytes() const override { return IntQueryBytes(dim(), dim()); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareIntQueries(q, heads, dim(), dim(), prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    ScoreInt8(MakeKernelBlock(block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    AccumulateInt8(MakeKernelBlock(block, rows, ahead), weights, heads, acc);
  }
};

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return std::shared_ptr<const Codec>(std::make_shared<Int8Codec>(dim, side));
}

}  // namespace

extern const CodecEntry kInt8Codec = {
    {"int8",
     "8-bit integers with one symmetric scale per row.",
     "scale = bf16 rounded up of max|x| / 127; code = "
     "round-half-even(x / scale); x' = code * scale",
     "",
     "each element is off by at most half a scale",
     {"8-bit two's complement codes in [-127, 127]", "one scale per row",
      "along the row, over its dimensions", "max|x| / 127, stored as bf16 rounded up",
      "half to even, against the stored scale"}},
    OutlineName,
    Make,
    /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant
