// Kernels over integer codes, for AVX2 and AVX-512: included once per target by the units of the
// int8 and nibble formats, and again by their VNNI units.
//
// A vector has one i32 lane per row (keys) or per dim (values); the four codes of a quad lie in
// that lane's bytes. `Dot` multiplies a quad by the query or the weights and adds the products to
// the lane. `Format` turns stored bytes into codes. Both are template arguments, so the loops hold
// no branch on the format. Sums are named members because g++ 12 spills arrays of vectors.
#if defined(KVSIEVE_QUANT_KERNELS_INT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_INT_INL_H_
#undef KVSIEVE_QUANT_KERNELS_INT_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_INT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/kernels_common-inl.h"
#include "quant/kernels_query.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// What is known of codes when they are widened.
enum class Sign { kSigned, kUnsigned };

// Two multiplier words of one quad, broadcast: see kernels_query.h.
struct Words {
  VI first, second;
};
HWY_INLINE Words BroadcastWords(const std::int32_t* words) {
  const DI di;
  return {hn::Set(di, words[0]), hn::Set(di, words[1])};
}

// 16-bit multiply-add pairs; multipliers in QueryForm::kPairs.
struct MaddDot {
  static constexpr QueryForm kForm = QueryForm::kPairs;
  static constexpr float kWeightLimit = 32767.0F;
  struct Codes {
    V16 even, odd;
  };
  struct Sum {
    VI sum;
  };

  template <Sign kSign>
  static HWY_INLINE Codes Widen(V8 bytes) {
    const D16 d16;
    const V16 pairs = hn::BitCast(d16, bytes);
    if constexpr (kSign == Sign::kSigned) {
      return {hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs)), hn::ShiftRight<8>(pairs)};
    } else {
      const hn::RebindToUnsigned<D16> du16;
      return {hn::And(pairs, hn::Set(d16, 0xFF)),
              hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, pairs)))};
    }
  }
  static HWY_INLINE Sum Start(std::int32_t value) { return {hn::Set(DI(), value)}; }
  static HWY_INLINE void AddKey(Sum& s, Codes codes, Words q) {
    const DI di;
    const D16 d16;
    VI unused = hn::Zero(di);
    s.sum = hn::ReorderWidenMulAccumulate(di, codes.even, hn::BitCast(d16, q.first), s.sum, unused);
    s.sum = hn::ReorderWidenMulAccumulate(di, codes.odd, hn::BitCast(d16, q.second), s.sum, unused);
  }
  static HWY_INLINE void AddValue(Sum& s, Codes codes, Words w) { AddKey(s, codes, w); }
  static HWY_INLINE VI Finish(Sum s) { return s.sum; }

  // Four rounded weights per 128 bits to the two words of their quad.
  static HWY_INLINE VI WeightWords(VI rounded) {
    const D8 d8;
    alignas(16) static constexpr std::uint8_t kBytes[16] = {0, 1, 8, 9, 4, 5, 12, 13,
                                                            0, 1, 8, 9, 4, 5, 12, 13};
    return hn::BitCast(DI(),
                       hn::TableLookupBytes(hn::BitCast(d8, rounded), hn::LoadDup128(d8, kBytes)));
  }
};

#if HWY_TARGET == HWY_AVX3
// VNNI byte products: the 16-bit multiplier as two bytes, one sum for each. Only where
// VnniActive(); assembly, because Highway 1.0.3 has no such operation and no target that names
// the feature. The instruction multiplies unsigned by signed bytes. Keys: codes unsigned, query
// signed. Values: weights unsigned, codes signed.
struct VnniDot {
  static constexpr QueryForm kForm = QueryForm::kBytes;
  static constexpr float kWeightLimit = 65535.0F;
  using Codes = V8;
  struct Sum {
    VI high, low;
  };

