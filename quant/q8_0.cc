// q8_0: ggml's 8-bit blocks.
//
//   d    = max|x| / 127 of 32 elements, stored as f16, nearest even
//   code = round(x * (1 / d)), halves away from zero, with d as it was before rounding
//   x'   = code * d                      |x - x'| <= d / 2 + 127 * 2^-11 d (the rounding of d)
#include "kvsieve/float16.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/ggml_block.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

constexpr float kLimit = 127.0F;

class Q8_0Codec final : public BlockCodec {
 public:
  Q8_0Codec(int dim, Side side) : BlockCodec(Q8_0Layout(dim, side)) {}

  std::string Canonical() const override { return "q8_0"; }
  KernelPath path() const override { return KernelPath::kFused; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(kF16Max * kLimit, rows,
                         [&](RowIndex r, const float* row) { return CheckRow(row, r); });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    return EncodeTiles(
        rows, count, block, first_row,
        [&](int first, const float* tile, int tile_rows, const TilePlanes& to) {
          KVS_RETURN_IF_ERROR(CheckGgmlRows(tile, tile_rows, dim(), first, "q8_0", kLimit));
          EncodeQ8_0({tile, tile_rows, dim(), kGgmlBlock}, to);
          return Status::Ok();
        });
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    CodeRow codes;
    const std::uint16_t* scales = ScalePlane(layout(), block);
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadCodes(layout(), block, first_row + r, codes);
      for (int g = 0; g < layout().groups; ++g) {
        const float scale = ToFloat(F16{scales[g * block.capacity_rows + first_row + r]});
        for (int j = g * kGgmlBlock; j < (g + 1) * kGgmlBlock; ++j) {
          rows[j] = static_cast<float>(static_cast<std::int8_t>(codes.codes[j])) * scale;
        }
      }
    }
  }

  std::size_t QueryBytes() const override { return IntQueryBytes(dim(), kGgmlBlock); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareIntQueries(q, heads, dim(), kGgmlBlock, prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    ScoreInt8(View(block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    AccumulateInt8(View(block, rows, ahead), weights, heads, acc);
  }

 private:
  Status CheckRow(const float* row, std::int64_t row_index) const {
    return CheckGgmlRow(row, dim(), row_index, "q8_0", kLimit);
  }
  KernelBlock View(ConstBlockRef block, int rows, Prefetch ahead) const {
    KernelBlock view = MakeKernelBlock(block, rows, ahead);
    view.half_type = HalfType::kF16;
    return view;
  }
};

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  KVS_RETURN_IF_ERROR(CheckGgmlDim(call, dim, "int8"));
  return std::shared_ptr<const Codec>(std::make_shared<Q8_0Codec>(dim, side));
}

}  // namespace

extern const CodecEntry kQ8_0Codec = {
    {"q8_0",
     "ggml's 8-bit blocks of 32, bit for bit.",
     "d = max|x| / 127 of 32 elements; code = round(x / d), halves away from zero; d is then "
     "stored "
     "as f16; x' = code * d (ggml quantize_row_q8_0_ref)",
     "",
     "each element is off by half a scale, and by the rounding of the scale (up to 0.06 scales)",
     {"8-bit two's complement codes in [-127, 127]", "one scale per 32 elements",
      "along the row: 32 neighbouring dimensions", "max|x| / 127, stored as f16 half to even",
      "half away from zero, against the scale before its rounding"}},
    OutlineName,
    Make,
    /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant
