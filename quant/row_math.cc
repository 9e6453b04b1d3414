#include "quant/row_math.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/row_math.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/row_math-inl.h"

// Most loops are plain: compiled per target they vectorise, and stay exact by construction. Only
// what needs lanes to be moved or converted is written in Highway.
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

float AbsMaxTarget(const float* row, int dim) { return AbsMaxOf(row, dim); }
MinMax MinMaxTarget(const float* row, int dim) { return MinMaxOf(row, dim); }

// The CPU's f16 conversions are exact on these targets; see kvsieve/float16.h.
void F16ToRowOf(const std::uint16_t* codes, int dim, float* row) {
  int j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  for (; j + lanes <= dim; j += lanes) {
    const auto* from = reinterpret_cast<const hwy::float16_t*>(codes + j);
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, from)), df, row + j);
  }
#endif
  for (; j < dim; ++j) row[j] = ToFloat(F16{codes[j]});
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {

HWY_EXPORT(AbsMaxTarget);
HWY_EXPORT(MinMaxTarget);
HWY_EXPORT(F16ToRowOf);

}  // namespace

float AbsMax(const float* row, int dim) { return HWY_DYNAMIC_DISPATCH(AbsMaxTarget)(row, dim); }

MinMax FindMinMax(const float* row, int dim) {
  return HWY_DYNAMIC_DISPATCH(MinMaxTarget)(row, dim);
}

void F16ToRow(const std::uint16_t* codes, int dim, float* row) {
  HWY_DYNAMIC_DISPATCH(F16ToRowOf)(codes, dim, row);
}

Status CheckFinite(const float* row, int dim, std::int64_t row_index, std::string_view codec) {
  if (std::isfinite(AbsMax(row, dim))) return Status::Ok();
  int j = 0;
  while (std::isfinite(row[j])) ++j;
  return {ErrorCode::kNonFinite, StrCat("row ", row_index, ", element ", j, " is ", row[j], "; ",
                                        codec, " stores finite values only")};
}

Status CheckScaled(const float* row, int dim, std::int64_t row_index, std::string_view codec) {
  if (AbsMax(row, dim) <= kMaxScaled) return Status::Ok();
  KVS_RETURN_IF_ERROR(CheckFinite(row, dim, row_index, codec));
  int j = 0;
  while (std::fabs(row[j]) <= kMaxScaled) ++j;
  return Status::Invalid(StrCat("row ", row_index, ", element ", j, " is ", row[j], "; ", codec,
                                " stores at most ", kMaxScaled));
}

Status CheckScaledRows(float largest, const float* rows, int count, int dim, std::int64_t first,
                       std::string_view codec) {
  if (largest <= kMaxScaled) return Status::Ok();
  for (int r = 0; r < count; ++r) {
    KVS_RETURN_IF_ERROR(CheckScaled(rows + std::ptrdiff_t{r} * dim, dim, first + r, codec));
  }
  return Status::Ok();
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