  template <Sign kSign>
  static HWY_INLINE Codes Widen(V8 bytes) {
    return bytes;
  }
  static HWY_INLINE Sum Start(std::int32_t value) { return {hn::Zero(DI()), hn::Set(DI(), value)}; }
  static HWY_INLINE void AddKey(Sum& s, Codes codes, Words q) {
    asm("vpdpbusd %2, %1, %0" : "+v"(s.high.raw) : "v"(codes.raw), "v"(q.first.raw));
    asm("vpdpbusd %2, %1, %0" : "+v"(s.low.raw) : "v"(codes.raw), "v"(q.second.raw));
  }
  static HWY_INLINE void AddValue(Sum& s, Codes codes, Words w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(s.high.raw) : "v"(w.first.raw), "v"(codes.raw));
    asm("vpdpbusd %2, %1, %0" : "+v"(s.low.raw) : "v"(w.second.raw), "v"(codes.raw));
  }
  // May wrap on the way; the result is in range (IntQueryLimit), so it is exact.
  static HWY_INLINE VI Finish(Sum s) { return hn::Add(hn::ShiftLeft<8>(s.high), s.low); }

  static HWY_INLINE VI WeightWords(VI rounded) {
    const D8 d8;
    alignas(16) static constexpr std::uint8_t kBytes[16] = {1, 5, 9, 13, 0, 4, 8, 12,
                                                            1, 5, 9, 13, 0, 4, 8, 12};
    return hn::BitCast(DI(),
                       hn::TableLookupBytes(hn::BitCast(d8, rounded), hn::LoadDup128(d8, kBytes)));
  }
};
#endif  // HWY_AVX3

// Formats: bytes as stored to codes. Key codes are unsigned with kKeyOffset added to the true
// code; value codes are true codes of sign kValueSign.
struct Int8Format {
  static constexpr int kQuadsPerUnit = 1;
  static constexpr std::int32_t kKeyOffset = 128;
  static constexpr Sign kValueSign = Sign::kSigned;
  template <Side kSide>
  struct Reader {
    explicit HWY_INLINE Reader(const Codebook*) {}
    HWY_INLINE V8 Low(V8 raw) const {
      if constexpr (kSide == Side::kValue) return raw;
      return hn::Xor(raw, hn::Set(D8(), 0x80));
    }
    HWY_INLINE V8 High(V8 raw) const { return raw; }
  };
};

struct NibbleFormat {
  static constexpr int kQuadsPerUnit = 2;
  static constexpr std::int32_t kKeyOffset = 0;
  static constexpr Sign kValueSign = Sign::kUnsigned;
  template <Side kSide>
  struct Reader {
    explicit HWY_INLINE Reader(const Codebook*) {}
    HWY_INLINE V8 Low(V8 raw) const { return hn::And(raw, hn::Set(D8(), 0x0F)); }
    HWY_INLINE V8 High(V8 raw) const {
      const hn::RebindToUnsigned<D16> du16;
      const auto shifted = hn::BitCast(D8(), hn::ShiftRight<4>(hn::BitCast(du16, raw)));
      return hn::And(shifted, hn::Set(D8(), 0x0F));
    }
  };
};

// Nibbles that select one of 16 signed levels.
struct CodebookFormat {
  static constexpr int kQuadsPerUnit = 2;
  static constexpr std::int32_t kKeyOffset = 128;
  static constexpr Sign kValueSign = Sign::kSigned;
  template <Side kSide>
  struct Reader {
    V8 table;
    NibbleFormat::Reader<kSide> nibbles;
    explicit HWY_INLINE Reader(const Codebook* codebook) : nibbles(codebook) {
      const D8 d8;
      alignas(16) std::uint8_t levels[16];
      for (int i = 0; i < 16; ++i) levels[i] = static_cast<std::uint8_t>(codebook->level[i]);
      table = hn::LoadDup128(d8, levels);
      if constexpr (kSide == Side::kKey) table = hn::Xor(table, hn::Set(d8, 0x80));
    }
    HWY_INLINE V8 Low(V8 raw) const { return hn::TableLookupBytes(table, nibbles.Low(raw)); }
    HWY_INLINE V8 High(V8 raw) const { return hn::TableLookupBytes(table, nibbles.High(raw)); }
  };
};

constexpr int kPairLines = kLanes * 2 * 4 / 64;

// Sums of up to 4 heads over two vectors.
template <class Dot>
struct Sums {
  typename Dot::Sum a0, a1, b0, b1, c0, c1, d0, d1;
};

template <class Dot, int kHeads>
HWY_INLINE void StartSums(Sums<Dot>& s, const std::int32_t start[kHeadTile]) {
  s.a0 = s.a1 = Dot::Start(start[0]);
  if constexpr (kHeads > 1) s.b0 = s.b1 = Dot::Start(start[1]);
  if constexpr (kHeads > 2) s.c0 = s.c1 = Dot::Start(start[2]);
  if constexpr (kHeads > 3) s.d0 = s.d1 = Dot::Start(start[3]);
}

