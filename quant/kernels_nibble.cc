#include <algorithm>

#include "quant/kernels.h"
#include "quant/kernels_plain.h"
#include "quant/kernels_query.h"
#include "quant/kernels_vnni.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_nibble.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/targets.h"
#include "quant/kernels_int_key-inl.h"
#include "quant/kernels_int_value-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_INLINE bool LevelsLieWithin15(const Codebook& codebook) {
  const auto [least, most] = std::minmax_element(codebook.level, codebook.level + 16);
  return *most - *least <= 15;
}

void NibbleScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  const bool small = block.group <= kSmallGroup;
  if (block.codebook == nullptr && small) {
    ScoreBlock<SmallByteDot, NibbleFormat>(block, prepared, heads, logits);
  } else if (block.codebook == nullptr) {
    ScoreBlock<ByteDot, NibbleFormat>(block, prepared, heads, logits);
  } else if (small && LevelsLieWithin15(*block.codebook)) {
    ScoreBlock<SmallByteDot, CodebookFormat<4>>(block, prepared, heads, logits);
  } else {
    ScoreBlock<ByteDot, CodebookFormat<4>>(block, prepared, heads, logits);
  }
}
void NibbleAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  if (block.codebook == nullptr) {
    AccumulateBlock<MaddDot, NibbleFormat>(block, weights, heads, acc);
  } else {
    AccumulateBlock<MaddDot, CodebookFormat<4>>(block, weights, heads, acc);
  }
}
#else
void NibbleScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScoreNibble(block, prepared, heads, logits);
}
void NibbleAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulateNibble(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(NibbleScore);
HWY_EXPORT(NibbleAccumulate);
}  // namespace

void ScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniScoreNibble(block, prepared, heads, logits);
#endif
  HWY_DYNAMIC_DISPATCH(NibbleScore)(block, prepared, heads, logits);
}

void AccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniAccumulateNibble(block, weights, heads, acc);
#endif
  HWY_DYNAMIC_DISPATCH(NibbleAccumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
