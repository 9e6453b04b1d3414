// The Lloyd-Max quantizer of one coordinate of a random unit vector: the scalar codebook of
// TurboQuant (arXiv 2504.19874), for the exact dimension instead of its Gaussian limit.
#ifndef KVSIEVE_QUANT_LLOYD_MAX_H_
#define KVSIEVE_QUANT_LLOYD_MAX_H_

namespace kvsieve::quant {

inline constexpr int kMaxTurboBits = 5;

// Symmetric about 0, ascending, in unit-sphere coordinates (about 1/sqrt(dim) wide).
struct LloydMaxCodebook {
  int levels = 0;                                   // 2^bits
  float centroids[1 << kMaxTurboBits] = {};         // [levels]
  float thresholds[(1 << kMaxTurboBits) - 1] = {};  // [levels - 1]; a tie belongs to the upper cell
};

// bits 1..5, dim 16..4096. Uses only +, -, *, / and sqrt in f64, which IEEE 754 rounds the same
// way everywhere, so the codebook has the same bits on every machine.
LloydMaxCodebook SolveLloydMax(int bits, int dim);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_LLOYD_MAX_H_