template <class Dot, Side kSide, int kVectors>
HWY_INLINE void AddOne(typename Dot::Sum& s0, typename Dot::Sum& s1, typename Dot::Codes codes0,
                       typename Dot::Codes codes1, const std::int32_t* words) {
  const Words w = BroadcastWords(words);
  if constexpr (kSide == Side::kKey) {
    Dot::AddKey(s0, codes0, w);
    if constexpr (kVectors > 1) Dot::AddKey(s1, codes1, w);
  } else {
    Dot::AddValue(s0, codes0, w);
    if constexpr (kVectors > 1) Dot::AddValue(s1, codes1, w);
  }
}

// One quad: words of head h at words + h * stride.
template <class Dot, Side kSide, int kHeads, int kVectors>
HWY_INLINE void AddQuad(Sums<Dot>& s, typename Dot::Codes codes0, typename Dot::Codes codes1,
                        const std::int32_t* words) {
  constexpr int kStride = kSide == Side::kKey ? 2 : kBlockRows;
  AddOne<Dot, kSide, kVectors>(s.a0, s.a1, codes0, codes1, words);
  if constexpr (kHeads > 1) {
    AddOne<Dot, kSide, kVectors>(s.b0, s.b1, codes0, codes1, words + kStride);
  }
  if constexpr (kHeads > 2) {
    AddOne<Dot, kSide, kVectors>(s.c0, s.c1, codes0, codes1, words + 2 * kStride);
  }
  if constexpr (kHeads > 3) {
    AddOne<Dot, kSide, kVectors>(s.d0, s.d1, codes0, codes1, words + 3 * kStride);
  }
}

// kLanes scales or zero points.
HWY_INLINE VF LoadScales(ScaleType type, const std::uint16_t* from) {
  const DF df;
  if (type == ScaleType::kF16) {
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  }
  const hn::RebindToUnsigned<DI> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
}

// -- keys ---------------------------------------------------------------------------------------

// Logits of two vectors of rows += one group's part (= for the first group).
template <class Dot, int kHeads>
struct KeyFlush {
  const KernelBlock& block;
  const IntQuery& query;
  int group_index;
  float* logits;

  HWY_INLINE void Rows(int row, VI a, VI b, VI c, VI d) const {
    const DF df;
    const std::size_t at = static_cast<std::size_t>(group_index * block.capacity_rows + row);
    VF scale = LoadScales(block.scale_type, block.scales + at);
    if (block.codebook != nullptr) scale = hn::Mul(scale, hn::Set(df, block.codebook->level_scale));
    const VF zero =
        block.zeros == nullptr ? hn::Zero(df) : LoadScales(ScaleType::kF16, block.zeros + at);
    Head(0, row, a, scale, zero);
    if constexpr (kHeads > 1) Head(1, row, b, scale, zero);
    if constexpr (kHeads > 2) Head(2, row, c, scale, zero);
    if constexpr (kHeads > 3) Head(3, row, d, scale, zero);
  }

 private:
  HWY_INLINE void Head(int h, int row, VI sum, VF scale, VF zero) const {
    const DF df;
    const float query_sum = static_cast<float>(query.group_sums[group_index * kHeadTile + h]);
    float* out = logits + h * kBlockRows + row;
    VF part = hn::Mul(scale, hn::ConvertTo(df, sum));
    part = hn::MulAdd(zero, hn::Set(df, query_sum), part);
    part = hn::Mul(part, hn::Set(df, query.head->scale[h]));
    if (group_index > 0) part = hn::Add(part, hn::LoadU(df, out));
    hn::StoreU(part, df, out);
  }
};

