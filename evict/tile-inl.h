// The register tile of the scoring kernels: 4 rows of A against 64 columns of B.
//
// Per depth step the wide form loads 64 columns and 4 scalars for 64 * 4 multiply-adds. With 32
// vector registers all 64 columns are in flight (16 accumulators); with 16 registers two vectors
// are, which still gives the eight independent chains that two FMA units of latency 4 need.
// Accumulators are named: g++ 12 spills arrays of them.
#if defined(KVSIEVE_EVICT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_EVICT_TILE_INL_H_
#undef KVSIEVE_EVICT_TILE_INL_H_
#else
#define KVSIEVE_EVICT_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "kvsieve/types.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::evict {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

// acc + a * b
struct DotStep {
  static HWY_INLINE FloatVec Apply(FloatVec a, FloatVec b, FloatVec acc) {
    return hn::MulAdd(a, b, acc);
  }
};

// acc + (a - b)^2: the difference first, so that close vectors lose nothing.
struct DistanceStep {
  static HWY_INLINE FloatVec Apply(FloatVec a, FloatVec b, FloatVec acc) {
    const auto difference = hn::Sub(a, b);
    return hn::MulAdd(difference, difference, acc);
  }
};

// One vector of columns against 4 rows.
struct FourRows {
  FloatVec r0, r1, r2, r3;

  template <class Step>
  HWY_INLINE void Add(const FourRows& a, FloatVec b) {
    r0 = Step::Apply(a.r0, b, r0);
    r1 = Step::Apply(a.r1, b, r1);
    r2 = Step::Apply(a.r2, b, r2);
    r3 = Step::Apply(a.r3, b, r3);
  }
};

HWY_INLINE FourRows LoadFour(FloatTag d, const float* c, std::size_t stride) {
  return {hn::LoadU(d, c), hn::LoadU(d, c + stride), hn::LoadU(d, c + 2 * stride),
          hn::LoadU(d, c + 3 * stride)};
}

HWY_INLINE void StoreFour(FloatTag d, const FourRows& rows, float* c, std::size_t stride) {
  hn::StoreU(rows.r0, d, c);
  hn::StoreU(rows.r1, d, c + stride);
  hn::StoreU(rows.r2, d, c + 2 * stride);
  hn::StoreU(rows.r3, d, c + 3 * stride);
}

HWY_INLINE FourRows BroadcastFour(FloatTag d, const float* a, std::size_t stride) {
  return {hn::Set(d, a[0]), hn::Set(d, a[stride]), hn::Set(d, a[2 * stride]),
          hn::Set(d, a[3 * stride])};
}

// A row-major f32 operand.
struct Operand {
  const float* data;
  std::size_t stride;
};

// c[i][j] = step over k < depth of a[i][k], b[k][j], from c[i][j]; i < 4, j < 64.
template <class Step>
HWY_INLINE void AccumulateTile(Operand a, Operand b, std::size_t depth, float* c,
                               std::size_t c_stride) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
  constexpr std::size_t kVectors = 4;
#else
  constexpr std::size_t kVectors = 2;
#endif
  for (std::size_t j = 0; j < kBlockRows; j += kVectors * lanes) {
    FourRows c0 = LoadFour(d, c + j, c_stride);
    FourRows c1 = LoadFour(d, c + j + lanes, c_stride);
    if constexpr (kVectors == 4) {
      FourRows c2 = LoadFour(d, c + j + 2 * lanes, c_stride);
      FourRows c3 = LoadFour(d, c + j + 3 * lanes, c_stride);
      for (std::size_t k = 0; k < depth; ++k) {
        const FourRows scalars = BroadcastFour(d, a.data + k, a.stride);
        const float* row = b.data + k * b.stride + j;
        c0.Add<Step>(scalars, hn::LoadU(d, row));
        c1.Add<Step>(scalars, hn::LoadU(d, row + lanes));
        c2.Add<Step>(scalars, hn::LoadU(d, row + 2 * lanes));
        c3.Add<Step>(scalars, hn::LoadU(d, row + 3 * lanes));
      }
      StoreFour(d, c2, c + j + 2 * lanes, c_stride);
      StoreFour(d, c3, c + j + 3 * lanes, c_stride);
    } else {
      for (std::size_t k = 0; k < depth; ++k) {
        const FourRows scalars = BroadcastFour(d, a.data + k, a.stride);
        const float* row = b.data + k * b.stride + j;
        c0.Add<Step>(scalars, hn::LoadU(d, row));
        c1.Add<Step>(scalars, hn::LoadU(d, row + lanes));
      }
    }
    StoreFour(d, c0, c + j, c_stride);
    StoreFour(d, c1, c + j + lanes, c_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::evict
HWY_AFTER_NAMESPACE();

#endif  // KVSIEVE_EVICT_TILE_INL_H_
