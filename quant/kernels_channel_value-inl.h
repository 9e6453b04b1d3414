// Weighted sums of `channel`, for AVX2 and AVX-512: integer codes whose scale and zero point belong
// to a channel (dim) of a group of rows.
//
// Values: sum_r w_r v_rd = zero_d sum_r w_r + scale_d sum_r w_r code_rd, weights in 16 bits.
#if defined(KVSIEVE_QUANT_KERNELS_CHANNEL_VALUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_CHANNEL_VALUE_INL_H_
#undef KVSIEVE_QUANT_KERNELS_CHANNEL_VALUE_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_CHANNEL_VALUE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/kernels_int_value-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// Weights of rows [first, end), rounded; of the rows [from, to) of its units, the others are 0.
// out.zero_sum: sums of weights.
template <class Dot, int kHeads>
HWY_INLINE void RoundGroupWeights(const float* weights, int first, int end, int from, int to,
                                  GroupWeights& out) {
  const DF df;
  HeadVectors most, sum;
  most.a = most.b = most.c = most.d = hn::Zero(df);
  sum.a = sum.b = sum.c = sum.d = hn::Zero(df);
  for (int r = first; r < end; r += kLanes) {
    const HeadVectors w = LoadWeights<kHeads>(weights + r);
    most.a = hn::Max(most.a, w.a);
    most.b = hn::Max(most.b, w.b);
    most.c = hn::Max(most.c, w.c);
    most.d = hn::Max(most.d, w.d);
    sum.a = hn::Add(sum.a, w.a);
    sum.b = hn::Add(sum.b, w.b);
    sum.c = hn::Add(sum.c, w.c);
    sum.d = hn::Add(sum.d, w.d);
  }
  const VF largest =
      hn::Max(ReduceFour<MaxOp>(most.a, most.b, most.c, most.d), hn::Set(df, 1e-30F));
  const VF inverse = hn::Div(hn::Set(df, Dot::kWeightLimit), largest);
  hn::Store(hn::Mul(largest, hn::Set(df, 1.0F / Dot::kWeightLimit)), df, out.step);
  hn::Store(ReduceFour<SumOp>(sum.a, sum.b, sum.c, sum.d), df, out.zero_sum);
  for (int r = from; r < to; r += kLanes) {
    const bool inside = r >= first && r < end;
    const HeadVectors w = LoadWeights<kHeads>(weights + (inside ? r : first));
    const VF one = inside ? hn::Set(df, 1.0F) : hn::Zero(df);
    std::int32_t* words = out.words[0] + (r - from);
    StoreRounded<Dot>(hn::Mul(w.a, one), hn::Broadcast<0>(inverse), words);
    if constexpr (kHeads > 1) {
      StoreRounded<Dot>(hn::Mul(w.b, one), hn::Broadcast<1>(inverse), words + kBlockRows);
    }
    if constexpr (kHeads > 2) {
      StoreRounded<Dot>(hn::Mul(w.c, one), hn::Broadcast<2>(inverse), words + 2 * kBlockRows);
    }
    if constexpr (kHeads > 3) {
      StoreRounded<Dot>(hn::Mul(w.d, one), hn::Broadcast<3>(inverse), words + 3 * kBlockRows);
    }
  }
}

// One group of rows of a block: its units of codes and its planes.
struct ChannelGroup {
  const KernelBlock& block;
  const std::uint8_t* codes;
  int units;
  const std::uint16_t* scales;  // [dim]
  const std::uint16_t* zeros;
  float* acc;
  GroupWeights weights;
};

// acc += scale * (step * sum) + zero * (sum of weights), on one vector of dims.
template <class Dot>
HWY_INLINE void AddChannel(typename Dot::Sum sum, VF scale, VF zero, const GroupWeights& w, int h,
                           int count, float* acc) {
  const DF df;
  const VF codes = hn::Mul(hn::ConvertTo(df, Dot::Finish(sum)), hn::Set(df, w.step[h]));
  const VF add = hn::MulAdd(codes, scale, hn::Mul(zero, hn::Set(df, w.zero_sum[h])));
  if (count >= kLanes) return hn::StoreU(hn::Add(add, hn::LoadU(df, acc)), df, acc);
  const auto mask = hn::FirstN(df, static_cast<std::size_t>(count));
  hn::BlendedStore(hn::Add(add, hn::MaskedLoad(mask, df, acc)), mask, df, acc);
}