// Both vectors of rows, one group: `units` lines of codes each.
template <class Dot, class Format, int kHeads>
HWY_INLINE void KeyGroup(const std::uint8_t* codes0, const std::uint8_t* codes1, int units,
                         const std::int32_t* words,
                         const typename Format::template Reader<Side::kKey>& reader,
                         Sums<Dot>& sums, Ahead& ahead) {
  const D8 d8;
  constexpr int kWordsPerQuad = kHeadTile * 2;
  for (int u = 0; u < units; ++u) {
    const V8 raw0 = hn::LoadU(d8, codes0);
    const V8 raw1 = hn::LoadU(d8, codes1);
    AddQuad<Dot, Side::kKey, kHeads, 2>(
        sums, Dot::template Widen<Sign::kUnsigned>(reader.Low(raw0)),
        Dot::template Widen<Sign::kUnsigned>(reader.Low(raw1)), words);
    if constexpr (Format::kQuadsPerUnit > 1) {
      AddQuad<Dot, Side::kKey, kHeads, 2>(
          sums, Dot::template Widen<Sign::kUnsigned>(reader.High(raw0)),
          Dot::template Widen<Sign::kUnsigned>(reader.High(raw1)), words + kWordsPerQuad);
    }
    words += kWordsPerQuad * Format::kQuadsPerUnit;
    codes0 += kLine;
    codes1 += kLine;
    ahead.Step<kPairLines>();
  }
}

template <class Dot, class Format, int kHeads>
HWY_NOINLINE void ScoreHeads(const KernelBlock& b, const IntQuery& query, float* logits) {
  constexpr int kUnitDims = 4 * Format::kQuadsPerUnit;
  const typename Format::template Reader<Side::kKey> reader(b.codebook);
  const int panels = (b.rows + kPanelRows - 1) / kPanelRows;
  const int group_units = (b.group + kUnitDims - 1) / kUnitDims;
  const int groups = b.dim / b.group;
  const std::size_t panel_bytes = static_cast<std::size_t>(groups * group_units) * kLine;
  constexpr int kPanelsPerStep = kLanes * 2 / kPanelRows;
  Ahead ahead(b);

  for (int panel = 0; panel < panels; panel += kPanelsPerStep) {
    // The second vector is the next panel, or the other half of this one. An odd last panel is
    // done twice, which needs no second kernel.
    const int second = kPanelsPerStep == 2 ? std::min(panel + 1, panels - 1) : panel;
    const int row0 = panel * kPanelRows;
    const int row1 = kPanelsPerStep == 2 ? second * kPanelRows : row0 + kLanes;
    const std::uint8_t* codes0 = b.codes + static_cast<std::size_t>(panel) * panel_bytes;
    const std::uint8_t* codes1 = kPanelsPerStep == 2
                                     ? b.codes + static_cast<std::size_t>(second) * panel_bytes
                                     : codes0 + kVectorBytes;
    const std::int32_t* words = query.quads;
    for (int g = 0; g < groups; ++g) {
      std::int32_t start[kHeadTile];
      for (int h = 0; h < kHeadTile; ++h) {
        // Wraps, as the sums may.
        start[h] = static_cast<std::int32_t>(
            0U - static_cast<std::uint32_t>(Format::kKeyOffset) *
                     static_cast<std::uint32_t>(query.group_sums[g * kHeadTile + h]));
      }
      Sums<Dot> sums;
      StartSums<Dot, kHeads>(sums, start);
      KeyGroup<Dot, Format, kHeads>(codes0, codes1, group_units, words, reader, sums, ahead);
      const KeyFlush<Dot, kHeads> flush{b, query, g, logits};
      flush.Rows(row0, Dot::Finish(sums.a0), Dot::Finish(sums.b0), Dot::Finish(sums.c0),
                 Dot::Finish(sums.d0));
      if (row1 != row0) {
        flush.Rows(row1, Dot::Finish(sums.a1), Dot::Finish(sums.b1), Dot::Finish(sums.c1),
                   Dot::Finish(sums.d1));
      }
      ahead.Step<1>();
      const std::size_t group_bytes = static_cast<std::size_t>(group_units) * kLine;
      codes0 += group_bytes;
      codes1 += group_bytes;
      words += group_units * Format::kQuadsPerUnit * kHeadTile * 2;
    }
  }
}

template <class Dot, class Format>
HWY_INLINE void ScoreBlock(const KernelBlock& b, const void* prepared, int heads, float* logits) {
  const IntQuery query(prepared);
  if (heads == 1) return ScoreHeads<Dot, Format, 1>(b, query, logits);
  if (heads == 2) return ScoreHeads<Dot, Format, 2>(b, query, logits);
  if (heads == 3) return ScoreHeads<Dot, Format, 3>(b, query, logits);
  ScoreHeads<Dot, Format, 4>(b, query, logits);
}

// -- values -------------------------------------------------------------------------------------

