// Scores of `channel`, for AVX2 and AVX-512: integer codes whose scale and zero
// point belong to a channel (dim) of a group of rows.
//
// Keys: q.k = sum_d q_d zero_d + sum_d (q_d scale_d) code_d. Once per group of rows, x_d = q_d
// scale_d is rounded to one byte, step * r_d with a step for each span of 32 dims, and the second
// sum is one of integer products. Codes lie around their middle m, so what rounding takes away is
// given back at m: adding m (x_d - step r_d) leaves (x_d - step r_d) (code_d - m), a third of the
// error and without bias. A channel is off by at most 1 / 254 of its span's largest x. Codes of 4
// bits are finer than that: what is left is rounded to a second byte, and their keys are gone over
// twice.
#if defined(KVSIEVE_QUANT_KERNELS_CHANNEL_KEY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_CHANNEL_KEY_INL_H_
#undef KVSIEVE_QUANT_KERNELS_CHANNEL_KEY_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_CHANNEL_KEY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/code_rows.h"
#include "quant/kernels_int_key-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// Bytes of a rounded x.
template <class Format>
constexpr int kPasses = Format::kQuads == 2 ? 2 : 1;
// Of the second byte, to that of the first: half a step is its 127.
constexpr float kFineStep = 1.0F / 254.0F;

// The queries of one group of rows.
struct ChannelQuery {
  alignas(64) std::int32_t words[2][kMaxDim];       // [byte][quad of dims][kHeadTile]
  float steps[kMaxDim / kChannelSpan * kHeadTile];  // [span][kHeadTile]
  alignas(64) float base[kLanes];                   // of head h: what does not depend on codes
};

// One span of dims: its scales and zero points.
struct ChannelSpan {
  alignas(64) float scales[kChannelSpan];
  alignas(64) float zeros[kChannelSpan];

  HWY_INLINE ChannelSpan(const KernelBlock& b, std::ptrdiff_t plane, int first_dim) {
    for (int d = 0; d < kChannelSpan; d += kLanes) {
      const int count = std::max(0, b.dim - first_dim - d);
      const std::ptrdiff_t at = plane + std::min(first_dim + d, b.dim);
      hn::Store(LoadSomeScales(b.half_type, b.scales + at, count), DF(), scales + d);
      hn::Store(LoadSomeScales(HalfType::kF16, b.zeros + at, count), DF(), zeros + d);
    }
  }
};

HWY_INLINE void MeasureHead(const float* q, VF scale, VF zero, VF& most, VF& base) {
  const VF query = hn::LoadU(DF(), q);
  most = hn::Max(most, hn::Abs(hn::Mul(query, scale)));
  base = hn::MulAdd(query, zero, base);
}

// r of one head; x becomes what is left of it.
HWY_INLINE VI RoundHead(VF& x, VF step, VF inverse) {
  const DF df;
  const VI rounded = hn::NearestInt(hn::Mul(x, inverse));
  x = hn::NegMulAdd(step, hn::ConvertTo(df, rounded), x);
  return rounded;
}

// kLanes dims of four heads to [quad][head] bytes. Intrinsics, because packing within 128 bits is
// the order that is wanted.
HWY_INLINE void StoreQuads(VI a, VI b, VI c, VI d, std::int32_t* words) {
#if HWY_TARGET == HWY_AVX3
  const __m512i ab = _mm512_packs_epi32(a.raw, b.raw);
  _mm512_store_si512(words, _mm512_packs_epi16(ab, _mm512_packs_epi32(c.raw, d.raw)));
#else
  const __m256i ab = _mm256_packs_epi32(a.raw, b.raw);
  _mm256_store_si256(reinterpret_cast<__m256i*>(words),
                     _mm256_packs_epi16(ab, _mm256_packs_epi32(c.raw, d.raw)));
#endif
}

// One byte of each x, and what is left.
template <int kHeads>
HWY_INLINE void RoundHeads(HeadVectors& x, VF step, VF inverse, std::int32_t* words) {
  VI a, b, c, d;
  a = RoundHead(x.a, hn::Broadcast<0>(step), hn::Broadcast<0>(inverse));
  b = c = d = hn::Zero(DI());
  if constexpr (kHeads > 1) b = RoundHead(x.b, hn::Broadcast<1>(step), hn::Broadcast<1>(inverse));
  if constexpr (kHeads > 2) c = RoundHead(x.c, hn::Broadcast<2>(step), hn::Broadcast<2>(inverse));
  if constexpr (kHeads > 3) d = RoundHead(x.d, hn::Broadcast<3>(step), hn::Broadcast<3>(inverse));
  StoreQuads(a, b, c, d, words);
}

