#include "quant/row_math.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/row_math.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Most loops are plain: compiled per target they vectorise, and stay exact by construction. Only
// what needs lanes to be moved or converted is written in Highway.
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 1.5 * 2^23: adding it to |x| < 2^22 leaves round-half-even(x) in the low mantissa bits. Unlike
// lrintf it vectorises on every target.
constexpr float kRounder = 12582912.0F;
constexpr std::int32_t kRounderBits = 0x4B400000;

float AbsMaxOf(const float* row, int dim) {
  std::int32_t largest = 0;  // magnitudes order like their bits
  for (int j = 0; j < dim; ++j) {
    const auto magnitude =
        static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(row[j]) & 0x7FFFFFFFU);
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

MinMax MinMaxOf(const float* row, int dim) {
  constexpr int kLanes = 8;
  if (dim < kLanes) {
    MinMax result{row[0], row[0]};
    for (int j = 1; j < dim; ++j) {
      result.min = row[j] < result.min ? row[j] : result.min;
      result.max = row[j] > result.max ? row[j] : result.max;
    }
    return result;
  }
  float low[kLanes];
  float high[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) low[lane] = high[lane] = row[lane];
  const auto take = [&](const float* x) {
    for (int lane = 0; lane < kLanes; ++lane) {
      low[lane] = x[lane] < low[lane] ? x[lane] : low[lane];
      high[lane] = x[lane] > high[lane] ? x[lane] : high[lane];
    }
  };
  for (int j = kLanes; j + kLanes <= dim; j += kLanes) take(row + j);
  take(row + dim - kLanes);
  MinMax result{low[0], high[0]};
  for (int lane = 1; lane < kLanes; ++lane) {
    result.min = low[lane] < result.min ? low[lane] : result.min;
    result.max = high[lane] > result.max ? high[lane] : result.max;
  }
  return result;
}

double SumSquaresOf(const float* row, int dim) {
  constexpr int kLanes = 8;
  double sums[kLanes] = {};
  int j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = row[j + lane];
      sums[lane] += x * x;
    }
  }
  for (; j < dim; ++j) sums[j % kLanes] += static_cast<double>(row[j]) * row[j];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void RoundToCodesOf(const float* row, int dim, float zero, float scale, CodeRange range,
                    std::uint8_t* codes) {
  const float low = range.low;
  const float high = range.high;
  const std::int32_t bias = range.bias - kRounderBits;
  for (int j = 0; j < dim; ++j) {
    float steps = (row[j] - zero) / scale;
    steps = steps < low ? low : steps;
    steps = steps > high ? high : steps;
    codes[j] = static_cast<std::uint8_t>(std::bit_cast<std::int32_t>(steps + kRounder) + bias);
  }
}

// y - trunc(y) is exact, unlike y + 0.5.
void RoundHalfAwayOf(const float* row, int dim, float inverse, std::uint8_t* codes) {
  for (int j = 0; j < dim; ++j) {
    const float y = row[j] * inverse;
    const auto whole = static_cast<std::int32_t>(y);
    const float fraction = y - static_cast<float>(whole);
    const std::int32_t up = fraction >= 0.5F ? 1 : 0;
    const std::int32_t down = fraction <= -0.5F ? 1 : 0;
    codes[j] = static_cast<std::uint8_t>(whole + up - down);
  }
}

void TruncateToNibblesOf(const float* row, int dim, float inverse, std::uint8_t* codes) {
  for (int j = 0; j < dim; ++j) {
    const auto code = static_cast<std::int32_t>(row[j] * inverse + 8.5F);
    codes[j] = static_cast<std::uint8_t>(code < 15 ? code : 15);
  }
}

void CountThresholdsOf(const float* row, int dim, const float* thresholds, int count,
                       std::uint8_t* codes) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<std::uint8_t, decltype(df)> du8;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  const auto one = hn::Set(di, 1);
  int j = 0;
  for (; j + lanes <= dim; j += lanes) {
    const auto x = hn::LoadU(df, row + j);
    auto code = hn::Zero(di);
    for (int k = 0; k < count; ++k) {
      const auto reached = hn::RebindMask(di, hn::Ge(x, hn::Set(df, thresholds[k])));
      code = hn::IfThenElse(reached, hn::Add(code, one), code);
    }
    hn::StoreU(hn::DemoteTo(du8, code), du8, codes + j);
  }
  for (; j < dim; ++j) {
    int code = 0;
    for (int k = 0; k < count; ++k) code += row[j] >= thresholds[k] ? 1 : 0;
    codes[j] = static_cast<std::uint8_t>(code);
  }
}

