// Eight vectors of eight 32-bit lanes, turned so that lane i of vector j becomes lane j of vector
// i. For AVX2 and AVX-512 alike: 256 bits are 8 rows of a line, and enough to keep up with memory.
#if defined(KVSIEVE_QUANT_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_TRANSPOSE_INL_H_
#undef KVSIEVE_QUANT_TRANSPOSE_INL_H_
#else
#define KVSIEVE_QUANT_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D32x8 = hn::FixedTag<std::uint32_t, 8>;
using V32x8 = hn::Vec<D32x8>;

// Named members: g++ 12 spills arrays of vectors.
struct Vectors8 {
  V32x8 v0, v1, v2, v3, v4, v5, v6, v7;
};

// Four rows: lanes 0..3 of both halves, turned.
struct Quarter {
  V32x8 v0, v1, v2, v3;
};
HWY_INLINE Quarter TransposeInHalves(V32x8 a, V32x8 b, V32x8 c, V32x8 d) {
  const D32x8 d32;
  const hn::Repartition<std::uint64_t, D32x8> d64;
  const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const auto cd_low = hn::BitCast(d64, hn::InterleaveLower(d32, c, d));
  const auto cd_high = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  return {hn::BitCast(d32, hn::InterleaveLower(d64, ab_low, cd_low)),
          hn::BitCast(d32, hn::InterleaveUpper(d64, ab_low, cd_low)),
          hn::BitCast(d32, hn::InterleaveLower(d64, ab_high, cd_high)),
          hn::BitCast(d32, hn::InterleaveUpper(d64, ab_high, cd_high))};
}

HWY_INLINE Vectors8 Transpose(const Vectors8& rows) {
  const D32x8 d;
  const Quarter low = TransposeInHalves(rows.v0, rows.v1, rows.v2, rows.v3);
  const Quarter high = TransposeInHalves(rows.v4, rows.v5, rows.v6, rows.v7);
  return {hn::ConcatLowerLower(d, high.v0, low.v0), hn::ConcatLowerLower(d, high.v1, low.v1),
          hn::ConcatLowerLower(d, high.v2, low.v2), hn::ConcatLowerLower(d, high.v3, low.v3),
          hn::ConcatUpperUpper(d, high.v0, low.v0), hn::ConcatUpperUpper(d, high.v1, low.v1),
          hn::ConcatUpperUpper(d, high.v2, low.v2), hn::ConcatUpperUpper(d, high.v3, low.v3)};
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif

#endif  // KVSIEVE_QUANT_TRANSPOSE_INL_H_
