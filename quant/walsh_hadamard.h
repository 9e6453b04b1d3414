// The fast Walsh-Hadamard transform of f32 rows.
#ifndef KVSIEVE_QUANT_WALSH_HADAMARD_H_
#define KVSIEVE_QUANT_WALSH_HADAMARD_H_

namespace kvsieve::quant {

// Multiplies by `before` [dim], runs the unnormalised transform on each block of `block` elements
// (a power of two that divides dim), multiplies by `after` [dim].
struct BlockTransform {
  int block;
  const float* before;
  const float* after;
};

// In place, rows f32 [count, dim]. Butterflies of distance 1, 2, 4, ... in this order: every output
// is one fixed tree of f32 additions, so any vector width gives the same bits.
void WalshHadamard(const BlockTransform& transform, float* rows, int count, int dim);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_WALSH_HADAMARD_H_
