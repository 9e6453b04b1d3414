#include "quant/kernels.h"
#include "quant/kernels_plain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_fp8.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/kernels_half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
void Fp8Score(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  ScoreBlock<Fp8Format>(block, prepared, heads, logits);
}
void Fp8Accumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  AccumulateBlock<Fp8Format>(block, weights, heads, acc);
}
#else
void Fp8Score(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScoreFp8(block, prepared, heads, logits);
}
void Fp8Accumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulateFp8(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(Fp8Score);
HWY_EXPORT(Fp8Accumulate);
}  // namespace

void ScoreFp8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  HWY_DYNAMIC_DISPATCH(Fp8Score)(block, prepared, heads, logits);
}

void AccumulateFp8(const KernelBlock& block, const float* weights, int heads, float* acc) {
  HWY_DYNAMIC_DISPATCH(Fp8Accumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