// Rows up to the end of the last panel in use.
HWY_INLINE int PanelRows(const KernelBlock& b) {
  return (b.rows + kPanelRows - 1) / kPanelRows * kPanelRows;
}

// Weights times the scales of one group, rounded.
struct GroupWeights {
  alignas(64) std::int32_t words[kHeadTile][kBlockRows];  // [row / 4] at 4 i32, two of them used
  float step[kHeadTile];                                  // weight * scale ~ step * rounded
  float zero_sum[kHeadTile];                              // sum of weight * zero point
};

template <class Dot>
HWY_INLINE void PrepareHead(const KernelBlock& b, const float* weights, const float* scales,
                            std::int32_t* words, float* step) {
  const DF df;
  const DI di;
  const int rows = PanelRows(b);
  alignas(64) float scaled[kBlockRows];
  VF largest = hn::Zero(df);
  for (int r = 0; r < rows; r += kLanes) {
    const VF product = hn::Mul(hn::LoadU(df, weights + r), hn::Load(df, scales + r));
    hn::Store(product, df, scaled + r);
    largest = hn::Max(largest, product);
  }
  // The floor keeps the quotient finite; what is below it is as good as zero.
  const float most = std::max(hn::GetLane(hn::MaxOfLanes(df, largest)), 1e-30F);
  *step = most / Dot::kWeightLimit;
  const VF inverse = hn::Set(df, Dot::kWeightLimit / most);
  for (int r = 0; r < rows; r += kLanes) {
    const VI rounded = hn::NearestInt(hn::Mul(hn::Load(df, scaled + r), inverse));
    hn::Store(Dot::WeightWords(rounded), di, words + r);
  }
}

