// q4_0: ggml's 4-bit blocks.
//
//   d    = m / -8, m the element of largest magnitude of 32 (the first of equals), with its sign;
//          stored as f16, nearest even
//   code = min(15, x * (1 / d) + 8.5 without its fraction), with d as it was before rounding
//   x'   = (code - 8) * d
//
// Kernels for values take scales >= 0 only, so values store 15 - code in blocks whose d is
// negative: x' = (stored - 8) |d| + |d|, a zero point of |d| there and 0 elsewhere.
//
// m itself has code 0 and is met but for the rounding of d. |x - x'| <= d / 2, save near -m, which
// would need code 16: up to d there.
#include <cmath>

#include "kvsieve/float16.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/ggml_block.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

constexpr float kLargestCode = 8.0F;
constexpr int kBias = 8;
constexpr Codebook kLevels = {{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, 1.0F};

class Q4_0Codec final : public BlockCodec {
 public:
  Q4_0Codec(int dim, Side side) : BlockCodec(Q4_0Layout(dim, side)) {}

  std::string Canonical() const override { return "q4_0"; }
  KernelPath path() const override { return KernelPath::kFused; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(kF16Max * kLargestCode, rows,
                         [&](RowIndex r, const float* row) { return CheckRow(row, r); });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    return EncodeTiles(
        rows, count, block, first_row,
        [&](int first, const float* tile, int tile_rows, const TilePlanes& to) {
          KVS_RETURN_IF_ERROR(CheckGgmlRows(tile, tile_rows, dim(), first, "q4_0", kLargestCode));
          EncodeQ4_0({tile, tile_rows, dim(), kGgmlBlock}, to);
          for (int r = 0; r < tile_rows; ++r) {
            for (int g = 0; g < layout().groups; ++g) {
              FlipQ4_0(side(), to.scales[g * to.capacity_rows + r],
                       to.codes->row(r) + g * kGgmlBlock);
            }
          }
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
        const F16 stored_scale{scales[g * block.capacity_rows + first_row + r]};
        const float scale = ToFloat(stored_scale);
        FlipQ4_0(side(), stored_scale.bits, codes.codes + g * kGgmlBlock);
        for (int j = g * kGgmlBlock; j < (g + 1) * kGgmlBlock; ++j) {
          rows[j] = static_cast<float>(codes.codes[j] - kBias) * scale;
        }
      }
    }
  }

  std::size_t QueryBytes() const override { return IntQueryBytes(dim(), kGgmlBlock); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareNibbleQueries(q, heads, dim(), kGgmlBlock, prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    KernelBlock view = MakeKernelBlock(block, rows, ahead);
    view.half_type = HalfType::kF16;
    view.codebook = &kLevels;
    ScoreNibble(view, prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    // Few enough for the stack, and little beside the codes: two planes of 2 bytes a block of 32.
    constexpr int kMostScales = kMaxDim / kGgmlBlock * kBlockRows;
    alignas(64) std::uint16_t scales[kMostScales];
    alignas(64) std::uint16_t zeros[kMostScales];
    KernelBlock view = MakeKernelBlock(block, rows, ahead);
    const int count = layout().groups * block.capacity_rows;
    for (int i = 0; i < count; ++i) {
      scales[i] = view.scales[i] & 0x7FFFU;
      zeros[i] = (view.scales[i] & 0x8000U) != 0 ? scales[i] : std::uint16_t{0};
    }
    view.scales = scales;
    view.zeros = zeros;
    view.half_type = HalfType::kF16;
    view.codebook = &kLevels;
    AccumulateNibble(view, weights, heads, acc);
  }

 private:
  Status CheckRow(const float* row, std::int64_t row_index) const {
    return CheckGgmlRow(row, dim(), row_index, "q4_0", kLargestCode);
  }
};

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  KVS_RETURN_IF_ERROR(CheckGgmlDim(call, dim, "int4"));
  return std::shared_ptr<const Codec>(std::make_shared<Q4_0Codec>(dim, side));
}

}  // namespace

extern const CodecEntry kQ4_0Codec = {
    {"q4_0",
     "ggml's 4-bit blocks of 32, bit for bit.",
     "d = m / -8, m the largest element in magnitude of 32, with its sign; code = min(15, trunc(x "
     "/ "
     "d + 8.5)); d is then stored as f16; x' = (code - 8) * d (ggml quantize_row_q4_0_ref)",
     "",
     "each element is off by half a scale, by a whole one near -m, and by the rounding of the "
     "scale",
     {"4-bit codes 0..15 that stand for -8..7", "one scale per 32 elements",
      "along the row: 32 neighbouring dimensions",
      "the element of largest magnitude / -8, signed, stored as f16 half to even",
      "x / d + 8.5 without its fraction, against the scale before its rounding"}},
    OutlineName,
    Make,
    /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant
