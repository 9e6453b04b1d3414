// fp8: OCP 8-bit floats e4m3 (FP8 Formats for Deep Learning, arXiv 2209.05433), one byte an
// element, no scale.
//
//   bit 7 sign | bits 6..3 exponent e | bits 2..0 mantissa m
//   e > 0: 2^(e - 7) * (1 + m / 8)          e = 0: 2^-6 * m / 8
//
// Nearest even; beyond +-448, the largest number, values saturate and are counted. 0x7F and 0xFF
// are NaN in the format and never written.
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

constexpr float kMax = 448.0F;
constexpr float kSmallestNormal = 0x1p-6F;

std::uint8_t ToFp8(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80U;
  float magnitude = std::fabs(value);
  magnitude = magnitude > kMax ? kMax : magnitude;
  std::uint32_t code;
  if (magnitude < kSmallestNormal) {
    // The last bit, 2^-9, meets that of the f32 number 2^14, whose adder rounds half to even.
    code =
        std::bit_cast<std::uint32_t>(magnitude + 0x1p14F) - std::bit_cast<std::uint32_t>(0x1p14F);
  } else {
    // Rebias the exponent from 127 to 7, keep 3 of 23 mantissa bits.
    const std::uint32_t m = std::bit_cast<std::uint32_t>(magnitude) - (120U << 23);
    code = (m + 0x7FFFFU + (m >> 20 & 1U)) >> 20;
  }
  return static_cast<std::uint8_t>(sign | code);
}

constexpr std::array<float, 256> MakeDecodeTable() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    float value = static_cast<float>(code & 7) + (exponent > 0 ? 8.0F : 0.0F);
    value *= 0x1p-9F;
    for (int e = 1; e < exponent; ++e) value *= 2.0F;
    table[static_cast<std::size_t>(code)] = (code & 0x80) != 0 ? -value : value;
  }
  return table;
}
constexpr std::array<float, 256> kDecoded = MakeDecodeTable();

class Fp8Codec final : public BlockCodec {
 public:
  Fp8Codec(int dim, Side side) : BlockCodec({CodeLayout::kPairs, side, dim, 8, 0, false}) {}

  std::string Canonical() const override { return "fp8"; }
  KernelPath path() const override { return KernelPath::kFused; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(
        std::numeric_limits<float>::max(), rows,
        [&](RowIndex r, const float* row) { return CheckFinite(row, dim(), r, "fp8"); });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    const std::ptrdiff_t stride = dim();
    for (int r = 0; r < count; ++r) {
      KVS_RETURN_IF_ERROR(CheckFinite(rows + r * stride, dim(), r, "fp8"));
    }
    CodeRow codes;
    for (int r = 0; r < count; ++r) {
      const float* row = rows + r * stride;
      for (int j = 0; j < dim(); ++j) codes.codes[j] = ToFp8(row[j]);
      StoreCodes(layout(), block, first_row + r, codes);
    }
    return Status::Ok();
  }

  std::int64_t CountSaturated(const float* rows, int count) const override {
    std::int64_t saturated = 0;
    const std::ptrdiff_t elements = std::ptrdiff_t{count} * dim();
    for (std::ptrdiff_t i = 0; i < elements; ++i) saturated += std::fabs(rows[i]) > kMax ? 1 : 0;
    return saturated;
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    CodeRow codes;
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadCodes(layout(), block, first_row + r, codes);
      for (int j = 0; j < dim(); ++j) rows[j] = kDecoded[codes.codes[j]];
    }
  }

  std::size_t QueryBytes() const override { return HalfQueryBytes(dim()); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareHalfQueries(q, heads, dim(), prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    ScoreFp8(MakeKernelBlock(block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    AccumulateFp8(MakeKernelBlock(block, rows, ahead), weights, heads, acc);
  }
};

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return std::shared_ptr<const Codec>(std::make_shared<Fp8Codec>(dim, side));
}

}  // namespace

extern const CodecEntry kFp8Codec = {
    {"fp8",
     "8-bit floats (e4m3) without a scale.",
     "nearest even of the e4m3 numbers (arXiv 2209.05433); beyond 448 in magnitude they saturate, "
     "which the report counts",
     "",
     "elements keep 4 significant bits; those beyond 448 become 448",
     {"e4m3: 4 exponent bits, 3 mantissa bits", "none: every element stands alone", "none",
      "no scale", "half to even, saturating at +-448"}},
    OutlineName,
    Make,
    /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant
