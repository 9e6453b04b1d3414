#include "evict/window_kernels.h"

#include <algorithm>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "evict/window_kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "evict/load_rows-inl.h"
#include "evict/tile-inl.h"
#include "kvsieve/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::evict {
namespace HWY_NAMESPACE {

using kvsieve::HWY_NAMESPACE::ExpNonPositive;

// Below every logit; exp(kNothing - top) is 0.
constexpr float kNothing = -3.0e38F;

// cap * tanh(x / cap) within 2e-6 relative for any cap > 0. With y = x / cap:
//   |y| >= 0.3: tanh |y| = (1 - e) / (1 + e), e = exp(-2 |y|) <= 0.55. An error of e relative to it
//     becomes 2 e / (1 - e^2) <= 1.6 times as large.
//   below:      x * (tanh(y) / y), by Taylor to y^8. The next term is below 5.3e-8, nothing
//     cancels, and a y that vanishes leaves x as it is.
HWY_INLINE FloatVec Softcap(FloatTag d, FloatVec x, float cap) {
  const auto y = hn::Div(x, hn::Set(d, cap));
  const auto magnitude = hn::Abs(y);
  const auto one = hn::Set(d, 1.0F);
  const auto e = ExpNonPositive(d, hn::Mul(magnitude, hn::Set(d, -2.0F)));
  const auto tanh = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  const auto large = hn::CopySign(hn::Mul(tanh, hn::Set(d, cap)), x);
  const auto square = hn::Mul(y, y);
  auto ratio = hn::MulAdd(square, hn::Set(d, 62.0F / 2835), hn::Set(d, -17.0F / 315));
  ratio = hn::MulAdd(ratio, square, hn::Set(d, 2.0F / 15));
  ratio = hn::MulAdd(ratio, square, hn::Set(d, -1.0F / 3));
  ratio = hn::MulAdd(ratio, square, one);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.3F)), hn::Mul(x, ratio), large);
}

// Logits [kBlockRows] -> weights in place, of the first `visible` rows.
void SoftmaxRow(float* row, int visible, float softcap, float* top, float* sum) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  if (visible <= 0) {
    std::fill(row, row + kBlockRows, 0.0F);
    *top = kNothing;
    *sum = 0.0F;
    return;
  }
  const auto nothing = hn::Set(d, kNothing);
  const auto end = hn::Set(d, static_cast<float>(visible));
  auto highest = nothing;
  for (std::size_t j = 0; j < kBlockRows; j += lanes) {
    auto x = hn::LoadU(d, row + j);
    if (softcap > 0) x = Softcap(d, x, softcap);
    x = hn::IfThenElse(hn::Lt(hn::Iota(d, static_cast<float>(j)), end), x, nothing);
    highest = hn::Max(highest, x);
    hn::StoreU(x, d, row + j);
  }
  *top = hn::GetLane(hn::MaxOfLanes(d, highest));
  const auto shift = hn::Set(d, *top);
  auto total = hn::Zero(d);
  for (std::size_t j = 0; j < kBlockRows; j += lanes) {
    const auto weight = ExpNonPositive(d, hn::Sub(hn::LoadU(d, row + j), shift));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, row + j);
  }
  *sum = hn::GetLane(hn::SumOfLanes(d, total));
}

// Rows [begin, end) of those ahead. A few at a time: fetched all at once they wait for each other,
// and the hardware does not foresee the order in which LoadPanel reads.
void Prefetch(const RowsAhead& ahead, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kLineBytes = 64;
  const auto element = static_cast<std::int64_t>(ElementBytes(ahead.rows.type));
  const auto* data = static_cast<const std::byte*>(ahead.rows.data);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::byte* line = data + row * ahead.rows.row_stride * element;
    for (std::int64_t i = 0; i < ahead.dim * element; i += kLineBytes) hwy::Prefetch(line + i);
  }
}

void AttendBlock(const WindowQueries& queries, const float* panel, const int* visible,
                 const RowsAhead& ahead, const BlockWeights& out) {
  const std::size_t padded = static_cast<std::size_t>(PaddedQueries(queries.count));
  const auto dim = static_cast<std::size_t>(queries.dim);
  std::fill(out.weights, out.weights + padded * kBlockRows, 0.0F);
  const auto tiles = static_cast<std::int64_t>(padded / 4);
  for (std::size_t q = 0; q < padded; q += 4) {
    const auto tile = static_cast<std::int64_t>(q / 4);
    Prefetch(ahead, tile * ahead.count / tiles, (tile + 1) * ahead.count / tiles);
    AccumulateTile<DotStep>({queries.data + q * dim, dim}, {panel, kBlockRows}, dim,
                            out.weights + q * kBlockRows, kBlockRows);
  }
  for (int q = 0; q < queries.count; ++q) {
    SoftmaxRow(out.weights + q * kBlockRows, visible[q], queries.softcap, out.top + q, out.sum + q);
  }
  for (int q = queries.count; q < QueryStride(queries.count); ++q) {
    out.top[q] = kNothing;
    out.sum[q] = 0.0F;
  }
  std::fill(out.weights + static_cast<std::size_t>(queries.count) * kBlockRows,
            out.weights + padded * kBlockRows, 0.0F);
}

