#include "quant/group_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kvsieve/float16.h"
#include "quant/ggml_block.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/group_codes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/row_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// Scales of this many groups are computed side by side: what one group waits for, others fill.
constexpr int kBatch = 64;
constexpr int kVector = 16;  // floats that may be read at once, also behind the last group

struct alignas(64) Batch {
  float low[kBatch];   // smallest element; then the zero point
  float high[kBatch];  // largest element or magnitude
  float scale[kBatch];
  float inverse[kBatch];  // 1 / scale, 0 for 0
  std::uint16_t scale_bits[kBatch];
  std::uint16_t zero_bits[kBatch];
};

// find(batch, count, x) for the groups of a batch, solve(batch, count) for their scales, then
// write(batch, i, x, codes) for each of them.
template <class Find, class Solve, class Write>
HWY_INLINE void InBatches(GroupedRows rows, TilePlanes to, Find find, Solve solve, Write write) {
  const int groups = rows.dim / rows.group;
  const int total = rows.rows * groups;
  std::uint8_t* codes = to.codes->row(0);  // a local: byte stores may alias the tile
  const std::ptrdiff_t row_step = to.codes->row(1) - codes - (rows.dim - rows.group);
  Batch batch;
  // The vector with the last group, which find() may not fill. Clearing the whole batch would cost
  // what encoding three rows does.
  const int last_vector = total % kBatch / kVector * kVector;
  std::fill_n(batch.low + last_vector, kVector, 0.0F);
  std::fill_n(batch.high + last_vector, kVector, 0.0F);
  int r = 0;
  int g = 0;
  for (int first = 0; first < total; first += kBatch) {
    const int count = std::min(kBatch, total - first);
    const float* x = rows.data + std::ptrdiff_t{first} * rows.group;
    find(batch, count, x);
    solve(batch, count);
    for (int i = 0; i < count; ++i, x += rows.group) {
      const int at = g * to.capacity_rows + r;
      to.scales[at] = batch.scale_bits[i];
      if (to.zeros != nullptr) to.zeros[at] = batch.zero_bits[i];
      write(batch, i, x, codes);
      if (++g < groups) {
        codes += rows.group;
      } else {
        g = 0;
        ++r;
        codes += row_step;
      }
    }
  }
}

// Magnitudes as bit patterns, which order like them.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;

HWY_INLINE VI LoadMagnitudes(const float* x) {
  const auto* bits = reinterpret_cast<const std::int32_t*>(x);
  return hn::And(hn::LoadU(DI(), bits), hn::Set(DI(), 0x7FFFFFFF));
}

// out[k] = combine over the lanes of vector k.
template <class D, class Combine>
HWY_INLINE void ReduceFour(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e,
                           Combine combine, float* out) {
  const hn::Repartition<std::uint64_t, D> d64;
  const auto pair = [&](hn::Vec<D> v, hn::Vec<D> w) HWY_ATTR {
    return combine(hn::InterleaveLower(d, v, w), hn::InterleaveUpper(d, v, w));
  };
  const auto ab = hn::BitCast(d64, pair(a, b));
  const auto ce = hn::BitCast(d64, pair(c, e));
  auto all = combine(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)),
                     hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
  all = combine(all, hn::ConcatLowerUpper(d, all, all));
  if constexpr (kLanes == 16) all = combine(all, hn::SwapAdjacentBlocks(all));
  alignas(64) hn::TFromD<D> lanes[kLanes];
  hn::Store(all, d, lanes);
  std::memcpy(out, lanes, 16);
}
#endif

// batch.high[i] = largest magnitude of group i; returns that of all, or the larger `seen`.
HWY_INLINE float FindMagnitudes(Batch& batch, int count, const float* x, int group, float seen) {
  int i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  VI all = hn::Set(DI(), std::bit_cast<std::int32_t>(seen));
  const auto largest = [&](int g) HWY_ATTR {
    const float* from = x + g * group;
    VI even = LoadMagnitudes(from);
    VI odd = LoadMagnitudes(from + group - kLanes);
    for (int j = kLanes; j + kLanes < group; j += 2 * kLanes) {
      even = hn::Max(even, LoadMagnitudes(from + j));
      odd = hn::Max(odd, LoadMagnitudes(from + j + kLanes));
    }
    even = hn::Max(even, odd);
    all = hn::Max(all, even);
    return even;
  };
  for (; group % kLanes == 0 && i + 4 <= count; i += 4) {
    ReduceFour(
        DI(), largest(i), largest(i + 1), largest(i + 2), largest(i + 3),
        [](VI v, VI w) HWY_ATTR { return hn::Max(v, w); }, batch.high + i);
  }
  seen = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(DI(), all)));
#endif
  auto bits = std::bit_cast<std::int32_t>(seen);
  for (; i < count; ++i) {
    batch.high[i] = AbsMaxOf(x + i * group, group);
    bits = std::max(bits, std::bit_cast<std::int32_t>(batch.high[i]));
  }
  return std::bit_cast<float>(bits);
}

