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

// Which clamps a grid may need: scales are rounded up, so no code passes `high`, nor `low` where
// there is no zero point; a zero point that saturated leaves elements below it.
enum class Zero { kNone, kPoint };

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// The same codes without dividing. Let a = x - zero, q = a * inverse, r = a - q * scale (exact: one
// multiply-add, and scale has 8 bits), then q' = q + r * inverse. Before its rounding q' differs
// from a / scale by less than 2^-22 of its last place, while no quotient of a 24-bit by an 8-bit
// number is nearer than 2^-9 to the middle of two f32 numbers: q' is a / scale rounded to f32. r is
// exact as long as it is no denormal. With scale >= kDivideBelow it is one only for |a| far below
// scale / 4, whose code is 0 however q is rounded.
constexpr float kDivideBelow = 0x1p-90F;

template <class D, Zero kZero>
struct Rounder {
  using V = hn::Vec<D>;
  V zero, scale, inverse, low, rounder;

  HWY_INLINE Rounder(Grid grid, CodeRange range)
      : zero(hn::Set(D(), grid.zero)),
        scale(hn::Set(D(), grid.scale)),
        inverse(hn::Set(D(), grid.inverse)),
        low(hn::Set(D(), range.low)),
        // An even bias does not change which of two halves is even.
        rounder(hn::Set(D(), kRounder + static_cast<float>(range.bias))) {}

  // Codes in the low bytes.
  HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> operator()(const float* x) const {
    const D df;
    const V above = hn::LoadU(df, x);
    const V a = kZero == Zero::kPoint ? hn::Sub(above, zero) : above;
    const V nearly = hn::Mul(a, inverse);
    const V steps = hn::MulAdd(hn::NegMulAdd(nearly, scale, a), inverse, nearly);
    const V held = kZero == Zero::kPoint ? hn::Max(steps, low) : steps;
    return hn::BitCast(hn::RebindToUnsigned<D>(), hn::Add(held, rounder));
  }
};

// The low bytes of four vectors, in order.
template <class DU, class V>
HWY_INLINE hn::Vec<hn::Repartition<std::uint8_t, DU>> LowBytes(DU du, V a, V b, V c, V d) {
  const hn::Repartition<std::uint8_t, DU> d8;
  const V ab = hn::IfVecThenElse(hn::Set(du, 0xFF), a, hn::ShiftLeft<8>(b));
  const V abc = hn::IfVecThenElse(hn::Set(du, 0xFFFF), ab, hn::ShiftLeft<16>(c));
  const V words = hn::IfVecThenElse(hn::Set(du, 0xFFFFFF), abc, hn::ShiftLeft<24>(d));
  // Byte k of word i belongs to vector k: turn 4 by 4 bytes in each 128 bits, then words likewise
  // over the whole vector.
  alignas(16) static constexpr std::uint8_t kTurn[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                         2, 6, 10, 14, 3, 7, 11, 15};
  const auto turned =
      hn::BitCast(du, hn::TableLookupBytes(hn::BitCast(d8, words), hn::LoadDup128(d8, kTurn)));
  constexpr std::uint32_t kBlocks = HWY_TARGET == HWY_AVX3 ? 4 : 2;
  const auto lane = hn::Iota(du, 0);
  const auto block = hn::And(lane, hn::Set(du, kBlocks - 1));
  const auto from = hn::Add(hn::ShiftLeft<2>(block), hn::ShiftRight<kBlocks / 2>(lane));
  return hn::BitCast(d8, hn::TableLookupLanes(turned, hn::IndicesFromVec(du, from)));
}

template <Zero kZero>
HWY_INLINE int RoundVectors(const float* x, int count, Grid grid, CodeRange range,
                            std::uint8_t* codes) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Repartition<std::uint8_t, decltype(df)> d8;
  const hn::Rebind<std::uint8_t, decltype(df)> du8;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  const Rounder<decltype(df), kZero> round(grid, range);
  int j = 0;
  for (; j + 4 * lanes <= count; j += 4 * lanes) {
    const float* at = x + j;
    hn::StoreU(
        LowBytes(du, round(at), round(at + lanes), round(at + 2 * lanes), round(at + 3 * lanes)),
        d8, codes + j);
  }
  for (; j + lanes <= count; j += lanes) {
    hn::StoreU(hn::TruncateTo(du8, round(x + j)), du8, codes + j);
  }
  return j;
}
#endif

template <Zero kZero>
HWY_INLINE void RoundToCodesOf(const float* x, int count, Grid grid, CodeRange range,
                               std::uint8_t* codes) {
  int j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  if (grid.scale >= kDivideBelow) {
    j = RoundVectors<kZero>(x, count, grid, range, codes);
    if (j == count) return;
  }
#endif
  if (grid.scale == 0.0F) {
    std::fill(codes, codes + count, static_cast<std::uint8_t>(range.bias));
    return;
  }
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
