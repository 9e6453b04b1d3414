#include "quant/turbo_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/turbo_codes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kSumLanes = 8;

// Sum of squares in f64: element j goes to partial sum j % 8, which are then added pairwise. A
// square of an f32 number is exact in f64, so a multiply-add rounds as an addition does.
HWY_INLINE double SumSquaresOf(const float* row, int dim) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::FixedTag<double, 4> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  auto low = hn::Zero(d64);
  auto high = hn::Zero(d64);
  for (int j = 0; j < dim; j += kSumLanes) {
    const auto x_low = hn::PromoteTo(d64, hn::LoadU(d32, row + j));
    const auto x_high = hn::PromoteTo(d64, hn::LoadU(d32, row + j + kSumLanes / 2));
    low = hn::MulAdd(x_low, x_low, low);
    high = hn::MulAdd(x_high, x_high, high);
  }
  alignas(32) double sums[kSumLanes / 2];
  hn::Store(hn::Add(low, high), d64, sums);
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
#else
  double sums[kSumLanes] = {};
  for (int j = 0; j < dim; j += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const double x = row[j + lane];
      sums[lane] += x * x;
    }
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
#endif
}

// codes[j] = how many thresholds are <= row[j]: a tie goes up. `above`: those > 0, ascending,
// [kHalf - 1]; there are 0 and the opposites of these besides.
template <int kHalf>
HWY_INLINE void CountThresholds(const float* row, int dim, const float* above,
                                std::uint8_t* codes) {
  int j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<std::uint8_t, decltype(df)> du8;
  const auto lanes = static_cast<int>(hn::Lanes(df));
  const auto one = hn::Set(di, 1);
  for (; j < dim; j += lanes) {
    // Magnitudes order like their bits. Below zero, x >= -t is |x| <= t: one bit pattern less
    // turns "larger than t" into "at least t". The sum makes -0 a +0.
    const auto bits = hn::BitCast(di, hn::Add(hn::LoadU(df, row + j), hn::Zero(df)));
    const auto negative = hn::ShiftRight<31>(bits);  // -1 or 0
    const auto magnitude = hn::Add(hn::And(bits, hn::Set(di, 0x7FFFFFFF)), negative);
    auto reached = hn::Zero(di);
    for (int k = 0; k + 1 < kHalf; ++k) {
      const auto threshold = hn::Set(di, std::bit_cast<std::int32_t>(above[k]));
      const auto below = hn::Gt(threshold, magnitude);
      reached = hn::IfThenElse(below, reached, hn::Add(reached, one));
    }
    const auto code = hn::Add(hn::Xor(reached, negative), hn::Set(di, kHalf));
    hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, code)), du8, codes + j);
  }
#endif
  for (; j < dim; ++j) {
    int code = row[j] >= 0.0F ? kHalf : 0;
    for (int k = 0; k + 1 < kHalf; ++k) {
      code += (row[j] >= 0.0F ? row[j] >= above[k] : row[j] >= -above[k]) ? 1 : 0;
    }
    codes[j] = static_cast<std::uint8_t>(code);
  }
}

// counts[m]: how many codes stand for the m-th smallest magnitude, [kHalf].
template <int kHalf>
HWY_INLINE void CountMagnitudes(const std::uint8_t* codes, int dim, int* counts) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::FixedTag<std::uint8_t, 32> d8;
  counts[kHalf - 1] = dim;
  for (int m = 0; m + 1 < kHalf; ++m) counts[m] = 0;
  // What lies behind the row are codes of 0, of the largest magnitude, which is not counted.
  for (int j = 0; j < dim; j += 32) {
    const auto from_half = hn::Sub(hn::Load(d8, codes + j), hn::Set(d8, kHalf));
    const auto magnitude = hn::Min(from_half, hn::Not(from_half));
    for (int m = 0; m + 1 < kHalf; ++m) {
      const auto equal = hn::Eq(magnitude, hn::Set(d8, static_cast<std::uint8_t>(m)));
      counts[m] += static_cast<int>(hn::CountTrue(d8, equal));
    }
  }
  for (int m = 0; m + 1 < kHalf; ++m) counts[kHalf - 1] -= counts[m];
#else
  std::fill(counts, counts + kHalf, 0);
  for (int j = 0; j < dim; ++j) {
    ++counts[codes[j] >= kHalf ? codes[j] - kHalf : kHalf - 1 - codes[j]];
  }
#endif
}

template <int kHalf>
void EncodeRows(const float* rows, int count, int dim, const LloydMaxCodebook& book,
                CodeTile& codes, double* scales) {
  double norms[kTileRows];
  for (int r = 0; r < count; ++r) norms[r] = std::sqrt(SumSquaresOf(rows + r * dim, dim));
  for (int r = 0; r < count; ++r) {
    if (norms[r] == 0.0) {
      std::fill(codes.row(r), codes.row(r) + dim, std::uint8_t{0});
      scales[r] = 0.0;
      continue;
    }
    // Thresholds times the norm, rather than the row divided by it: compares are exact then.
    float above[kHalf];
    for (int k = 0; k + 1 < kHalf; ++k) {
      above[k] = static_cast<float>(book.thresholds[kHalf + k] * norms[r]);
    }
    CountThresholds<kHalf>(rows + r * dim, dim, above, codes.row(r));
    int counts[kHalf];
    CountMagnitudes<kHalf>(codes.row(r), dim, counts);
    double square = 0;  // at most 16 terms, in one order
    for (int m = 0; m < kHalf; ++m) {
      const double c = book.centroids[kHalf + m];
      square += c * c * counts[m];
    }
    scales[r] = norms[r] / std::sqrt(square);
  }
}

void EncodeTurboOf(const float* rows, int count, int dim, const LloydMaxCodebook& book,
                   CodeTile& codes, double* scales) {
  switch (book.levels) {
    case 2:
      return EncodeRows<1>(rows, count, dim, book, codes, scales);
    case 4:
      return EncodeRows<2>(rows, count, dim, book, codes, scales);
    case 8:
      return EncodeRows<4>(rows, count, dim, book, codes, scales);
    case 16:
      return EncodeRows<8>(rows, count, dim, book, codes, scales);
    default:
      return EncodeRows<16>(rows, count, dim, book, codes, scales);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {

HWY_EXPORT(EncodeTurboOf);

void EncodeTurbo(const float* rows, int count, int dim, const LloydMaxCodebook& book,
                 CodeTile& codes, double* scales) {
  HWY_DYNAMIC_DISPATCH(EncodeTurboOf)(rows, count, dim, book, codes, scales);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
