// One block through the fused kernels, against plain double sums over the same codes.
#ifndef KVSIEVE_TESTS_QUANT_KERNELS_KERNEL_CHECKS_H_
#define KVSIEVE_TESTS_QUANT_KERNELS_KERNEL_CHECKS_H_

#include <cstddef>
#include <random>
#include <vector>

#include "block_fixture.h"

namespace kvsieve::quant {

std::vector<float> RandomFloats(std::size_t count, float low, float high, std::mt19937& random);

// The kernels of the block's format; q [heads, dim], the rest as in quant/kernels.h.
void Score(const TestBlock& block, const float* q, int heads, float* logits);
void Accumulate(const TestBlock& block, const float* weights, int heads, float* acc);

void ExpectScoresMatch(const TestBlock& block, const std::vector<float>& q, int heads);
void ExpectSumsMatch(const TestBlock& block, const std::vector<float>& weights, int heads);
// A random block of this shape, scores or sums by its side.
void ExpectBlockMatches(const Shape& shape, int heads, std::mt19937& random);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_TESTS_QUANT_KERNELS_KERNEL_CHECKS_H_
