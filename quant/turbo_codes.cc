#include "quant/turbo_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/turbo_codes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kSumLanes = 8;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
using D64x4 = hn::FixedTag<double, 4>;

// Of partial sums 0..3 and 4..7.
HWY_INLINE double AddPairs(hn::Vec<D64x4> low, hn::Vec<D64x4> high) {
  alignas(32) double sums[4];
  hn::Store(hn::Add(low, high), D64x4(), sums);
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}
#endif

// Sum of squares in f64: element j goes to partial sum j % 8, which are then added pairwise. A
// square of an f32 number is exact in f64, so a multiply-add rounds as an addition does.
HWY_INLINE double SumSquaresOf(const float* row, int dim) {
#if HWY_TARGET == HWY_AVX3
  const hn::FixedTag<double, kSumLanes> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  auto sum = hn::Zero(d64);
  for (int j = 0; j < dim; j += kSumLanes) {
    const auto x = hn::PromoteTo(d64, hn::LoadU(d32, row + j));
    sum = hn::MulAdd(x, x, sum);
  }
  return AddPairs(hn::LowerHalf(sum), hn::UpperHalf(hn::Half<decltype(d64)>(), sum));
#elif HWY_TARGET == HWY_AVX2
  const hn::FixedTag<double, kSumLanes / 2> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  auto low = hn::Zero(d64);
  auto high = hn::Zero(d64);
  for (int j = 0; j < dim; j += kSumLanes) {
    const auto x_low = hn::PromoteTo(d64, hn::LoadU(d32, row + j));
    const auto x_high = hn::PromoteTo(d64, hn::LoadU(d32, row + j + kSumLanes / 2));
    low = hn::MulAdd(x_low, x_low, low);
    high = hn::MulAdd(x_high, x_high, high);
  }
  return AddPairs(low, high);
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

// Row thresholds are those of the unit sphere times the row's norm, rather than the row divided by
// it: compares are exact then. `unit`: those above zero, ascending, [kHalf - 1]; there are 0 and
// the opposites of these besides.
HWY_INLINE float ThresholdOf(float unit, double norm) { return static_cast<float>(unit * norm); }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;

// How many of kHalf - 1 thresholds each magnitude has reached, both as bit patterns, which order
// like them: by halves where a vector holds a table of them, else one by one.
template <int kHalf>
struct Search {
  VI table;
  alignas(64) float thresholds[kHalf > kLanes ? kHalf : 1];

  // unit: with room for kLanes.
  HWY_INLINE Search(const float* unit, double norm) {
    if constexpr (kHalf > kLanes) {
      for (int k = 0; k + 1 < kHalf; ++k) thresholds[k] = ThresholdOf(unit[k], norm);
      return;
    }
    const hn::Half<DF> df;
    const hn::Rebind<double, decltype(df)> d64;
    const auto scaled = [&](const float* from) HWY_ATTR {
      const auto wide = hn::PromoteTo(d64, hn::LoadU(df, from));
      return hn::DemoteTo(df, hn::Mul(wide, hn::Set(d64, norm)));
    };
    table = hn::BitCast(DI(), hn::Combine(DF(), scaled(unit + kLanes / 2), scaled(unit)));
  }

  template <int kStep>
  HWY_INLINE VI Decide(VI magnitude, VI reached) const {
    if constexpr (kStep == 0) return reached;
    const DI di;
    const VI middle = hn::Add(reached, hn::Set(di, kStep - 1));
    const VI threshold = hn::TableLookupLanes(table, hn::IndicesFromVec(di, middle));
    const VI more = hn::Add(reached, hn::Set(di, kStep));
    return hn::IfThenElse(hn::Gt(threshold, magnitude), reached, more);
  }
  HWY_INLINE VI operator()(VI magnitude) const {
    const DI di;
    VI reached = hn::Zero(di);
    if constexpr (kHalf <= kLanes) {
      reached = Decide<kHalf / 2>(magnitude, reached);
      reached = Decide<kHalf / 4>(magnitude, reached);
      reached = Decide<kHalf / 8>(magnitude, reached);
      return Decide<kHalf / 16>(magnitude, reached);
    }
    for (int k = 0; k + 1 < kHalf; ++k) {
      const VI threshold = hn::Set(di, std::bit_cast<std::int32_t>(thresholds[k]));
      const VI more = hn::Add(reached, hn::Set(di, 1));
      reached = hn::IfThenElse(hn::Gt(threshold, magnitude), reached, more);
    }
    return reached;
  }
};
#endif

// codes[j] = how many thresholds are <= row[j]: a tie goes up.
template <int kHalf>
HWY_INLINE void CountThresholds(const float* row, int dim, const float* unit, double norm,
                                std::uint8_t* codes) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const DF df;
  const DI di;
  const hn::RebindToUnsigned<DI> du;
  const hn::Rebind<std::uint8_t, DI> du8;
  const Search<kHalf> search(unit, norm);
  for (int j = 0; j < dim; j += kLanes) {
    // Below zero, x >= -t is |x| <= t: one bit pattern less turns "larger than t" into "at least
    // t". The sum makes -0 a +0.
    const VI bits = hn::BitCast(di, hn::Add(hn::LoadU(df, row + j), hn::Zero(df)));
    const VI negative = hn::ShiftRight<31>(bits);  // -1 or 0
    const VI magnitude = hn::Add(hn::And(bits, hn::Set(di, 0x7FFFFFFF)), negative);
    const VI code = hn::Add(hn::Xor(search(magnitude), negative), hn::Set(di, kHalf));
    hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, code)), du8, codes + j);
  }
