// Weighted sums of integer codes of one block, for AVX2 and AVX-512. See kernels_dot-inl.h.
#if defined(KVSIEVE_QUANT_KERNELS_INT_VALUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_INT_VALUE_INL_H_
#undef KVSIEVE_QUANT_KERNELS_INT_VALUE_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_INT_VALUE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/kernels_dot-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// Rows up to the end of the last panel in use.
HWY_INLINE int PanelRows(const KernelBlock& b) {
  return (b.rows + kPanelRows - 1) / kPanelRows * kPanelRows;
}

// Weights times the scales of one group, rounded.
struct GroupWeights {
  alignas(64) std::int32_t words[kHeadTile][kBlockRows];  // [row / 4] at 4 i32, two of them used
  alignas(64) float step[kLanes];      // of head h: weight * scale ~ step * rounded
  alignas(64) float zero_sum[kLanes];  // of head h: sum of weight * zero point
};

template <int kHeads>
HWY_INLINE HeadVectors LoadWeights(const float* weights) {
  const DF df;
  HeadVectors w;
  w.a = w.b = w.c = w.d = hn::LoadU(df, weights);
  if constexpr (kHeads > 1) w.b = hn::LoadU(df, weights + kBlockRows);
  if constexpr (kHeads > 2) w.c = hn::LoadU(df, weights + 2 * kBlockRows);
  if constexpr (kHeads > 3) w.d = hn::LoadU(df, weights + 3 * kBlockRows);
  return w;
}

// Adding 2^23 to a number below it leaves its nearest integer in the low mantissa bits.
template <class Dot>
HWY_INLINE void StoreRounded(VF scaled, VF inverse, std::int32_t* words) {
  const VF rounded = hn::MulAdd(scaled, inverse, hn::Set(DF(), 8388608.0F));
  hn::Store(Dot::WeightWords(hn::BitCast(DI(), rounded)), DI(), words);
}

template <class Dot, int kHeads>
HWY_INLINE void RoundWeights(const KernelBlock& b, const float* weights, const float* scales,
                             VF inverse, GroupWeights& out) {
  const DF df;
  const VF inverse_a = hn::Broadcast<0>(inverse);
  const VF inverse_b = hn::Broadcast<1>(inverse);
  const VF inverse_c = hn::Broadcast<2>(inverse);
  const VF inverse_d = hn::Broadcast<3>(inverse);
  for (int r = 0; r < PanelRows(b); r += kLanes) {
    const VF scale = hn::Load(df, scales + r);
    const HeadVectors w = LoadWeights<kHeads>(weights + r);
    StoreRounded<Dot>(hn::Mul(w.a, scale), inverse_a, out.words[0] + r);
    if constexpr (kHeads > 1) {
      StoreRounded<Dot>(hn::Mul(w.b, scale), inverse_b, out.words[1] + r);
    }
    if constexpr (kHeads > 2) {
      StoreRounded<Dot>(hn::Mul(w.c, scale), inverse_c, out.words[2] + r);
    }
    if constexpr (kHeads > 3) {
      StoreRounded<Dot>(hn::Mul(w.d, scale), inverse_d, out.words[3] + r);
    }
  }
}

