// The portable path: f32 dot products and weighted sums over rows that are already f32, written
// in xsimd and dispatched once per call to AVX-512, AVX2 or the build's baseline (ActiveTarget()
// decides, as for the fused kernels). Serves exact rows, and any codec that has only Decode.
//
// Sums are f32 in several partial sums; for n terms the error is at most (n / 4 + 6) * 2^-24 of
// the sum of magnitudes, usually far less.
#ifndef KVSIEVE_QUANT_PORTABLE_H_
#define KVSIEVE_QUANT_PORTABLE_H_

#include <cstddef>

#include "kvsieve/codec.h"
#include "quant/portable_kernels.h"

namespace kvsieve::quant {

// q f32 [heads, dim], 1 <= heads <= kHeadTile, at most kBlockRows rows.
// logits [heads, kBlockRows]: writes q.row for those rows.
void PortableScore(const PortableRows& rows, const float* q, int heads, float* logits);

// acc [heads, AccumulatorStride(dim)] += sum over rows of weights[head][row] * row; weights
// [heads, kBlockRows].
void PortableAccumulate(const PortableRows& rows, const float* weights, int heads, float* acc);

// Score and Accumulate of a codec without fused kernels: decodes some rows at a time to the
// stack. The prepared queries are f32 [heads, dim].
std::size_t PortableQueryBytes(int dim);
void PreparePortableQueries(const float* q, int heads, int dim, void* prepared);
void ScoreDecoded(const Codec& codec, const float* stats, const void* prepared, int heads,
                  ConstBlockRef block, int rows, float* logits);
void AccumulateDecoded(const Codec& codec, const float* stats, const float* weights, int heads,
                       ConstBlockRef block, int rows, float* acc);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_PORTABLE_H_