// The CPU's f16 conversions are exact (nearest even) on these targets; see kvsieve/float16.h.
void RowToF16Of(const float* row, int dim, std::uint16_t* codes) {
  int j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  for (; j + lanes <= dim; j += lanes) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(df, row + j)), dh,
               reinterpret_cast<hwy::float16_t*>(codes + j));
  }
#endif
  for (; j < dim; ++j) codes[j] = ToF16(row[j]).bits;
}

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

void Butterflies(float* x, int dim, int distance) {
  for (int first = 0; first < dim; first += 2 * distance) {
    for (int i = first; i < first + distance; ++i) {
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Distances 1, 2, ... below the vector's width: lane i meets lane i ^ distance, and -b + a is the
// same f32 number as a - b.
template <class D, class V>
HWY_INLINE V ButterfliesInside(D df, V v) {
  const hn::RebindToSigned<D> di;
  const auto lane = hn::Iota(di, 0);
  const auto stage = [&](V x, V partner, int distance) {
    const auto bit = hn::Set(di, distance);
    const auto high = hn::RebindMask(df, hn::Eq(hn::And(lane, bit), bit));
    return hn::Add(hn::IfThenElse(high, hn::Neg(x), x), partner);
  };
  v = stage(v, hn::Shuffle2301(v), 1);
  v = stage(v, hn::Shuffle1032(v), 2);
  for (int distance = 4; distance < static_cast<int>(hn::Lanes(df)); distance *= 2) {
    const auto partner = hn::IndicesFromVec(df, hn::Xor(lane, hn::Set(di, distance)));
    v = stage(v, hn::TableLookupLanes(v, partner), distance);
  }
  return v;
}
#endif

void WalshHadamardOf(float* x, int dim, int block, const float* before, const float* after) {
  int distance = 1;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> df;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  if (block >= lanes) {
    for (int j = 0; j < dim; j += lanes) {
      const auto v = hn::Mul(hn::LoadU(df, x + j), hn::LoadU(df, before + j));
      hn::StoreU(ButterfliesInside(df, v), df, x + j);
    }
    distance = lanes;
  }
#endif
  if (distance == 1) {
    for (int j = 0; j < dim; ++j) x[j] *= before[j];
  }
  for (; distance < block; distance *= 2) Butterflies(x, dim, distance);
  for (int j = 0; j < dim; ++j) x[j] *= after[j];
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {

HWY_EXPORT(AbsMaxOf);
HWY_EXPORT(MinMaxOf);
HWY_EXPORT(SumSquaresOf);
HWY_EXPORT(RoundToCodesOf);
HWY_EXPORT(RoundHalfAwayOf);
HWY_EXPORT(TruncateToNibblesOf);
HWY_EXPORT(CountThresholdsOf);
HWY_EXPORT(RowToF16Of);
HWY_EXPORT(F16ToRowOf);
HWY_EXPORT(WalshHadamardOf);

}  // namespace

float AbsMax(const float* row, int dim) { return HWY_DYNAMIC_DISPATCH(AbsMaxOf)(row, dim); }

MinMax FindMinMax(const float* row, int dim) { return HWY_DYNAMIC_DISPATCH(MinMaxOf)(row, dim); }

double SumSquares(const float* row, int dim) {
  return HWY_DYNAMIC_DISPATCH(SumSquaresOf)(row, dim);
}

void RoundToCodes(const float* row, int dim, float zero, float scale, CodeRange range,
                  std::uint8_t* codes) {
  if (scale == 0.0F) {
    std::fill(codes, codes + dim, static_cast<std::uint8_t>(range.bias));
    return;
  }
  HWY_DYNAMIC_DISPATCH(RoundToCodesOf)(row, dim, zero, scale, range, codes);
}

void RoundHalfAway(const float* row, int dim, float inverse, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(RoundHalfAwayOf)(row, dim, inverse, codes);
}

void TruncateToNibbles(const float* row, int dim, float inverse, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(TruncateToNibblesOf)(row, dim, inverse, codes);
}

void CountThresholds(const float* row, int dim, const float* thresholds, int count,
                     std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(CountThresholdsOf)(row, dim, thresholds, count, codes);
}

void RowToF16(const float* row, int dim, std::uint16_t* codes) {
  HWY_DYNAMIC_DISPATCH(RowToF16Of)(row, dim, codes);
}

void F16ToRow(const std::uint16_t* codes, int dim, float* row) {
  HWY_DYNAMIC_DISPATCH(F16ToRowOf)(codes, dim, row);
}

void WalshHadamard(float* row, int dim, int block, const float* before, const float* after) {
  HWY_DYNAMIC_DISPATCH(WalshHadamardOf)(row, dim, block, before, after);
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

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
