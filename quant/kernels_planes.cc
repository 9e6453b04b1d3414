#include "quant/kernels.h"
#include "quant/kernels_plain.h"
#include "quant/kernels_vnni.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_planes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/targets.h"
#include "quant/kernels_int_key-inl.h"
#include "quant/kernels_int_value-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
void PlanesScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  if (block.bits == 1) {
    ScoreBlock<ByteDot, CodebookFormat<1>>(block, prepared, heads, logits);
  } else if (block.bits == 2) {
    ScoreBlock<ByteDot, CodebookFormat<2>>(block, prepared, heads, logits);
  } else if (block.bits == 3) {
    ScoreBlock<ByteDot, CodebookFormat<3>>(block, prepared, heads, logits);
  } else {
    ScoreBlock<MaddDot, CodebookFormat<5>>(block, prepared, heads, logits);
  }
}
void PlanesAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  if (block.bits == 1) {
    AccumulateBlock<MaddDot, CodebookFormat<1>>(block, weights, heads, acc);
  } else if (block.bits == 2) {
    AccumulateBlock<MaddDot, CodebookFormat<2>>(block, weights, heads, acc);
  } else if (block.bits == 3) {
    AccumulateBlock<MaddDot, CodebookFormat<3>>(block, weights, heads, acc);
  } else {
    AccumulateBlock<MaddDot, CodebookFormat<5>>(block, weights, heads, acc);
  }
}
#else
void PlanesScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScorePlanes(block, prepared, heads, logits);
}
void PlanesAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulatePlanes(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(PlanesScore);
HWY_EXPORT(PlanesAccumulate);
}  // namespace

void ScorePlanes(const KernelBlock& block, const void* prepared, int heads, float* logits) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniScorePlanes(block, prepared, heads, logits);
#endif
  HWY_DYNAMIC_DISPATCH(PlanesScore)(block, prepared, heads, logits);
}

void AccumulatePlanes(const KernelBlock& block, const float* weights, int heads, float* acc) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniAccumulatePlanes(block, weights, heads, acc);
#endif
  HWY_DYNAMIC_DISPATCH(PlanesAccumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
