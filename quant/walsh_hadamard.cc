#include "quant/walsh_hadamard.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/walsh_hadamard.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

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

// One distance at a time.
void PlainRow(const BlockTransform& transform, float* x, int dim) {
  for (int j = 0; j < dim; ++j) x[j] *= transform.before[j];
  for (int distance = 1; distance < transform.block; distance *= 2) Butterflies(x, dim, distance);
  for (int j = 0; j < dim; ++j) x[j] *= transform.after[j];
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;

// Lane i meets lane i ^ distance, for distances below the vector's width: x + partner, or in the
// upper lane -x + partner, the same f32 number as partner - x. The products with +-1 are exact.
struct InsideVector {
  VF sign1, sign2, sign4, sign8;

  static HWY_INLINE VF Signs(int distance) {
    const hn::RebindToSigned<DF> di;
    const auto bit = hn::Set(di, distance);
    const auto upper = hn::Eq(hn::And(hn::Iota(di, 0), bit), bit);
    return hn::IfThenElse(hn::RebindMask(DF(), upper), hn::Set(DF(), -1.0F), hn::Set(DF(), 1.0F));
  }
  HWY_INLINE InsideVector() : sign1(Signs(1)), sign2(Signs(2)), sign4(Signs(4)), sign8(Signs(8)) {}

  HWY_INLINE VF operator()(VF v) const {
    v = hn::MulAdd(v, sign1, hn::Shuffle2301(v));
    v = hn::MulAdd(v, sign2, hn::Shuffle1032(v));
    v = hn::MulAdd(v, sign4, hn::SwapAdjacentBlocks(v));
    if constexpr (kLanes == 16) v = hn::MulAdd(v, sign8, hn::ConcatLowerUpper(DF(), v, v));
    return v;
  }
};

// The end of a pass: as it is, or times `after`.
struct Keep {
  HWY_INLINE VF operator()(VF v, std::ptrdiff_t) const { return v; }
};
struct Scale {
  const float* after;
  HWY_INLINE VF operator()(VF v, std::ptrdiff_t j) const {
    return hn::Mul(v, hn::LoadU(DF(), after + j));
  }
};

struct Four {
  VF v0, v1, v2, v3;
};
// Two distances: neighbours, then those two apart.
HWY_INLINE Four Meet(const Four& in) {
  const VF sum01 = hn::Add(in.v0, in.v1);
  const VF difference01 = hn::Sub(in.v0, in.v1);
  const VF sum23 = hn::Add(in.v2, in.v3);
  const VF difference23 = hn::Sub(in.v2, in.v3);
  return {hn::Add(sum01, sum23), hn::Add(difference01, difference23), hn::Sub(sum01, sum23),
          hn::Sub(difference01, difference23)};
}

// Elements j, j + distance, ... of x.
template <class End>
HWY_INLINE void StoreFour(const Four& v, float* x, std::ptrdiff_t j, std::ptrdiff_t distance,
                          End end) {
  const DF df;
  hn::StoreU(end(v.v0, j), df, x + j);
  hn::StoreU(end(v.v1, j + distance), df, x + j + distance);
  hn::StoreU(end(v.v2, j + 2 * distance), df, x + j + 2 * distance);
  hn::StoreU(end(v.v3, j + 3 * distance), df, x + j + 3 * distance);
}

// Distances inside vectors, and one and two vectors.
template <class End>
HWY_INLINE void NearPass(const InsideVector& inside, const float* before, float* x, int dim,
                         End end) {
  const DF df;
  for (std::ptrdiff_t j = 0; j < dim; j += 4 * kLanes) {
    const auto load = [&](int k) HWY_ATTR {
      const std::ptrdiff_t at = j + k * kLanes;
      return inside(hn::Mul(hn::LoadU(df, x + at), hn::LoadU(df, before + at)));
    };
    StoreFour(Meet({load(0), load(1), load(2), load(3)}), x, j, kLanes, end);
  }
}

// `distance` and twice that, or `distance` alone.
template <class End>
HWY_INLINE void FarPass(float* x, int dim, std::ptrdiff_t distance, End end) {
  const DF df;
  for (std::ptrdiff_t first = 0; first < dim; first += 4 * distance) {
    for (std::ptrdiff_t j = first; j < first + distance; j += kLanes) {
      const auto load = [&](int k) HWY_ATTR { return hn::LoadU(df, x + j + k * distance); };
      StoreFour(Meet({load(0), load(1), load(2), load(3)}), x, j, distance, end);
    }
  }
}
template <class End>
HWY_INLINE void LastPass(float* x, int dim, std::ptrdiff_t distance, End end) {
  const DF df;
  for (std::ptrdiff_t first = 0; first < dim; first += 2 * distance) {
    for (std::ptrdiff_t j = first; j < first + distance; j += kLanes) {
      const VF a = hn::LoadU(df, x + j);
      const VF b = hn::LoadU(df, x + j + distance);
      hn::StoreU(end(hn::Add(a, b), j), df, x + j);
      hn::StoreU(end(hn::Sub(a, b), j + distance), df, x + j + distance);
    }
  }
}

// Blocks of at least four vectors.
HWY_INLINE void VectorRow(const BlockTransform& transform, const InsideVector& inside, float* x,
                          int dim) {
  const Scale scale{transform.after};
  const int block = transform.block;
  int distance = 4 * kLanes;
  if (distance == block) return NearPass(inside, transform.before, x, dim, scale);
  NearPass(inside, transform.before, x, dim, Keep());
  for (; 4 * distance < block; distance *= 4) FarPass(x, dim, distance, Keep());
  if (4 * distance == block) return FarPass(x, dim, distance, scale);
  LastPass(x, dim, distance, scale);
}
#endif  // AVX2 or AVX3

void WalshHadamardOf(const BlockTransform& transform, float* rows, int count, int dim) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  if (transform.block >= 4 * kLanes) {
    const InsideVector inside;
    for (int r = 0; r < count; ++r, rows += dim) VectorRow(transform, inside, rows, dim);
    return;
  }
#endif
  for (int r = 0; r < count; ++r, rows += dim) PlainRow(transform, rows, dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {

HWY_EXPORT(WalshHadamardOf);

void WalshHadamard(const BlockTransform& transform, float* rows, int count, int dim) {
  HWY_DYNAMIC_DISPATCH(WalshHadamardOf)(transform, rows, count, dim);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