#else
  float above[kHalf];
  for (int k = 0; k + 1 < kHalf; ++k) above[k] = ThresholdOf(unit[k], norm);
  for (int j = 0; j < dim; ++j) {
    int code = row[j] >= 0.0F ? kHalf : 0;
    for (int k = 0; k + 1 < kHalf; ++k) {
      code += (row[j] >= 0.0F ? row[j] >= above[k] : row[j] >= -above[k]) ? 1 : 0;
    }
    codes[j] = static_cast<std::uint8_t>(code);
  }
#endif
}

// counts[m]: how many codes stand for the m-th smallest magnitude, [kHalf].
template <int kHalf>
HWY_INLINE void CountMagnitudes(const std::uint8_t* codes, int dim, int* counts) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<std::uint8_t> d8;
  counts[kHalf - 1] = dim;
  for (int m = 0; m + 1 < kHalf; ++m) counts[m] = 0;
  // What lies behind the row are codes of 0, of the largest magnitude, which is not counted.
  for (int j = 0; j < dim; j += static_cast<int>(hn::Lanes(d8))) {
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

// All rows pass each step together: what one waits for, others fill.
template <int kHalf>
void EncodeRows(const float* rows, int count, int dim, const LloydMaxCodebook& book,
                CodeTile& codes, double* scales) {
  alignas(64) float unit[16] = {};  // thresholds above zero
  std::copy_n(book.thresholds + kHalf, kHalf - 1, unit);
  double norms[kTileRows];
  for (int r = 0; r < count; ++r) norms[r] = std::sqrt(SumSquaresOf(rows + r * dim, dim));
  for (int r = 0; r < count; ++r) {
    CountThresholds<kHalf>(rows + r * dim, dim, unit, norms[r], codes.row(r));
  }
  double squares[kTileRows];
  for (int r = 0; r < count; ++r) {
    int counts[kHalf];
    CountMagnitudes<kHalf>(codes.row(r), dim, counts);
    squares[r] = 0;  // at most 16 terms, in one order
    for (int m = 0; m < kHalf; ++m) {
      const double c = book.centroids[kHalf + m];
      squares[r] += c * c * counts[m];
    }
  }
  for (int r = 0; r < count; ++r) {
    scales[r] = norms[r] / std::sqrt(squares[r]);
    if (norms[r] == 0.0) std::fill(codes.row(r), codes.row(r) + dim, std::uint8_t{0});
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