// batch.low[i] and .high[i]: extremes of group i; returns the largest magnitude as FindMagnitudes
// does, and no other number where there are NaNs.
HWY_INLINE float FindExtremes(Batch& batch, int count, const float* x, int group, float seen) {
  int i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  struct Extremes {
    VF low, high;
  };
  VI magnitude = hn::Set(DI(), std::bit_cast<std::int32_t>(seen));
  const auto extremes = [&](int g) HWY_ATTR {
    const float* from = x + g * group;
    Extremes found{hn::LoadU(DF(), from), hn::LoadU(DF(), from)};
    magnitude = hn::Max(magnitude, LoadMagnitudes(from));
    for (int j = kLanes; j < group; j += kLanes) {
      const VF v = hn::LoadU(DF(), from + j);
      found.low = hn::Min(found.low, v);
      found.high = hn::Max(found.high, v);
      magnitude = hn::Max(magnitude, LoadMagnitudes(from + j));
    }
    return found;
  };
  for (; group % kLanes == 0 && i + 4 <= count; i += 4) {
    const Extremes a = extremes(i);
    const Extremes b = extremes(i + 1);
    const Extremes c = extremes(i + 2);
    const Extremes d = extremes(i + 3);
    ReduceFour(
        DF(), a.low, b.low, c.low, d.low, [](VF v, VF w) HWY_ATTR { return hn::Min(v, w); },
        batch.low + i);
    ReduceFour(
        DF(), a.high, b.high, c.high, d.high, [](VF v, VF w) HWY_ATTR { return hn::Max(v, w); },
        batch.high + i);
  }
  seen = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(DI(), magnitude)));
#endif
  auto bits = std::bit_cast<std::int32_t>(seen);
  for (; i < count; ++i) {
    const MinMax found = MinMaxOf(x + i * group, group);
    batch.low[i] = found.min;
    batch.high[i] = found.max;
    bits = std::max(bits, std::bit_cast<std::int32_t>(AbsMaxOf(x + i * group, group)));
  }
  return std::bit_cast<float>(bits);
}

// The bf16 number not below high / limit, for each of a batch. In whole vectors: what lies behind
// `count` does no harm.
HWY_INLINE void RoundScalesUp(Batch& batch, int count, float limit) {
  for (int first = 0; first < count; first += kVector) {
    for (int i = first; i < first + kVector; ++i) {
      const float exact = batch.high[i] / limit;
      std::uint32_t bits = (std::bit_cast<std::uint32_t>(exact) + 0xFFFFU) >> 16;
      bits = bits > 0x7F7FU ? 0x7F7FU : bits;
      const float scale = std::bit_cast<float>(bits << 16);
      const float inverse = 1.0F / scale;
      batch.scale_bits[i] = static_cast<std::uint16_t>(bits);
      batch.scale[i] = scale;
      batch.inverse[i] = scale == 0.0F ? 0.0F : inverse;
    }
  }
}

float EncodeSymOf(GroupedRows rows, SymCodes codes, TilePlanes to) {
  const auto limit = static_cast<float>(codes.limit);
  const CodeRange range{-limit, limit, codes.bias};
  float largest = 0;
  InBatches(
      rows, to,
      [&](Batch& batch, int count, const float* x)
          HWY_ATTR { largest = FindMagnitudes(batch, count, x, rows.group, largest); },
      [&](Batch& batch, int count) HWY_ATTR { RoundScalesUp(batch, count, limit); },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* to_codes) HWY_ATTR {
        const Grid grid{0.0F, batch.scale[i], batch.inverse[i]};
        RoundToCodesOf<Zero::kNone>(x, rows.group, grid, range, to_codes);
      });
  return largest;
}

// Zero points, and what is left above them.
HWY_INLINE void RoundZerosDown(Batch& batch, int count) {
  int i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const hn::Rebind<std::int16_t, decltype(df)> di16;
  const auto one = hn::Set(di, 1);
  // A batch has room for whole vectors.
  for (; i < count; i += static_cast<int>(hn::Lanes(df))) {
    const auto low = hn::LoadU(df, batch.low + i);
    const auto held = hn::Min(hn::Max(low, hn::Set(df, -kF16Max)), hn::Set(df, kF16Max));
    // -0 and +0 compare equal, so which of them is the minimum depends on the order: store +0.
    const auto value = hn::IfThenZeroElse(hn::Eq(held, hn::Zero(df)), held);
    const auto nearest = hn::DemoteTo(dh, value);
    const auto bits = hn::PromoteTo(di, hn::BitCast(di16, nearest));
    // One step toward minus infinity: away from zero where negative, and -2^-24 below zero.
    const auto too_high = hn::RebindMask(di, hn::Gt(hn::PromoteTo(df, nearest), value));
    const auto negative = hn::Lt(bits, hn::Zero(di));
    const auto step = hn::IfThenElse(negative, one, hn::Neg(one));
    const auto below =
        hn::IfThenElse(hn::Eq(bits, hn::Zero(di)), hn::Set(di, -32767), hn::Add(bits, step));
    const auto down = hn::DemoteTo(di16, hn::IfThenElse(too_high, below, bits));
    hn::StoreU(down, di16, reinterpret_cast<std::int16_t*>(batch.zero_bits + i));
    const auto zero = hn::PromoteTo(df, hn::BitCast(dh, down));
    const auto span = hn::Sub(hn::LoadU(df, batch.high + i), zero);
    hn::StoreU(zero, df, batch.low + i);
    hn::StoreU(hn::Max(span, hn::Zero(df)), df, batch.high + i);
  }
#else
  for (; i < count; ++i) {
    const F16 zero = batch.low[i] == 0.0F ? F16{0} : ToF16RoundDown(batch.low[i]);
    batch.zero_bits[i] = zero.bits;
    batch.low[i] = ToFloat(zero);
    batch.high[i] = batch.high[i] > batch.low[i] ? batch.high[i] - batch.low[i] : 0.0F;
  }
#endif
}