HWY_INLINE float ZeroSum(const KernelBlock& b, const float* weights, const std::uint16_t* zeros) {
  const DF df;
  VF sum = hn::Zero(df);
  for (int r = 0; r < b.rows; r += kLanes) {
    sum = hn::MulAdd(hn::LoadU(df, weights + r), LoadScales(ScaleType::kF16, zeros + r), sum);
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

template <class Dot, int kHeads>
HWY_INLINE void PrepareGroup(const KernelBlock& b, const float* weights, int g, GroupWeights& out) {
  const DF df;
  const std::uint16_t* stored = b.scales + static_cast<std::ptrdiff_t>(g) * b.capacity_rows;
  alignas(64) float scales[kBlockRows];
  const VF level_scale = hn::Set(df, b.codebook == nullptr ? 1.0F : b.codebook->level_scale);
  for (int r = 0; r < PanelRows(b); r += kLanes) {
    hn::Store(hn::Mul(LoadScales(b.scale_type, stored + r), level_scale), df, scales + r);
  }
  for (int h = 0; h < kHeads; ++h) {
    const float* w = weights + h * kBlockRows;
    PrepareHead<Dot>(b, w, scales, out.words[h], &out.step[h]);
    out.zero_sum[h] =
        b.zeros == nullptr
            ? 0.0F
            : ZeroSum(b, w, b.zeros + static_cast<std::ptrdiff_t>(g) * b.capacity_rows);
  }
}

// acc += step * sums + zero_sum, on the first `count` lanes.
HWY_INLINE void AddToAccumulator(VI sum, float step, float zero_sum, int count, float* acc) {
  const DF df;
  const VF add = hn::MulAdd(hn::ConvertTo(df, sum), hn::Set(df, step), hn::Set(df, zero_sum));
  if (count >= kLanes) return hn::StoreU(hn::Add(add, hn::LoadU(df, acc)), df, acc);
  const auto mask = hn::FirstN(df, static_cast<std::size_t>(count));
  hn::BlendedStore(hn::Add(add, hn::MaskedLoad(mask, df, acc)), mask, df, acc);
}

// kVectors vectors of dims from `codes` on. One vector may be partial: `count` dims.
template <class Dot, class Format, int kHeads, int kVectors>
HWY_INLINE void ValueTile(const std::uint8_t* codes, std::size_t unit_stride, int units,
                          const typename Format::template Reader<Side::kValue>& reader,
                          const GroupWeights& w, int count, float* acc, int acc_stride,
                          Ahead& ahead) {
  const D8 d8;
  const DI di;
  const auto mask = hn::FirstN(di, static_cast<std::size_t>(count));
  static constexpr std::int32_t kNone[kHeadTile] = {};
  Sums<Dot> s;
  StartSums<Dot, kHeads>(s, kNone);
  const std::int32_t* words = w.words[0];
  for (int u = 0; u < units; ++u) {
    V8 raw0, raw1;
    if constexpr (kVectors > 1) {
      raw0 = hn::LoadU(d8, codes);
      raw1 = hn::LoadU(d8, codes + kVectorBytes);
    } else {
      raw0 =
          hn::BitCast(d8, hn::MaskedLoad(mask, di, reinterpret_cast<const std::int32_t*>(codes)));
      raw1 = raw0;
    }
    constexpr Sign kSign = Format::kValueSign;
    AddQuad<Dot, Side::kValue, kHeads, kVectors>(s, Dot::template Widen<kSign>(reader.Low(raw0)),
                                                 Dot::template Widen<kSign>(reader.Low(raw1)),
                                                 words);
    if constexpr (Format::kQuadsPerUnit > 1) {
      AddQuad<Dot, Side::kValue, kHeads, kVectors>(s, Dot::template Widen<kSign>(reader.High(raw0)),
                                                   Dot::template Widen<kSign>(reader.High(raw1)),
                                                   words + 4);
    }
    words += 4 * Format::kQuadsPerUnit;
    codes += unit_stride;
    ahead.Step<kPairLines * kVectors / 2>();
  }
  AddToAccumulator(Dot::Finish(s.a0), w.step[0], w.zero_sum[0], count, acc);
  if constexpr (kVectors > 1) {
    AddToAccumulator(Dot::Finish(s.a1), w.step[0], w.zero_sum[0], kLanes, acc + kLanes);
  }
  if constexpr (kHeads > 1) {
    AddToAccumulator(Dot::Finish(s.b0), w.step[1], w.zero_sum[1], count, acc + acc_stride);
    if constexpr (kVectors > 1) {
      AddToAccumulator(Dot::Finish(s.b1), w.step[1], w.zero_sum[1], kLanes,
                       acc + acc_stride + kLanes);
    }
  }
  if constexpr (kHeads > 2) {
    AddToAccumulator(Dot::Finish(s.c0), w.step[2], w.zero_sum[2], count, acc + 2 * acc_stride);
    if constexpr (kVectors > 1) {
      AddToAccumulator(Dot::Finish(s.c1), w.step[2], w.zero_sum[2], kLanes,
                       acc + 2 * acc_stride + kLanes);
    }
  }
  if constexpr (kHeads > 3) {
    AddToAccumulator(Dot::Finish(s.d0), w.step[3], w.zero_sum[3], count, acc + 3 * acc_stride);
    if constexpr (kVectors > 1) {
      AddToAccumulator(Dot::Finish(s.d1), w.step[3], w.zero_sum[3], kLanes,
                       acc + 3 * acc_stride + kLanes);
    }
  }
}

template <class Dot, class Format, int kHeads>
HWY_NOINLINE void AccumulateHeads(const KernelBlock& b, const float* weights, float* acc) {
  constexpr int kUnitRows = 4 * Format::kQuadsPerUnit;
  const typename Format::template Reader<Side::kValue> reader(b.codebook);
  const int units = (b.rows + kUnitRows - 1) / kUnitRows;
  const std::size_t unit_stride = static_cast<std::size_t>(b.dim) * 4;
  const int acc_stride = AccumulatorStride(b.dim);
  Ahead ahead(b);
  GroupWeights group_weights;
  for (int g = 0; g < b.dim / b.group; ++g) {
    PrepareGroup<Dot, kHeads>(b, weights, g, group_weights);
    ahead.Step<2>();
    const int end = (g + 1) * b.group;
    int d = g * b.group;
    for (; d + 2 * kLanes <= end; d += 2 * kLanes) {
      ValueTile<Dot, Format, kHeads, 2>(b.codes + static_cast<std::size_t>(d) * 4, unit_stride,
                                        units, reader, group_weights, kLanes, acc + d, acc_stride,
                                        ahead);
    }
    for (; d < end; d += kLanes) {
      ValueTile<Dot, Format, kHeads, 1>(b.codes + static_cast<std::size_t>(d) * 4, unit_stride,
                                        units, reader, group_weights, std::min(end - d, kLanes),
                                        acc + d, acc_stride, ahead);
    }
  }
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

#endif  // KVSIEVE_QUANT_KERNELS_INT_INL_H_
