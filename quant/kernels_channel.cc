#include "quant/kernels.h"
#include "quant/kernels_plain.h"
#include "quant/kernels_vnni.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_channel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/targets.h"
#include "quant/kernels_channel_key-inl.h"
#include "quant/kernels_channel_value-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
void ChannelScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  if (block.bits == 2) {
    ScoreChannelBlock<ByteDot, CodebookFormat<2>>(block, prepared, heads, logits);
  } else if (block.bits == 3) {
    ScoreChannelBlock<ByteDot, CodebookFormat<3>>(block, prepared, heads, logits);
  } else {
    ScoreChannelBlock<ByteDot, NibbleFormat>(block, prepared, heads, logits);
  }
}
void ChannelAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  if (block.bits == 2) {
    AccumulateChannelBlock<MaddDot, CodebookFormat<2>>(block, weights, heads, acc);
  } else if (block.bits == 3) {
    AccumulateChannelBlock<MaddDot, CodebookFormat<3>>(block, weights, heads, acc);
  } else {
    AccumulateChannelBlock<MaddDot, NibbleFormat>(block, weights, heads, acc);
  }
}
#else
void ChannelScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScoreChannel(block, prepared, heads, logits);
}
void ChannelAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulateChannel(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(ChannelScore);
HWY_EXPORT(ChannelAccumulate);
}  // namespace

void ScoreChannel(const KernelBlock& block, const void* prepared, int heads, float* logits) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniScoreChannel(block, prepared, heads, logits);
#endif
  HWY_DYNAMIC_DISPATCH(ChannelScore)(block, prepared, heads, logits);
}

void AccumulateChannel(const KernelBlock& block, const float* weights, int heads, float* acc) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniAccumulateChannel(block, weights, heads, acc);
#endif
  HWY_DYNAMIC_DISPATCH(ChannelAccumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
