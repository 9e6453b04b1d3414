#include "quant/kernels.h"
#include "quant/kernels_plain.h"
#include "quant/kernels_query.h"
#include "quant/kernels_vnni.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_int8.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/targets.h"
#include "quant/kernels_int_key-inl.h"
#include "quant/kernels_int_value-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
void Int8Score(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  ScoreBlock<MaddDot, Int8Format>(block, prepared, heads, logits);
}
void Int8Accumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  AccumulateBlock<MaddDot, Int8Format>(block, weights, heads, acc);
}
#else
void Int8Score(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScoreInt8(block, prepared, heads, logits);
}
void Int8Accumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulateInt8(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(Int8Score);
HWY_EXPORT(Int8Accumulate);
}  // namespace

void ScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
#if HWY_ARCH_X86
  if (IntQuery(prepared).head->form == QueryForm::kBytes) {
    return VnniScoreInt8(block, prepared, heads, logits);
  }
#endif
  HWY_DYNAMIC_DISPATCH(Int8Score)(block, prepared, heads, logits);
}

void AccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc) {
#if HWY_ARCH_X86
  if (VnniActive()) return VnniAccumulateInt8(block, weights, heads, acc);
#endif
  HWY_DYNAMIC_DISPATCH(Int8Accumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
