// The portable loops over xsimd batches of one architecture.
#ifndef KVSIEVE_QUANT_PORTABLE_INL_H_
#define KVSIEVE_QUANT_PORTABLE_INL_H_

#include <xsimd/xsimd.hpp>

#include "quant/portable_kernels.h"

namespace kvsieve::quant {

// Equal to kBlockRows and AccumulatorStride, which live in headers that these files leave out.
inline constexpr int kLogitStride = 64;
constexpr int AccStride(int dim) { return (dim + 15) / 16 * 16; }

template <class Arch, int kHeads>
struct PortableTile {
  using Batch = xsimd::batch<float, Arch>;
  static constexpr int kLanes = static_cast<int>(Batch::size);

  // Two rows at a time: each query batch is loaded once for both, and twice as many partial sums
  // hide the latency of the multiply-adds.
  static void Score(const PortableRows& rows, const float* q, float* logits) {
    int r = 0;
    for (; r + 2 <= rows.count; r += 2) ScoreRows<2>(rows, r, q, logits + r);
    for (; r < rows.count; ++r) ScoreRows<1>(rows, r, q, logits + r);
  }

  template <int kRows>
  static void ScoreRows(const PortableRows& all, int first, const float* q, float* logits) {
    const int dim = all.dim;
    const int stride = all.stride;
    const float* rows = all.data + first * stride;
    Batch sums[kRows][kHeads];
    for (int i = 0; i < kRows; ++i) {
      for (int h = 0; h < kHeads; ++h) sums[i][h] = Batch(0.0F);
    }
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      for (int h = 0; h < kHeads; ++h) {
        const Batch query = Batch::load_unaligned(q + h * dim + d);
        for (int i = 0; i < kRows; ++i) {
          sums[i][h] = xsimd::fma(query, Batch::load_unaligned(rows + i * stride + d), sums[i][h]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int h = 0; h < kHeads; ++h) {
        float sum = xsimd::hadd(sums[i][h]);
        for (int rest = d; rest < dim; ++rest) sum += q[h * dim + rest] * rows[i * stride + rest];
        logits[h * kLogitStride + i] = sum;
      }
    }
  }

  static void Accumulate(const PortableRows& rows, const float* weights, float* acc) {
    const int dim = rows.dim;
    int d = 0;
    for (; d + 2 * kLanes <= dim; d += 2 * kLanes) AccumulateDims<2>(rows, d, weights, acc + d);
    for (; d + kLanes <= dim; d += kLanes) AccumulateDims<1>(rows, d, weights, acc + d);
    for (; d < dim; ++d) {
      for (int h = 0; h < kHeads; ++h) {
        float sum = acc[h * AccStride(dim) + d];
        for (int r = 0; r < rows.count; ++r) {
          sum += weights[h * kLogitStride + r] * rows.data[r * rows.stride + d];
        }
        acc[h * AccStride(dim) + d] = sum;
      }
    }
  }

  template <int kBatches>
  static void AccumulateDims(const PortableRows& rows, int first_dim, const float* weights,
                             float* acc) {
    const int stride = AccStride(rows.dim);
    Batch sums[kHeads][kBatches];
    for (int h = 0; h < kHeads; ++h) {
      for (int b = 0; b < kBatches; ++b) {
        sums[h][b] = Batch::load_unaligned(acc + h * stride + b * kLanes);
      }
    }
    const float* from = rows.data + first_dim;
    for (int r = 0; r < rows.count; ++r, from += rows.stride) {
      for (int b = 0; b < kBatches; ++b) {
        const Batch row = Batch::load_unaligned(from + b * kLanes);
        for (int h = 0; h < kHeads; ++h) {
          sums[h][b] = xsimd::fma(Batch(weights[h * kLogitStride + r]), row, sums[h][b]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int b = 0; b < kBatches; ++b) sums[h][b].store_unaligned(acc + h * stride + b * kLanes);
    }
  }
};

template <class Arch>
void ScoreOn(const PortableRows& rows, const float* q, int heads, float* logits) {
  switch (heads) {
    case 1:
      return PortableTile<Arch, 1>::Score(rows, q, logits);
    case 2:
      return PortableTile<Arch, 2>::Score(rows, q, logits);
    case 3:
      return PortableTile<Arch, 3>::Score(rows, q, logits);
    default:
      return PortableTile<Arch, 4>::Score(rows, q, logits);
  }
}

template <class Arch>
void AccumulateOn(const PortableRows& rows, const float* weights, int heads, float* acc) {
  switch (heads) {
    case 1:
      return PortableTile<Arch, 1>::Accumulate(rows, weights, acc);
    case 2:
      return PortableTile<Arch, 2>::Accumulate(rows, weights, acc);
    case 3:
      return PortableTile<Arch, 3>::Accumulate(rows, weights, acc);
    default:
      return PortableTile<Arch, 4>::Accumulate(rows, weights, acc);
  }
}

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_PORTABLE_INL_H_
