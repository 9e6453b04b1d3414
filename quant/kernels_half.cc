#include "quant/kernels.h"
#include "quant/kernels_plain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_half.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/kernels_half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
void HalfScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  if (block.half_type == HalfType::kF16)
    return ScoreBlock<F16Format>(block, prepared, heads, logits);
  ScoreBlock<BF16Format>(block, prepared, heads, logits);
}
void HalfAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  if (block.half_type == HalfType::kF16)
    return AccumulateBlock<F16Format>(block, weights, heads, acc);
  AccumulateBlock<BF16Format>(block, weights, heads, acc);
}
#else
void HalfScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScoreHalf(block, prepared, heads, logits);
}
void HalfAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulateHalf(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(HalfScore);
HWY_EXPORT(HalfAccumulate);
}  // namespace

void ScoreHalf(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  HWY_DYNAMIC_DISPATCH(HalfScore)(block, prepared, heads, logits);
}

void AccumulateHalf(const KernelBlock& block, const float* weights, int heads, float* acc) {
  HWY_DYNAMIC_DISPATCH(HalfAccumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
