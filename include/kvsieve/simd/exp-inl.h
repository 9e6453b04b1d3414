// Fast exponential for softmax, a building block for Highway kernels: opt-in, because no other
// public header includes Highway. Include it once per target, as any -inl.h of Highway.
//
//   #include <hwy/foreach_target.h>
//   #include <hwy/highway.h>
//   #include "kvsieve/simd/exp-inl.h"
//
// Only arguments x <= 0, as softmax has after its maximum was subtracted; that saves the overflow
// side. Relative error below kExpRelativeError on [kExpCutoff, 0], exp(0) is exactly 1, and 0
// below the cutoff, -inf included. Results may differ between targets within that bound.
#if defined(KVSIEVE_SIMD_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_SIMD_EXP_INL_H_
#undef KVSIEVE_SIMD_EXP_INL_H_
#else
#define KVSIEVE_SIMD_EXP_INL_H_
#endif

#include <hwy/highway.h>

#ifndef KVSIEVE_SIMD_EXP_ONCE_
#define KVSIEVE_SIMD_EXP_ONCE_
namespace kvsieve {
// exp(-86.5) = 2.7e-38, the last value whose 2^n times a polynomial >= 0.7 stays normal.
inline constexpr float kExpCutoff = -86.5F;
inline constexpr float kExpRelativeError = 1e-6F;
}  // namespace kvsieve
#endif  // KVSIEVE_SIMD_EXP_ONCE_

HWY_BEFORE_NAMESPACE();
namespace kvsieve {
namespace HWY_NAMESPACE {

// exp(x), x <= 0, f32 lanes. Ten operations and a mask: about half of hwy::Exp.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> ExpNonPositive(D d, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;

  // n = round(x / ln 2): adding 1.5 * 2^23 leaves n in the low mantissa bits, in two's complement.
  const auto round_magic = hn::Set(d, 12582912.0F);
  const auto keep = hn::Ge(x, hn::Set(d, kExpCutoff));
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), round_magic);
  const auto n = hn::Sub(shifted, round_magic);

  // r = x - n ln 2 in two steps; the first constant has 9 bits, so n times it is exact.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);

  // exp(r) = 1 + r P(r) on |r| <= ln 2 / 2: minimax with the constant fixed to 1, relative error
  // 4.4e-7; the rest of the bound is rounding.
  auto p = hn::MulAdd(r, hn::Set(d, 6.95332885e-3F), hn::Set(d, 4.18753549e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166876629F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499993742F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.999993742F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));

  // Times 2^n: n goes into the exponent field; the magic's own bits are shifted out.
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(keep, scaled);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve
HWY_AFTER_NAMESPACE();

#endif  // KVSIEVE_SIMD_EXP_INL_H_
