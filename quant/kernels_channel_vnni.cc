#include "quant/kernels_vnni.h"

// AVX-512 only.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_channel_vnni.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/kernels_channel_key-inl.h"
#include "quant/kernels_channel_value-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {

void VnniScoreChannel(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  using N_AVX3::VnniByteDot;
  if (block.bits == 2) {
    N_AVX3::ScoreChannelBlock<VnniByteDot, N_AVX3::CodebookFormat<2>>(block, prepared, heads,
                                                                      logits);
  } else if (block.bits == 3) {
    N_AVX3::ScoreChannelBlock<VnniByteDot, N_AVX3::CodebookFormat<3>>(block, prepared, heads,
                                                                      logits);
  } else {
    N_AVX3::ScoreChannelBlock<VnniByteDot, N_AVX3::NibbleFormat>(block, prepared, heads, logits);
  }
}

void VnniAccumulateChannel(const KernelBlock& block, const float* weights, int heads, float* acc) {
  using N_AVX3::VnniDot;
  if (block.bits == 2) {
    N_AVX3::AccumulateChannelBlock<VnniDot, N_AVX3::CodebookFormat<2>>(block, weights, heads, acc);
  } else if (block.bits == 3) {
    N_AVX3::AccumulateChannelBlock<VnniDot, N_AVX3::CodebookFormat<3>>(block, weights, heads, acc);
  } else {
    N_AVX3::AccumulateChannelBlock<VnniDot, N_AVX3::NibbleFormat>(block, weights, heads, acc);
  }
}

}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3