template <class Dot, int kHeads>
HWY_INLINE void AddChannels(const ChannelGroup& g, int d, int count, typename Dot::Sum a,
                            typename Dot::Sum b, typename Dot::Sum c, typename Dot::Sum e) {
  const VF scale = LoadSomeScales(g.block.half_type, g.scales + d, count);
  const VF zero = LoadSomeScales(HalfType::kF16, g.zeros + d, count);
  const int stride = AccumulatorStride(g.block.dim);
  AddChannel<Dot>(a, scale, zero, g.weights, 0, count, g.acc + d);
  if constexpr (kHeads > 1) {
    AddChannel<Dot>(b, scale, zero, g.weights, 1, count, g.acc + stride + d);
  }
  if constexpr (kHeads > 2) {
    AddChannel<Dot>(c, scale, zero, g.weights, 2, count, g.acc + 2 * stride + d);
  }
  if constexpr (kHeads > 3) {
    AddChannel<Dot>(e, scale, zero, g.weights, 3, count, g.acc + 3 * stride + d);
  }
}

// As ValueTile.
template <class Dot, class Format, int kHeads, int kVectors>
HWY_NOINLINE void ChannelTile(const ChannelGroup& g, int d, int count,
                              Ahead<CacheLevel::kL1>& ahead_of_block) {
  const typename Format::template Reader<Side::kValue> reader(g.block.codebook);
  Ahead<CacheLevel::kL1> ahead = ahead_of_block;
  Sums<Dot> s;
  SumUnits<Dot, Format, kHeads, kVectors>(s, g.codes + static_cast<std::ptrdiff_t>(d) * 4,
                                          static_cast<std::size_t>(g.block.dim) * 4, g.units, count,
                                          reader, g.weights, ahead);
  ahead_of_block = ahead;
  AddChannels<Dot, kHeads>(g, d, count, s.a0, s.b0, s.c0, s.d0);
  if constexpr (kVectors > 1) {
    AddChannels<Dot, kHeads>(g, d + kLanes, kLanes, s.a1, s.b1, s.c1, s.d1);
  }
}

template <class Dot, class Format, int kHeads>
HWY_NOINLINE void AccumulateChannelHeads(const KernelBlock& b, const float* weights, float* acc) {
  constexpr int kUnitRows = 4 * Format::kQuads;
  const std::size_t unit_bytes = static_cast<std::size_t>(Format::kLines * b.dim) * 4;
  Ahead<CacheLevel::kL1> ahead(b);
  for (int first = 0; first < b.rows; first += b.group_rows) {
    const std::ptrdiff_t plane = static_cast<std::ptrdiff_t>(first / b.group_rows) * b.dim;
    // Units may be longer than a group: rows of other groups get no weight then.
    const int from = first / kUnitRows * kUnitRows;
    const int end =
        std::min(first + b.group_rows, (b.rows + kPanelRows - 1) / kPanelRows * kPanelRows);
    const int units = (end - from + kUnitRows - 1) / kUnitRows;
    ChannelGroup g{b,
                   b.codes + static_cast<std::size_t>(from / kUnitRows) * unit_bytes,
                   units,
                   b.scales + plane,
                   b.zeros + plane,
                   acc,
                   {}};
    RoundGroupWeights<Dot, kHeads>(weights, first, end, from, from + units * kUnitRows, g.weights);
    int d = 0;
    for (; d + 2 * kLanes <= b.dim; d += 2 * kLanes) {
      ChannelTile<Dot, Format, kHeads, 2>(g, d, kLanes, ahead);
    }
    for (; d < b.dim; d += kLanes) {
      ChannelTile<Dot, Format, kHeads, 1>(g, d, std::min(b.dim - d, kLanes), ahead);
    }
  }
  ahead.Finish(b);
}

template <class Dot, class Format>
HWY_INLINE void AccumulateChannelBlock(const KernelBlock& b, const float* weights, int heads,
                                       float* acc) {
  if (heads == 1) return AccumulateChannelHeads<Dot, Format, 1>(b, weights, acc);
  if (heads == 2) return AccumulateChannelHeads<Dot, Format, 2>(b, weights, acc);
  if (heads == 3) return AccumulateChannelHeads<Dot, Format, 3>(b, weights, acc);
  AccumulateChannelHeads<Dot, Format, 4>(b, weights, acc);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_CHANNEL_VALUE_INL_H_
