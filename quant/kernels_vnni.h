// Kernels that need AVX-512 VNNI: call them only where VnniActive(). Each is compiled in a unit of
// its own for AVX-512, outside Highway's dispatch, which knows no such target.
#ifndef KVSIEVE_QUANT_KERNELS_VNNI_H_
#define KVSIEVE_QUANT_KERNELS_VNNI_H_

#include "quant/kernels.h"

namespace kvsieve::quant {

void VnniScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits);
void VnniScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits);
void VnniScorePlanes(const KernelBlock& block, const void* prepared, int heads, float* logits);
void VnniScoreChannel(const KernelBlock& block, const void* prepared, int heads, float* logits);

void VnniAccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc);
void VnniAccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc);
void VnniAccumulatePlanes(const KernelBlock& block, const float* weights, int heads, float* acc);
void VnniAccumulateChannel(const KernelBlock& block, const float* weights, int heads, float* acc);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_KERNELS_VNNI_H_
