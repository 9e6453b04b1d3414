#include "kvsieve/float16.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/base/float16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve {
namespace HWY_NAMESPACE {
namespace {

// Every f16 is an f32, so there is nothing to round: the CPU's conversion is exact. Highway's is
// the CPU's from AVX2 on; below it mistreats Inf, NaN and denormals (1.0.3).
void ConvertF16(const F16* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  for (; i + lanes <= count; i += lanes) {
    const auto halves = hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from + i));
    hn::StoreU(hn::PromoteTo(df, halves), df, to + i);
  }
#endif
  for (; i < count; ++i) to[i] = ToFloat(from[i]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvsieve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve {

HWY_EXPORT(ConvertF16);

void ConvertToF32(const void* from, ElementType type, std::int64_t count, float* to) {
  switch (type) {
    case ElementType::kF32:
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case ElementType::kF16:
      HWY_DYNAMIC_DISPATCH(ConvertF16)(static_cast<const F16*>(from), count, to);
      return;
    case ElementType::kBF16:
      for (std::int64_t i = 0; i < count; ++i) to[i] = ToFloat(static_cast<const BF16*>(from)[i]);
      return;
  }
}

}  // namespace kvsieve
#endif  // HWY_ONCE
