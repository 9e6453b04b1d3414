// What the kernels of all formats share: vector types and prefetching. For AVX2 and AVX-512 only.
#if defined(KVSIEVE_QUANT_KERNELS_COMMON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_COMMON_INL_H_
#undef KVSIEVE_QUANT_KERNELS_COMMON_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_COMMON_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/kernels.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using D16 = hn::ScalableTag<std::int16_t>;
using D8 = hn::ScalableTag<std::uint8_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using V16 = hn::Vec<D16>;
using V8 = hn::Vec<D8>;

constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr std::size_t kVectorBytes = static_cast<std::size_t>(kLanes) * 4;
constexpr std::size_t kLine = 64;

// Spreads prefetches of the next block over the kernel, a few lines per step. Integer blocks go to
// L1: two of them and the block at hand fit there (8 KB at dim 128; 1.2 times the speed of L2 on
// Zen 5). f16 blocks do not fit and go to L2.
enum class CacheLevel { kL1, kL2 };
template <CacheLevel kLevel>
struct Ahead {
  const std::uint8_t* next;
  explicit HWY_INLINE Ahead(const KernelBlock& b) : next(b.ahead != nullptr ? b.ahead : b.codes) {}
  template <int kLines>
  HWY_INLINE void Step() {
    constexpr int kLocality = kLevel == CacheLevel::kL1 ? 3 : 2;
    if constexpr (kLines > 0) __builtin_prefetch(next, 0, kLocality);
    if constexpr (kLines > 1) __builtin_prefetch(next + kLine, 0, kLocality);
    next += kLines * kLine;
  }
  // What the steps left: planes of scales and zero points have more lines than groups have steps.
  HWY_INLINE void Finish(const KernelBlock& b) {
    if (b.ahead == nullptr) return;
    for (const std::uint8_t* end = b.ahead + b.ahead_bytes; next < end;) Step<1>();
  }
};

// kLanes scales or zero points.
HWY_INLINE VF LoadScales(HalfType type, const std::uint16_t* from) {
  const DF df;
  if (type == HalfType::kF16) {
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  }
  const hn::RebindToUnsigned<DI> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
}

// As LoadScales, the first `count` only; the others are 0.
HWY_INLINE VF LoadSomeScales(HalfType type, const std::uint16_t* from, int count) {
  if (count >= kLanes) return LoadScales(type, from);
  alignas(32) std::uint16_t padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count) * 2);
  return LoadScales(type, padded);
}

// One vector of each head.
struct HeadVectors {
  VF a, b, c, d;
};

// Lane i % 4 of the result is the reduction, by Op, of all lanes of the i-th argument.
template <class Op>
HWY_INLINE VF ReduceFour(VF a, VF b, VF c, VF d) {
  const DF df;
  const hn::Repartition<double, DF> d64;
  const VF ab = Op()(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const VF cd = Op()(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto cd64 = hn::BitCast(d64, cd);
  VF all = Op()(hn::BitCast(df, hn::InterleaveLower(d64, ab64, cd64)),
                hn::BitCast(df, hn::InterleaveUpper(d64, ab64, cd64)));
  all = Op()(all, hn::ConcatLowerUpper(df, all, all));
#if HWY_TARGET == HWY_AVX3
  all = Op()(all, hn::SwapAdjacentBlocks(all));
#endif
  return all;
}
struct MaxOp {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Max(a, b); }
};
struct SumOp {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Add(a, b); }
};

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_COMMON_INL_H_
