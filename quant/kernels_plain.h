// The kernels in plain C++, for CPUs without AVX2. Same blocks, same prepared queries (never
// QueryForm::kBytes there), same bounds.
#ifndef KVSIEVE_QUANT_KERNELS_PLAIN_H_
#define KVSIEVE_QUANT_KERNELS_PLAIN_H_

#include "quant/kernels.h"

namespace kvsieve::quant {

void PlainScoreHalf(const KernelBlock& block, const void* prepared, int heads, float* logits);
void PlainScoreFp8(const KernelBlock& block, const void* prepared, int heads, float* logits);
void PlainScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits);
void PlainScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits);
void PlainScorePlanes(const KernelBlock& block, const void* prepared, int heads, float* logits);
void PlainScoreChannel(const KernelBlock& block, const void* prepared, int heads, float* logits);

void PlainAccumulateHalf(const KernelBlock& block, const float* weights, int heads, float* acc);
void PlainAccumulateFp8(const KernelBlock& block, const float* weights, int heads, float* acc);
void PlainAccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc);
void PlainAccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc);
void PlainAccumulatePlanes(const KernelBlock& block, const float* weights, int heads, float* acc);
void PlainAccumulateChannel(const KernelBlock& block, const float* weights, int heads, float* acc);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_KERNELS_PLAIN_H_