float EncodeAsymOf(GroupedRows rows, int code_limit, TilePlanes to) {
  const auto limit = static_cast<float>(code_limit);
  const CodeRange range{0.0F, limit, 0};
  float largest = 0;
  InBatches(
      rows, to,
      [&](Batch& batch, int count, const float* x)
          HWY_ATTR { largest = FindExtremes(batch, count, x, rows.group, largest); },
      [&](Batch& batch, int count) HWY_ATTR {
        RoundZerosDown(batch, count);
        RoundScalesUp(batch, count, limit);
      },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* to_codes) HWY_ATTR {
        const Grid grid{batch.low[i], batch.scale[i], batch.inverse[i]};
        RoundToCodesOf<Zero::kPoint>(x, rows.group, grid, range, to_codes);
      });
  return largest;
}

// f16 bits of ggml's scales, high / divisor, and their inverses before that rounding.
HWY_INLINE void SolveGgml(Batch& batch, int count, float divisor) {
  for (int i = 0; i < count; ++i) {
    const float scale = batch.high[i] / divisor;
    batch.scale_bits[i] = ToF16(scale).bits;
    batch.inverse[i] = GgmlInverse(scale);
  }
}

void EncodeQ8_0Of(GroupedRows rows, TilePlanes to) {
  InBatches(
      rows, to,
      [&](Batch& batch, int count, const float* x)
          HWY_ATTR { FindMagnitudes(batch, count, x, kGgmlBlock, 0.0F); },
      [&](Batch& batch, int count) HWY_ATTR { SolveGgml(batch, count, 127.0F); },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* codes)
          HWY_ATTR { RoundHalfAwayOf(x, kGgmlBlock, batch.inverse[i], codes); });
}

// The first element of that magnitude; +0 for a block of zeros of either sign.
HWY_INLINE float FirstOfMagnitude(const float* x, float magnitude) {
  if (magnitude == 0.0F) return 0.0F;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const VI wanted = hn::Set(DI(), std::bit_cast<std::int32_t>(magnitude));
  for (int j = 0; j < kGgmlBlock; j += kLanes) {
    const std::intptr_t at = hn::FindFirstTrue(DI(), hn::Eq(LoadMagnitudes(x + j), wanted));
    if (at >= 0) return x[j + at];
  }
  return magnitude;
#else
  while (std::fabs(*x) != magnitude) ++x;
  return *x;
#endif
}

void EncodeQ4_0Of(GroupedRows rows, TilePlanes to) {
  InBatches(
      rows, to,
      [&](Batch& batch, int count, const float* x) HWY_ATTR {
        FindMagnitudes(batch, count, x, kGgmlBlock, 0.0F);
        for (int i = 0; i < count; ++i) {
          batch.high[i] = FirstOfMagnitude(x + i * kGgmlBlock, batch.high[i]);
        }
      },
      [&](Batch& batch, int count) HWY_ATTR { SolveGgml(batch, count, -8.0F); },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* codes)
          HWY_ATTR { TruncateToNibblesOf(x, kGgmlBlock, batch.inverse[i], codes); });
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {

HWY_EXPORT(EncodeSymOf);
HWY_EXPORT(EncodeAsymOf);
HWY_EXPORT(EncodeQ8_0Of);
HWY_EXPORT(EncodeQ4_0Of);

float EncodeSym(const GroupedRows& rows, SymCodes codes, const TilePlanes& to) {
  KVS_DCHECK(codes.bias % 2 == 0);
  return HWY_DYNAMIC_DISPATCH(EncodeSymOf)(rows, codes, to);
}

float EncodeAsym(const GroupedRows& rows, int limit, const TilePlanes& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeAsymOf)(rows, limit, to);
}

void EncodeQ8_0(const GroupedRows& rows, const TilePlanes& to) {
  HWY_DYNAMIC_DISPATCH(EncodeQ8_0Of)(rows, to);
}

void EncodeQ4_0(const GroupedRows& rows, const TilePlanes& to) {
  HWY_DYNAMIC_DISPATCH(EncodeQ4_0Of)(rows, to);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
