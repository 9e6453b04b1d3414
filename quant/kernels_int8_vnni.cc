#include "quant/kernels_vnni.h"

// AVX-512 only.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_int8_vnni.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/kernels_int_key-inl.h"
#include "quant/kernels_int_value-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {

void VnniScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  N_AVX3::ScoreBlock<N_AVX3::VnniDot, N_AVX3::Int8Format>(block, prepared, heads, logits);
}

void VnniAccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc) {
  N_AVX3::AccumulateBlock<N_AVX3::VnniDot, N_AVX3::Int8Format>(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3
