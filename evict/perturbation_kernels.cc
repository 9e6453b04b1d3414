// The part of evict/window_kernels.h that looks at values: output_perturbation and waterfill.
#include <algorithm>
#include <cstddef>

#include "evict/window_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "evict/perturbation_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "evict/load_rows-inl.h"
#include "evict/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::evict {
namespace HWY_NAMESPACE {

void Probabilities(const float* weights, const float* factors, int count, float* probabilities) {
  const FloatTag d;
  for (int q = 0; q < PaddedQueries(count); ++q) {
    const auto factor = hn::Set(d, factors[q]);
    for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
      const std::size_t at = static_cast<std::size_t>(q) * kBlockRows + j;
      hn::StoreU(hn::Mul(hn::LoadU(d, weights + at), factor), d, probabilities + at);
    }
  }
}

void AddOutputs(const float* probabilities, int queries, const float* rows, int dim, int row_count,
                float* outputs) {
  const auto stride = static_cast<std::size_t>(ValueStride(dim));
  for (std::size_t q = 0; q < static_cast<std::size_t>(PaddedQueries(queries)); q += 4) {
    for (std::size_t k = 0; k < stride; k += kBlockRows) {
      AccumulateTile<DotStep>({probabilities + q * kBlockRows, kBlockRows}, {rows + k, stride},
                              static_cast<std::size_t>(row_count), outputs + q * stride + k,
                              stride);
    }
  }
}

void AddAlongDiagonals(const BlockOutputs& block, int first, float* out) {
  const FloatTag d;
  const auto from = hn::Set(d, static_cast<float>(first));
  for (int q = 0; q < block.queries; ++q) {
    float* diagonal = out + (block.queries - 1 - q);
    for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
      const std::size_t at = static_cast<std::size_t>(q) * kBlockRows + j;
      const auto p = hn::LoadU(d, block.probabilities + at);
      const auto moved = hn::Mul(p, hn::Sqrt(hn::LoadU(d, block.distances + at)));
      const auto lends = hn::Ge(hn::Iota(d, static_cast<float>(j)), from);
      hn::StoreU(hn::Add(hn::LoadU(d, diagonal + j), hn::IfThenElseZero(lends, moved)), d,
                 diagonal + j);
    }
  }
}

// |output - v|^2 of every query and row.
void SquaredDistances(const BlockOutputs& block) {
  const auto padded = static_cast<std::size_t>(PaddedQueries(block.queries));
  const auto stride = static_cast<std::size_t>(ValueStride(block.dim));
  std::fill(block.distances, block.distances + padded * kBlockRows, 0.0F);
  for (std::size_t q = 0; q < padded; q += 4) {
    AccumulateTile<DistanceStep>({block.outputs + q * stride, stride}, {block.panel, kBlockRows},
                                 static_cast<std::size_t>(block.dim),
                                 block.distances + q * kBlockRows, kBlockRows);
  }
}

// p / (1 - p)
HWY_INLINE FloatVec Odds(FloatTag d, FloatVec p) {
  const auto clamped = hn::Min(p, hn::Set(d, kMaxWeight));
  return hn::Div(clamped, hn::Sub(hn::Set(d, 1.0F), clamped));
}

// |v|^2 of the rows [j, j + lanes) of a block.
HWY_INLINE FloatVec SquaredLengths(FloatTag d, const BlockOutputs& block, std::size_t j) {
  auto length = hn::Zero(d);
  for (int k = 0; k < block.dim; ++k) {
    const auto v = hn::LoadU(d, block.panel + k * kBlockRows + j);
    length = hn::MulAdd(v, v, length);
  }
  return length;
}

// |o' - o|^2 where the row goes. Of a row that has all of the weight, as far as f32 tells, o is v
// itself and says nothing of the others: v is what is lost.
HWY_INLINE FloatVec SquaredMove(FloatTag d, FloatVec p, FloatVec distance, FloatVec length) {
  const auto odds = Odds(d, p);
  const auto alone = hn::Ge(p, hn::Set(d, kMaxWeight));
  return hn::IfThenElse(alone, length, hn::Mul(hn::Mul(odds, odds), distance));
}