template <int kHeads>
HWY_INLINE HeadVectors MulHeads(const float* q, int stride, VF scale) {
  const DF df;
  HeadVectors x;
  x.a = x.b = x.c = x.d = hn::Mul(hn::LoadU(df, q), scale);
  if constexpr (kHeads > 1) x.b = hn::Mul(hn::LoadU(df, q + stride), scale);
  if constexpr (kHeads > 2) x.c = hn::Mul(hn::LoadU(df, q + 2 * stride), scale);
  if constexpr (kHeads > 3) x.d = hn::Mul(hn::LoadU(df, q + 3 * stride), scale);
  return x;
}

// Dims from first_dim on; q: of head 0 there.
template <int kHeads, int kBytes>
HWY_INLINE void PrepareSpan(const ChannelSpan& span, const float* q, int stride, int first_dim,
                            VF middle, HeadVectors& base, ChannelQuery& out) {
  const DF df;
  HeadVectors most;
  most.a = most.b = most.c = most.d = hn::Zero(df);
  for (int d = 0; d < kChannelSpan; d += kLanes) {
    const VF scale = hn::Load(df, span.scales + d);
    const VF zero = hn::Load(df, span.zeros + d);
    MeasureHead(q + d, scale, zero, most.a, base.a);
    if constexpr (kHeads > 1) MeasureHead(q + stride + d, scale, zero, most.b, base.b);
    if constexpr (kHeads > 2) MeasureHead(q + 2 * stride + d, scale, zero, most.c, base.c);
    if constexpr (kHeads > 3) MeasureHead(q + 3 * stride + d, scale, zero, most.d, base.d);
  }
  // The floor keeps the quotients finite; what is below it is as good as zero.
  constexpr auto kLimit = static_cast<float>(kByteLimit);
  const VF largest =
      hn::Max(ReduceFour<MaxOp>(most.a, most.b, most.c, most.d), hn::Set(df, 1e-30F));
  const VF step = hn::Mul(largest, hn::Set(df, 1.0F / kLimit));
  const VF inverse = hn::Div(hn::Set(df, kLimit), largest);
  alignas(64) float lanes[kLanes];
  hn::Store(step, df, lanes);
  std::copy_n(lanes, kHeadTile, out.steps + first_dim / kChannelSpan * kHeadTile);
  for (int d = 0; d < kChannelSpan; d += kLanes) {
    HeadVectors x = MulHeads<kHeads>(q + d, stride, hn::Load(df, span.scales + d));
    RoundHeads<kHeads>(x, step, inverse, out.words[0] + first_dim + d);
    if constexpr (kBytes > 1) {
      RoundHeads<kHeads>(x, hn::Mul(step, hn::Set(df, kFineStep)),
                         hn::Mul(inverse, hn::Set(df, 1.0F / kFineStep)),
                         out.words[1] + first_dim + d);
    }
    base.a = hn::MulAdd(middle, x.a, base.a);
    base.b = hn::MulAdd(middle, x.b, base.b);
    base.c = hn::MulAdd(middle, x.c, base.c);
    base.d = hn::MulAdd(middle, x.d, base.d);
  }
}

template <int kHeads, int kBytes>
HWY_NOINLINE void PrepareChannelQuery(const KernelBlock& b, const float* q, int group,
                                      ChannelQuery& out) {
  const DF df;
  const std::ptrdiff_t plane = static_cast<std::ptrdiff_t>(group) * b.dim;
  const VF middle = hn::Set(df, 0.5F * static_cast<float>((1 << b.bits) - 1));
  HeadVectors base;
  base.a = base.b = base.c = base.d = hn::Zero(df);
  for (int d = 0; d < b.dim; d += kChannelSpan) {
    const ChannelSpan span(b, plane, d);
    PrepareSpan<kHeads, kBytes>(span, q + d, ChannelQueryStride(b.dim), d, middle, base, out);
  }
  hn::Store(ReduceFour<SumOp>(base.a, base.b, base.c, base.d), df, out.base);
}

// Logits of two vectors of rows += steps * sums of one span, of byte kByte (the first: base + ...).
template <class Dot, int kHeads, int kByte>
struct ChannelFlush {
  const ChannelQuery& query;
  int span;
  float* logits;

  HWY_INLINE void Rows(int row, VI a, VI b, VI c, VI d) const {
    Head(0, row, a);
    if constexpr (kHeads > 1) Head(1, row, b);
    if constexpr (kHeads > 2) Head(2, row, c);
    if constexpr (kHeads > 3) Head(3, row, d);
  }

