#include "evict/row_kernels.h"

#include <algorithm>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "evict/row_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "evict/tile-inl.h"
#include "kvsieve/simd/exp-inl.h"
#include "kvsieve/types.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::evict {
namespace HWY_NAMESPACE {

using kvsieve::HWY_NAMESPACE::ExpNonPositive;

// Four neighbouring vectors of a line of the panel: as many independent chains. 64 columns are a
// multiple of four vectors on every target.
HWY_INLINE FourRows LoadColumns(FloatTag d, const float* line) {
  return LoadFour(d, line, hn::Lanes(d));
}

HWY_INLINE void StoreColumns(FloatTag d, const FourRows& columns, float* out) {
  StoreFour(d, columns, out, hn::Lanes(d));
}

HWY_INLINE FourRows NoColumns(FloatTag d) {
  return {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
}

HWY_INLINE void AddSquares(const FourRows& x, FourRows& sums) {
  sums.r0 = hn::MulAdd(x.r0, x.r0, sums.r0);
  sums.r1 = hn::MulAdd(x.r1, x.r1, sums.r1);
  sums.r2 = hn::MulAdd(x.r2, x.r2, sums.r2);
  sums.r3 = hn::MulAdd(x.r3, x.r3, sums.r3);
}

void ColumnNorms(const float* panel, int dim, float* out) {
  const FloatTag d;
  for (std::size_t j = 0; j < kBlockRows; j += 4 * hn::Lanes(d)) {
    FourRows sums = NoColumns(d);
    for (int k = 0; k < dim; ++k) AddSquares(LoadColumns(d, panel + k * kBlockRows + j), sums);
    StoreColumns(d, {hn::Sqrt(sums.r0), hn::Sqrt(sums.r1), hn::Sqrt(sums.r2), hn::Sqrt(sums.r3)},
                 out + j);
  }
}

void ColumnDots(const float* panel, int dim, const float* vector, float* out) {
  const FloatTag d;
  for (std::size_t j = 0; j < kBlockRows; j += 4 * hn::Lanes(d)) {
    FourRows sums = NoColumns(d);
    for (int k = 0; k < dim; ++k) {
      sums.Add<DotStep>(LoadColumns(d, panel + k * kBlockRows + j), hn::Set(d, vector[k]));
    }
    StoreColumns(d, sums, out + j);
  }
}

void WeightedRowSum(const float* panel, int dim, const float* weights, float* sums) {
  const FloatTag d;
  for (int k = 0; k < dim; ++k) {
    auto sum = hn::Zero(d);
    for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
      sum = hn::MulAdd(hn::LoadU(d, panel + k * kBlockRows + j), hn::LoadU(d, weights + j), sum);
    }
    sums[k] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

void WidenRange(const float* panel, int dim, int count, float* low, float* high) {
  const FloatTag d;
  const auto end = hn::Set(d, static_cast<float>(count));
  for (int k = 0; k < dim; ++k) {
    auto least = hn::Set(d, low[k]);
    auto most = hn::Set(d, high[k]);
    for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, panel + k * kBlockRows + j);
      const auto is_row = hn::Lt(hn::Iota(d, static_cast<float>(j)), end);
      least = hn::IfThenElse(is_row, hn::Min(least, x), least);
      most = hn::IfThenElse(is_row, hn::Max(most, x), most);
    }
    low[k] = hn::GetLane(hn::MinOfLanes(d, least));
    high[k] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
}

// (x - low) / range
HWY_INLINE FloatVec Normalised(FloatTag d, const float* x, float low, float inverse_range) {
  return hn::Mul(hn::Sub(hn::LoadU(d, x), hn::Set(d, low)), hn::Set(d, inverse_range));
}

// The mean first: one pass over squares would cancel when the mean is large.
void ColumnDeviations(const float* panel, int dim, const float* low, const float* inverse_range,
                      float* out) {
  const FloatTag d;
  const auto largest = hn::Set(d, kMaxDeviation);
  const auto inverse_dim = hn::Set(d, 1.0F / static_cast<float>(dim));
  const auto inverse_divisor = hn::Set(d, 1.0F / static_cast<float>(std::max(1, dim - 1)));
  for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (int k = 0; k < dim; ++k) {
      sum = hn::Add(sum, Normalised(d, panel + k * kBlockRows + j, low[k], inverse_range[k]));
    }
    const auto mean = hn::Mul(sum, inverse_dim);
    auto squares = hn::Zero(d);
    for (int k = 0; k < dim; ++k) {
      const auto x = Normalised(d, panel + k * kBlockRows + j, low[k], inverse_range[k]);
      const auto off = hn::Sub(x, mean);
      squares = hn::MulAdd(off, off, squares);
    }
    const auto deviation = hn::Sqrt(hn::Mul(squares, inverse_divisor));
    const auto fits = hn::Lt(deviation, largest);  // false for NaN
    hn::StoreU(hn::IfThenElse(fits, deviation, largest), d, out + j);
  }
}

HWY_INLINE FloatVec LoadDot(FloatTag d, const float* from) {
  return hn::Clamp(hn::LoadU(d, from), hn::Set(d, -kMaxDot), hn::Set(d, kMaxDot));
}

void ExpectedLogits(const WindowQueries& queries, const float* panel, float* dots, float* out) {
  const FloatTag d;
  const auto padded = static_cast<std::size_t>(PaddedQueries(queries.count));
  const auto dim = static_cast<std::size_t>(queries.dim);
  std::fill(dots, dots + padded * kBlockRows, 0.0F);
  for (std::size_t q = 0; q < padded; q += 4) {
    AccumulateTile<DotStep>({queries.data + q * dim, dim}, {panel, kBlockRows}, dim,
                            dots + q * kBlockRows, kBlockRows);
  }
  const auto half = hn::Set(d, 0.5F / static_cast<float>(std::max(1, queries.count - 1)));
  for (std::size_t j = 0; j < kBlockRows; j += hn::Lanes(d)) {
    auto squares = hn::Zero(d);
    for (int q = 1; q < queries.count; ++q) {
      const auto dot = LoadDot(d, dots + q * kBlockRows + j);
      squares = hn::MulAdd(dot, dot, squares);
    }
    hn::StoreU(hn::MulAdd(squares, half, LoadDot(d, dots + j)), d, out + j);
  }
}

// The sum has one order whatever the vector length: values one by one, in f64.
double ExpBelow(float top, std::int64_t count, float* values) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, top);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(ExpNonPositive(d, hn::Sub(hn::LoadU(d, values + i), shift)), d, values + i);
  }
  const hn::CappedTag<float, 1> one;
  for (; i < count; ++i) {
    hn::StoreU(ExpNonPositive(one, hn::Sub(hn::LoadU(one, values + i), hn::Set(one, top))), one,
               values + i);
  }
  double sum = 0;
  for (i = 0; i < count; ++i) sum += values[i];
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::evict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::evict {

HWY_EXPORT(ColumnNorms);
HWY_EXPORT(ColumnDots);
HWY_EXPORT(WeightedRowSum);
HWY_EXPORT(WidenRange);
HWY_EXPORT(ColumnDeviations);
HWY_EXPORT(ExpectedLogits);
HWY_EXPORT(ExpBelow);

void ColumnNorms(const float* panel, int dim, float* out) {
  HWY_DYNAMIC_DISPATCH(ColumnNorms)(panel, dim, out);
}

void ColumnDots(const float* panel, int dim, const float* vector, float* out) {
  HWY_DYNAMIC_DISPATCH(ColumnDots)(panel, dim, vector, out);
}

void WeightedRowSum(const float* panel, int dim, const float* weights, float* sums) {
  HWY_DYNAMIC_DISPATCH(WeightedRowSum)(panel, dim, weights, sums);
}

void WidenRange(const float* panel, int dim, int count, float* low, float* high) {
  HWY_DYNAMIC_DISPATCH(WidenRange)(panel, dim, count, low, high);
}

void ColumnDeviations(const float* panel, int dim, const float* low, const float* inverse_range,
                      float* out) {
  HWY_DYNAMIC_DISPATCH(ColumnDeviations)(panel, dim, low, inverse_range, out);
}

void ExpectedLogits(const WindowQueries& queries, const float* panel, float* dots, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpectedLogits)(queries, panel, dots, out);
}

double ExpBelow(float top, std::int64_t count, float* values) {
  return HWY_DYNAMIC_DISPATCH(ExpBelow)(top, count, values);
}

}  // namespace kvsieve::evict
#endif  // HWY_ONCE