void ReducePerturbation(const BlockOutputs& block, Reduce reduce, float* out) {
  const FloatTag d;
  SquaredDistances(block);
  for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
    const auto length = SquaredLengths(d, block, j);
    auto reduced = hn::Zero(d);
    for (int q = 0; q < block.queries; ++q) {
      const std::size_t at = static_cast<std::size_t>(q) * kBlockRows + j;
      const auto p = hn::LoadU(d, block.probabilities + at);
      const auto moved = hn::Sqrt(SquaredMove(d, p, hn::LoadU(d, block.distances + at), length));
      reduced = reduce == Reduce::kMax ? hn::Max(reduced, moved) : hn::Add(reduced, moved);
    }
    hn::StoreU(reduced, d, out + j);
  }
}

void ReduceLosses(const BlockOutputs& block, float* out) {
  const FloatTag d;
  SquaredDistances(block);
  for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
    const auto length = SquaredLengths(d, block, j);
    auto squares = hn::Zero(d);
    auto logit = hn::Zero(d);
    auto drop = hn::Zero(d);
    for (int q = 0; q < block.queries; ++q) {
      const std::size_t at = static_cast<std::size_t>(q) * kBlockRows + j;
      const auto p = hn::LoadU(d, block.probabilities + at);
      const auto distance = hn::LoadU(d, block.distances + at);
      const auto square = hn::Mul(p, p);
      squares = hn::Add(squares, square);
      logit = hn::MulAdd(square, distance, logit);
      drop = hn::Add(drop, SquaredMove(d, p, distance, length));
    }
    hn::StoreU(logit, d, out + kLogitLoss * kBlockRows + j);
    hn::StoreU(hn::Mul(squares, length), d, out + kValueLoss * kBlockRows + j);
    hn::StoreU(drop, d, out + kDropLoss * kBlockRows + j);
  }
}

void LoadRows(const RowSource::RowMajor& rows, int dim, int count, float* out) {
  const int stride = ValueStride(dim);
  switch (rows.type) {
    case ElementType::kF32:
      return ConvertRows(static_cast<const float*>(rows.data), rows.row_stride, dim, count, out,
                         stride);
    case ElementType::kF16:
      return ConvertRows(static_cast<const F16*>(rows.data), rows.row_stride, dim, count, out,
                         stride);
    case ElementType::kBF16:
      return ConvertRows(static_cast<const BF16*>(rows.data), rows.row_stride, dim, count, out,
                         stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::evict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::evict {

HWY_EXPORT(Probabilities);
HWY_EXPORT(AddOutputs);
HWY_EXPORT(ReducePerturbation);
HWY_EXPORT(ReduceLosses);
HWY_EXPORT(AddAlongDiagonals);
HWY_EXPORT(LoadRows);

void LoadRows(const RowSource::RowMajor& rows, int dim, int count, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadRows)(rows, dim, count, out);
}

void Probabilities(const float* weights, const float* factors, int count, float* probabilities) {
  HWY_DYNAMIC_DISPATCH(Probabilities)(weights, factors, count, probabilities);
}

void AddOutputs(const float* probabilities, int queries, const float* rows, int dim, int row_count,
                float* outputs) {
  HWY_DYNAMIC_DISPATCH(AddOutputs)(probabilities, queries, rows, dim, row_count, outputs);
}

void ReducePerturbation(const BlockOutputs& block, Reduce reduce, float* out) {
  HWY_DYNAMIC_DISPATCH(ReducePerturbation)(block, reduce, out);
}

void ReduceLosses(const BlockOutputs& block, float* out) {
  HWY_DYNAMIC_DISPATCH(ReduceLosses)(block, out);
}

void AddAlongDiagonals(const BlockOutputs& block, int first, float* out) {
  HWY_DYNAMIC_DISPATCH(AddAlongDiagonals)(block, first, out);
}

}  // namespace kvsieve::evict
#endif  // HWY_ONCE
