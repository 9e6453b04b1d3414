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

// Spreads prefetches of the next bytes to L2 over the kernel, a few lines per step.
struct Ahead {
  const std::uint8_t* next;
  explicit HWY_INLINE Ahead(const KernelBlock& b) : next(b.ahead != nullptr ? b.ahead : b.codes) {}
  template <int kLines>
  HWY_INLINE void Step() {
    if constexpr (kLines > 0) __builtin_prefetch(next, 0, 2);
    if constexpr (kLines > 1) __builtin_prefetch(next + kLine, 0, 2);
    next += kLines * kLine;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_COMMON_INL_H_
