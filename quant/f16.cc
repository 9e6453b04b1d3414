// f16: rows as IEEE binary16, nearest even. No scales; values beyond 65504 are an error.
#include <cmath>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

Status CheckRange(const float* row, int dim, std::int64_t row_index) {
  KVS_RETURN_IF_ERROR(CheckFinite(row, dim, row_index, "f16"));
  if (AbsMax(row, dim) <= kF16Max) return Status::Ok();
  int j = 0;
  while (std::fabs(row[j]) <= kF16Max) ++j;
  return Status::Invalid(StrCat("row ", row_index, ", element ", j, " is ", row[j],
                                "; f16 holds at most ", kF16Max, " (int8 and turbo hold more)"));
}

class F16Codec final : public BlockCodec {
 public:
  F16Codec(int dim, Side side) : BlockCodec({CodeLayout::kF16, side, dim, 16, 0, false}) {}

  std::string Canonical() const override { return "f16"; }
  KernelPath path() const override { return KernelPath::kFused; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForEachRow(rows,
                      [&](RowIndex r, const float* row) { return CheckRange(row, dim(), r); });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    const std::ptrdiff_t stride = dim();
    for (int r = 0; r < count; ++r) KVS_RETURN_IF_ERROR(CheckRange(rows + r * stride, dim(), r));
    std::uint16_t codes[kMaxDim];
    for (int r = 0; r < count; ++r) {
      RowToF16(rows + r * stride, dim(), codes);
      StoreF16Codes(layout(), block, first_row + r, codes);
    }
    return Status::Ok();
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    std::uint16_t codes[kMaxDim];
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadF16Codes(layout(), block, first_row + r, codes);
      F16ToRow(codes, dim(), rows);
    }
  }

  std::size_t QueryBytes() const override { return F16QueryBytes(dim()); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareF16Queries(q, heads, dim(), prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    ScoreF16(MakeKernelBlock(block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    AccumulateF16(MakeKernelBlock(block, rows, ahead), weights, heads, acc);
  }
};

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return std::shared_ptr<const Codec>(std::make_shared<F16Codec>(dim, side));
}

}  // namespace

extern const CodecEntry kF16Codec = {{"f16",
                                      "IEEE half precision, the baseline.",
                                      "nearest even; values beyond 65504 are an error",
                                      "",
                                      "elements keep 11 significant bits",
                                      {"IEEE binary16 elements", "none: every element stands alone",
                                       "none", "no scale", "half to even"}},
                                     OutlineName,
                                     Make,
                                     /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant
