#include "quant/kernels_vnni.h"

// AVX-512 only.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_nibble_vnni.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/kernels_int_key-inl.h"
#include "quant/kernels_int_value-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {

void VnniScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  using N_AVX3::VnniByteDot;
  if (block.codebook == nullptr) {
    N_AVX3::ScoreBlock<VnniByteDot, N_AVX3::NibbleFormat>(block, prepared, heads, logits);
  } else {
    N_AVX3::ScoreBlock<VnniByteDot, N_AVX3::CodebookFormat<4>>(block, prepared, heads, logits);
  }
}

void VnniAccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc) {
  using N_AVX3::VnniDot;
  if (block.codebook == nullptr) {
    N_AVX3::AccumulateBlock<VnniDot, N_AVX3::NibbleFormat>(block, weights, heads, acc);
  } else {
    N_AVX3::AccumulateBlock<VnniDot, N_AVX3::CodebookFormat<4>>(block, weights, heads, acc);
  }
}

}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3
