// What decides stored bytes, element by element, inlined into the units that encode: the same
// results on every target (IEEE f32, no contraction; where a multiply-add is used, it is shown to
// give the same bits).
//
// Plain loops are compiled per target and vectorise; they serve the baseline and what is left of
// whole vectors elsewhere.
#if defined(KVSIEVE_QUANT_ROW_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_ROW_MATH_INL_H_
#undef KVSIEVE_QUANT_ROW_MATH_INL_H_
#else
#define KVSIEVE_QUANT_ROW_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "quant/row_math.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 1.5 * 2^23: adding it to |x| < 2^22 leaves round-half-even(x) in the low mantissa bits. Unlike
// lrintf it vectorises on every target.
constexpr float kRounder = 12582912.0F;
constexpr std::int32_t kRounderBits = 0x4B400000;

// As AbsMax.
HWY_INLINE float AbsMaxOf(const float* x, int count) {
  std::int32_t largest = 0;  // magnitudes order like their bits
  int j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<std::int32_t> di;
  const auto lanes = static_cast<int>(hn::Lanes(di));
  const auto magnitude = [&](int at) HWY_ATTR {
    const auto* bits = reinterpret_cast<const std::int32_t*>(x + at);
    return hn::And(hn::LoadU(di, bits), hn::Set(di, 0x7FFFFFFF));
  };
  if (count >= lanes) {
    auto even = magnitude(0);
    auto odd = magnitude(count - lanes);
    for (j = lanes; j + 2 * lanes <= count; j += 2 * lanes) {
      even = hn::Max(even, magnitude(j));
      odd = hn::Max(odd, magnitude(j + lanes));
    }
    if (j + lanes <= count) even = hn::Max(even, magnitude(j));
    return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, hn::Max(even, odd))));
  }
#endif
  for (; j < count; ++j) {
    const std::int32_t magnitude_bits = std::bit_cast<std::int32_t>(x[j]) & 0x7FFFFFFF;
    largest = magnitude_bits > largest ? magnitude_bits : largest;
  }
  return std::bit_cast<float>(largest);
}

// As FindMinMax.
HWY_INLINE MinMax MinMaxOf(const float* x, int count) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> df;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  if (count >= lanes) {
    auto low = hn::LoadU(df, x + count - lanes);
    auto high = low;
    for (int j = 0; j + lanes <= count; j += lanes) {
      const auto v = hn::LoadU(df, x + j);
      low = hn::Min(low, v);
      high = hn::Max(high, v);
    }
    return {hn::GetLane(hn::MinOfLanes(df, low)), hn::GetLane(hn::MaxOfLanes(df, high))};
  }
#endif
  MinMax result{x[0], x[0]};
  for (int j = 1; j < count; ++j) {
    result.min = x[j] < result.min ? x[j] : result.min;
    result.max = x[j] > result.max ? x[j] : result.max;
  }
  return result;
}

// x' = zero + scale * code.
struct Grid {
  float zero;
  float scale;    // a bf16 number >= 0
  float inverse;  // 1 / scale, 0 for 0
};
struct CodeRange {
  float low;
  float high;
  int bias;  // even
};

// codes[j] = round-half-even((x[j] - zero) / scale), clamped to [low, high], plus `bias`. Each
// operation rounds to f32. scale 0 gives `bias` everywhere (low <= 0 <= high).
HWY_INLINE void RoundByDividing(const float* x, int count, Grid grid, CodeRange range,
                                std::uint8_t* codes) {
  const std::int32_t bias = range.bias - kRounderBits;
  for (int j = 0; j < count; ++j) {
    float steps = (x[j] - grid.zero) / grid.scale;
    steps = steps < range.low ? range.low : steps;
    steps = steps > range.high ? range.high : steps;
    codes[j] = static_cast<std::uint8_t>(std::bit_cast<std::int32_t>(steps + kRounder) + bias);
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// The same codes without dividing. Let a = x - zero, q = a * inverse, r = a - q * scale (exact: one
// multiply-add, and scale has 8 bits), then q' = q + r * inverse. Before its rounding q' differs
// from a / scale by less than 2^-22 of its last place, while no quotient of a 24-bit by an 8-bit
// number is nearer than 2^-9 to the middle of two f32 numbers: q' is a / scale rounded to f32. r is
// exact as long as it is no denormal. With scale >= kDivideBelow it is one only for |a| far below
// scale / 4, whose code is 0 however q is rounded.
constexpr float kDivideBelow = 0x1p-90F;

template <class D>
HWY_INLINE int RoundVectors(D df, const float* x, int j, int count, Grid grid, CodeRange range,
                            std::uint8_t* codes) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint8_t, D> du8;
  const auto zero = hn::Set(df, grid.zero);
  const auto scale = hn::Set(df, grid.scale);
  const auto inverse = hn::Set(df, grid.inverse);
  const auto low = hn::Set(df, range.low);
  const auto high = hn::Set(df, range.high);
  // An even bias does not change which of two halves is even.
  const auto rounder = hn::Set(df, kRounder + static_cast<float>(range.bias));
  const auto lanes = static_cast<int>(hn::Lanes(df));
  for (; j + lanes <= count; j += lanes) {
    const auto a = hn::Sub(hn::LoadU(df, x + j), zero);
    const auto nearly = hn::Mul(a, inverse);
    const auto steps = hn::MulAdd(hn::NegMulAdd(nearly, scale, a), inverse, nearly);
    const auto held = hn::Min(hn::Max(steps, low), high);
    hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, hn::Add(held, rounder))), du8, codes + j);
  }
  return j;
}
#endif

HWY_INLINE void RoundToCodesOf(const float* x, int count, Grid grid, CodeRange range,
                               std::uint8_t* codes) {
  if (grid.scale == 0.0F) {
    std::fill(codes, codes + count, static_cast<std::uint8_t>(range.bias));
    return;
  }
  int j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  if (grid.scale >= kDivideBelow) {
    j = RoundVectors(hn::ScalableTag<float>(), x, 0, count, grid, range, codes);
    j = RoundVectors(hn::FixedTag<float, 8>(), x, j, count, grid, range, codes);
  }
#endif
  RoundByDividing(x + j, count - j, grid, range, codes + j);
}

// The two roundings of ggml's reference quantizers, of y = x[j] * inverse in f32. Precondition:
// |y| < 2^22.
//
// Signed codes: y to the nearest integer, halves away from zero. With h the number below 1/2,
// |y| + h rounds past an integer exactly where the fraction of |y| is at least 1/2.
HWY_INLINE void RoundHalfAwayOf(const float* x, int count, float inverse, std::uint8_t* codes) {
  constexpr float kBelowHalf = 0x1.fffffep-2F;
  for (int j = 0; j < count; ++j) {
    const float y = x[j] * inverse;
    codes[j] = static_cast<std::uint8_t>(
        static_cast<std::int32_t>(y + (y < 0.0F ? -kBelowHalf : kBelowHalf)));
  }
}

// codes[j] = min(15, y + 8.5 without its fraction). Precondition: y + 8.5 > -1.
HWY_INLINE void TruncateToNibblesOf(const float* x, int count, float inverse, std::uint8_t* codes) {
  for (int j = 0; j < count; ++j) {
    const auto code = static_cast<std::int32_t>(x[j] * inverse + 8.5F);
    codes[j] = static_cast<std::uint8_t>(code < 15 ? code : 15);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#endif  // KVSIEVE_QUANT_ROW_MATH_INL_H_
