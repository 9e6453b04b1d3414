// The softmax half of attention over one block, online: running maximum and sum per query head,
// the accumulator rescaled when the maximum rises.
#ifndef KVSIEVE_LIB_SOFTMAX_H_
#define KVSIEVE_LIB_SOFTMAX_H_

#include <cstdint>

#include "kvsieve/types.h"

namespace kvsieve {

// Query heads of one tile and what they have seen so far.
struct SoftmaxState {
  int heads = 0;
  float* max = nullptr;  // [heads], starts at -inf
  float* sum = nullptr;  // [heads], of exp(logit - max)
  float* acc = nullptr;  // [heads, acc_stride], of exp(logit - max) * v
  int acc_stride = 0;    // a multiple of 16
};

// logits [heads, kBlockRows]: q.k of rows [0, rows), replaced by weights exp(x - max), where
// x = logit + bias[head], softcapped when softcap > 0; 0 for rows that are not visible and from
// `rows` on. Bit r of `visible` stands for row r.
void UpdateSoftmax(float* logits, const float* bias, int rows, std::uint64_t visible, float softcap,
                   const SoftmaxState& state);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SOFTMAX_H_