 private:
  HWY_INLINE void Head(int h, int row, VI sum) const {
    const DF df;
    float* out = logits + h * kBlockRows + row;
    const bool first = kByte == 0 && span == 0;
    const VF before = first ? hn::Set(df, query.base[h]) : hn::LoadU(df, out);
    const float step = query.steps[span * kHeadTile + h] * (kByte == 0 ? 1.0F : kFineStep);
    hn::StoreU(hn::MulAdd(hn::Set(df, step), hn::ConvertTo(df, sum), before), df, out);
  }
};

// Two vectors of rows, from `row0` and `row1` on.
template <class Dot, class Format, int kHeads, int kByte>
HWY_INLINE void ScoreChannelRows(const KernelBlock& b, const ChannelQuery& query, int row0,
                                 int row1, float* logits, Ahead<CacheLevel::kL1>& ahead) {
  constexpr int kUnitDims = 4 * Format::kQuads;
  constexpr int kSpanUnits = kChannelSpan / kUnitDims;
  const typename Format::template Reader<Side::kKey> reader(b.codebook);
  const int units = (b.dim + kUnitDims - 1) / kUnitDims;
  const std::size_t panel_bytes =
      RoundUp(static_cast<std::size_t>(b.dim), static_cast<std::size_t>(UnitCodes(b.bits))) *
      kPanelRows / 8 * static_cast<std::size_t>(b.bits);
  const auto place = [&](int row) {
    return b.codes + static_cast<std::size_t>(row / kPanelRows) * panel_bytes +
           row % kPanelRows * 4;
  };
  const std::uint8_t* codes0 = place(row0);
  const std::uint8_t* codes1 = place(row1);
  static constexpr std::int32_t kNone[kHeadTile] = {};
  for (int unit = 0; unit < units; unit += kSpanUnits) {
    const int span_units = std::min(kSpanUnits, units - unit);
    Sums<Dot> sums;
    StartSums<Dot, kHeads>(sums, kNone);
    KeyGroup<Dot, Format, kHeads>(codes0, codes1, span_units,
                                  query.words[kByte] + unit * Format::kQuads * kHeadTile, reader,
                                  sums, ahead);
    const ChannelFlush<Dot, kHeads, kByte> flush{query, unit / kSpanUnits, logits};
    flush.Rows(row0, Dot::Finish(sums.a0), Dot::Finish(sums.b0), Dot::Finish(sums.c0),
               Dot::Finish(sums.d0));
    if (row1 != row0) {
      flush.Rows(row1, Dot::Finish(sums.a1), Dot::Finish(sums.b1), Dot::Finish(sums.c1),
                 Dot::Finish(sums.d1));
    }
    codes0 += span_units * Format::kLines * static_cast<int>(kLine);
    codes1 += span_units * Format::kLines * static_cast<int>(kLine);
  }
}

template <class Dot, class Format, int kHeads>
HWY_NOINLINE void ScoreChannelHeads(const KernelBlock& b, const float* q, float* logits) {
  ChannelQuery query;
  Ahead<CacheLevel::kL1> ahead(b);
  for (int first = 0; first < b.rows; first += b.group_rows) {
    PrepareChannelQuery<kHeads, kPasses<Format>>(b, q, first / b.group_rows, query);
    const int end = std::min(b.rows, first + b.group_rows);
    for (int row = first; row < end; row += 2 * kLanes) {
      // An odd last vector is done twice, which needs no second kernel.
      const int next = row + kLanes < end ? row + kLanes : row;
      ScoreChannelRows<Dot, Format, kHeads, 0>(b, query, row, next, logits, ahead);
      if constexpr (kPasses < Format >> 1) {
        ScoreChannelRows<Dot, Format, kHeads, 1>(b, query, row, next, logits, ahead);
      }
    }
  }
  ahead.Finish(b);
}

template <class Dot, class Format>
HWY_INLINE void ScoreChannelBlock(const KernelBlock& b, const void* prepared, int heads,
                                  float* logits) {
  const auto* q = static_cast<const float*>(prepared);
  if (heads == 1) return ScoreChannelHeads<Dot, Format, 1>(b, q, logits);
  if (heads == 2) return ScoreChannelHeads<Dot, Format, 2>(b, q, logits);
  if (heads == 3) return ScoreChannelHeads<Dot, Format, 3>(b, q, logits);
  ScoreChannelHeads<Dot, Format, 4>(b, q, logits);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_CHANNEL_KEY_INL_H_