void FinishSoftmax(const float* tops, const float* sums, std::int64_t blocks, int count,
                   float* maximum, float* inverse_sum) {
  const FloatTag d;
  const int stride = QueryStride(count);
  for (int q = 0; q < stride; q += static_cast<int>(hn::Lanes(d))) {
    auto highest = hn::Set(d, kNothing);
    for (std::int64_t b = 0; b < blocks; ++b) {
      highest = hn::Max(highest, hn::LoadU(d, tops + b * stride + q));
    }
    auto total = hn::Zero(d);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto top = hn::LoadU(d, tops + b * stride + q);
      const auto sum = hn::LoadU(d, sums + b * stride + q);
      total = hn::MulAdd(sum, ExpNonPositive(d, hn::Sub(top, highest)), total);
    }
    hn::StoreU(highest, d, maximum + q);
    const auto inverse = hn::Div(hn::Set(d, 1.0F), total);
    hn::StoreU(hn::IfThenElseZero(hn::Gt(total, hn::Zero(d)), inverse), d, inverse_sum + q);
  }
}

void BlockFactors(const float* top, const float* maximum, const float* inverse_sum, int count,
                  float* factors) {
  const FloatTag d;
  for (int q = 0; q < QueryStride(count); q += static_cast<int>(hn::Lanes(d))) {
    const auto below = hn::Sub(hn::LoadU(d, top + q), hn::LoadU(d, maximum + q));
    hn::StoreU(hn::Mul(ExpNonPositive(d, below), hn::LoadU(d, inverse_sum + q)), d, factors + q);
  }
}

// One more query's weights of one vector of rows.
HWY_INLINE FloatVec ReduceStep(Reduce reduce, FloatVec weight, FloatVec factor, FloatVec reduced) {
  return reduce == Reduce::kMax ? hn::Max(reduced, hn::Mul(weight, factor))
                                : hn::MulAdd(weight, factor, reduced);
}

void ReduceAttention(const float* weights, const float* factors, int count, Reduce reduce,
                     float* out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  // Four vectors at once: weights come from far, and are read in long runs.
  for (std::size_t j = 0; j < kBlockRows; j += 4 * lanes) {
    auto r0 = hn::Zero(d);
    auto r1 = r0;
    auto r2 = r0;
    auto r3 = r0;
    for (int q = 0; q < count; ++q) {
      const float* row = weights + q * kBlockRows + j;
      const auto factor = hn::Set(d, factors[q]);
      r0 = ReduceStep(reduce, hn::LoadU(d, row), factor, r0);
      r1 = ReduceStep(reduce, hn::LoadU(d, row + lanes), factor, r1);
      r2 = ReduceStep(reduce, hn::LoadU(d, row + 2 * lanes), factor, r2);
      r3 = ReduceStep(reduce, hn::LoadU(d, row + 3 * lanes), factor, r3);
    }
    hn::StoreU(r0, d, out + j);
    hn::StoreU(r1, d, out + j + lanes);
    hn::StoreU(r2, d, out + j + 2 * lanes);
    hn::StoreU(r3, d, out + j + 3 * lanes);
  }
}

void LoadPanel(const RowSource::RowMajor& rows, int dim, int count, float* panel) {
  switch (rows.type) {
    case ElementType::kF32:
      return TransposeRows(static_cast<const float*>(rows.data), rows.row_stride, dim, count,
                           panel);
    case ElementType::kF16:
      return TransposeRows(static_cast<const F16*>(rows.data), rows.row_stride, dim, count, panel);
    case ElementType::kBF16:
      return TransposeRows(static_cast<const BF16*>(rows.data), rows.row_stride, dim, count, panel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::evict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::evict {

HWY_EXPORT(AttendBlock);
HWY_EXPORT(FinishSoftmax);
HWY_EXPORT(BlockFactors);
HWY_EXPORT(ReduceAttention);
HWY_EXPORT(LoadPanel);

void LoadPanel(const RowSource::RowMajor& rows, int dim, int count, float* panel) {
  HWY_DYNAMIC_DISPATCH(LoadPanel)(rows, dim, count, panel);
}

void AttendBlock(const WindowQueries& queries, const float* panel, const int* visible,
                 const RowsAhead& ahead, const BlockWeights& out) {
  HWY_DYNAMIC_DISPATCH(AttendBlock)(queries, panel, visible, ahead, out);
}

void FinishSoftmax(const float* tops, const float* sums, std::int64_t blocks, int count,
                   float* maximum, float* inverse_sum) {
  HWY_DYNAMIC_DISPATCH(FinishSoftmax)(tops, sums, blocks, count, maximum, inverse_sum);
}

void BlockFactors(const float* top, const float* maximum, const float* inverse_sum, int count,
                  float* factors) {
  HWY_DYNAMIC_DISPATCH(BlockFactors)(top, maximum, inverse_sum, count, factors);
}

void ReduceAttention(const float* weights, const float* factors, int count, Reduce reduce,
                     float* out) {
  HWY_DYNAMIC_DISPATCH(ReduceAttention)(weights, factors, count, reduce, out);
}

}  // namespace kvsieve::evict
#endif  // HWY_ONCE