// All heads at once, so that the scales are widened and the maxima reduced once.
template <class Dot, int kHeads>
HWY_INLINE void PrepareGroup(const KernelBlock& b, const float* weights, int g, GroupWeights& out) {
  const DF df;
  const std::ptrdiff_t plane = static_cast<std::ptrdiff_t>(g) * b.capacity_rows;
  const VF level_scale = hn::Set(df, b.codebook == nullptr ? 1.0F : b.codebook->level_scale);
  alignas(64) float scales[kBlockRows];
  HeadVectors most, zeros;
  most.a = most.b = most.c = most.d = hn::Zero(df);
  zeros.a = zeros.b = zeros.c = zeros.d = hn::Zero(df);
  for (int r = 0; r < PanelRows(b); r += kLanes) {
    const VF scale = hn::Mul(LoadScales(b.half_type, b.scales + plane + r), level_scale);
    hn::Store(scale, df, scales + r);
    const HeadVectors w = LoadWeights<kHeads>(weights + r);
    most.a = hn::Max(most.a, hn::Mul(w.a, scale));
    if constexpr (kHeads > 1) most.b = hn::Max(most.b, hn::Mul(w.b, scale));
    if constexpr (kHeads > 2) most.c = hn::Max(most.c, hn::Mul(w.c, scale));
    if constexpr (kHeads > 3) most.d = hn::Max(most.d, hn::Mul(w.d, scale));
    if (b.zeros == nullptr) continue;
    const VF zero = LoadScales(HalfType::kF16, b.zeros + plane + r);
    zeros.a = hn::MulAdd(w.a, zero, zeros.a);
    if constexpr (kHeads > 1) zeros.b = hn::MulAdd(w.b, zero, zeros.b);
    if constexpr (kHeads > 2) zeros.c = hn::MulAdd(w.c, zero, zeros.c);
    if constexpr (kHeads > 3) zeros.d = hn::MulAdd(w.d, zero, zeros.d);
  }
  // The floor keeps the quotient finite; what is below it is as good as zero.
  const VF largest =
      hn::Max(ReduceFour<MaxOp>(most.a, most.b, most.c, most.d), hn::Set(df, 1e-30F));
  hn::Store(hn::Mul(largest, hn::Set(df, 1.0F / Dot::kWeightLimit)), df, out.step);
  hn::Store(ReduceFour<SumOp>(zeros.a, zeros.b, zeros.c, zeros.d), df, out.zero_sum);
  RoundWeights<Dot, kHeads>(b, weights, scales, hn::Div(hn::Set(df, Dot::kWeightLimit), largest),
                            out);
}

// acc += step * sums + zero_sum, on the first `count` lanes.
HWY_INLINE void AddToAccumulator(VI sum, float step, float zero_sum, int count, float* acc) {
  const DF df;
  const VF add = hn::MulAdd(hn::ConvertTo(df, sum), hn::Set(df, step), hn::Set(df, zero_sum));
  if (count >= kLanes) return hn::StoreU(hn::Add(add, hn::LoadU(df, acc)), df, acc);
  const auto mask = hn::FirstN(df, static_cast<std::size_t>(count));
  hn::BlendedStore(hn::Add(add, hn::MaskedLoad(mask, df, acc)), mask, df, acc);
}

// Both vectors of head h.
template <class Dot, int kVectors>
HWY_INLINE void AddTile(typename Dot::Sum s0, typename Dot::Sum s1, const GroupWeights& w, int h,
                        int count, float* acc) {
  AddToAccumulator(Dot::Finish(s0), w.step[h], w.zero_sum[h], count, acc);
  if constexpr (kVectors > 1) {
    AddToAccumulator(Dot::Finish(s1), w.step[h], w.zero_sum[h], kLanes, acc + kLanes);
  }
}

// What the tiles of one block share.
struct ValueBlock {
  const KernelBlock& block;
  float* acc;
  int acc_stride;
  int units;  // of rows
  std::size_t line_bytes;
  const GroupWeights& weights;  // of the group at hand
};

// Sums of kVectors vectors of dims over the units of one group: a unit's lines are line_bytes
// apart. count < kLanes: one vector, of which only `count` dims exist.
template <class Dot, class Format, int kHeads, int kVectors>
HWY_INLINE void SumUnits(Sums<Dot>& s, const std::uint8_t* codes, std::size_t line_bytes, int units,
                         int count, const typename Format::template Reader<Side::kValue>& reader,
                         const GroupWeights& w, Ahead<CacheLevel::kL1>& ahead) {
  static constexpr std::int32_t kNone[kHeadTile] = {};
  StartSums<Dot, kHeads>(s, kNone);
  const std::int32_t* words = w.words[0];
  for (int u = 0; u < units; ++u) {
    const Lines<kVectors == 1> lines0{codes, line_bytes, count};
    const Lines<kVectors == 1> lines1{codes + (kVectors - 1) * kVectorBytes, line_bytes, count};
    AddUnit<Dot, Format, Side::kValue, kHeads, kVectors>(s, lines0, lines1, reader, words);
    words += 4 * Format::kQuads;
    codes += Format::kLines * line_bytes;
    for (int l = 0; l < Format::kLines; ++l) ahead.template Step<kPairLines * kVectors / 2>();
  }
}

// kVectors vectors of dims from `first_dim` on; one vector may be partial: `count` dims. Not
// inlined: what the compiler would hoist out of the caller's loop costs this one its registers.
template <class Dot, class Format, int kHeads, int kVectors>
HWY_NOINLINE void ValueTile(const ValueBlock& v, int first_dim, int count,
                            Ahead<CacheLevel::kL1>& ahead_of_block) {
  const typename Format::template Reader<Side::kValue> reader(v.block.codebook);
  const GroupWeights& w = v.weights;
  const std::uint8_t* codes = v.block.codes + static_cast<std::size_t>(first_dim) * 4;
  Ahead<CacheLevel::kL1> ahead = ahead_of_block;
  Sums<Dot> s;
  SumUnits<Dot, Format, kHeads, kVectors>(s, codes, v.line_bytes, v.units, count, reader, w, ahead);
  ahead_of_block = ahead;
  float* acc = v.acc + first_dim;
  AddTile<Dot, kVectors>(s.a0, s.a1, w, 0, count, acc);
  if constexpr (kHeads > 1) AddTile<Dot, kVectors>(s.b0, s.b1, w, 1, count, acc + v.acc_stride);
  if constexpr (kHeads > 2) AddTile<Dot, kVectors>(s.c0, s.c1, w, 2, count, acc + 2 * v.acc_stride);
  if constexpr (kHeads > 3) AddTile<Dot, kVectors>(s.d0, s.d1, w, 3, count, acc + 3 * v.acc_stride);
}

template <class Dot, class Format, int kHeads>
HWY_NOINLINE void AccumulateHeads(const KernelBlock& b, const float* weights, float* acc) {
  constexpr int kUnitRows = 4 * Format::kQuads;
  GroupWeights group_weights;
  const int units = (b.rows + kUnitRows - 1) / kUnitRows;
  // Rows of the last unit that lie behind the last panel.
  for (int r = PanelRows(b); r < units * kUnitRows; r += kPanelRows) {
    for (auto& words : group_weights.words) std::memset(words + r, 0, kPanelRows * 4);
  }
  const ValueBlock v{
      b, acc, AccumulatorStride(b.dim), units, static_cast<std::size_t>(b.dim) * 4, group_weights};
  Ahead<CacheLevel::kL1> ahead(b);
  for (int g = 0; g < b.dim / b.group; ++g) {
    PrepareGroup<Dot, kHeads>(b, weights, g, group_weights);
    ahead.Step<2>();
    const int end = (g + 1) * b.group;
    int d = g * b.group;
    for (; d + 2 * kLanes <= end; d += 2 * kLanes) {
      ValueTile<Dot, Format, kHeads, 2>(v, d, kLanes, ahead);
    }
    for (; d < end; d += kLanes) {
      ValueTile<Dot, Format, kHeads, 1>(v, d, std::min(end - d, kLanes), ahead);
    }
  }
  ahead.Finish(b);
}

template <class Dot, class Format>
HWY_INLINE void AccumulateBlock(const KernelBlock& b, const float* weights, int heads, float* acc) {
  if (heads == 1) return AccumulateHeads<Dot, Format, 1>(b, weights, acc);
  if (heads == 2) return AccumulateHeads<Dot, Format, 2>(b, weights, acc);
  if (heads == 3) return AccumulateHeads<Dot, Format, 3>(b, weights, acc);
  AccumulateHeads<Dot, Format, 4>(b, weights, acc);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_INT_VALUE_INL_H_
