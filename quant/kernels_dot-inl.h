// Products of integer codes with 16-bit or 8-bit multipliers, for AVX2 and AVX-512: included once
// per target by the units of the int8 and nibble formats, and again by their VNNI units.
//
// A vector has one i32 lane per row (keys) or per dim (values); the four codes of a quad lie in
// that lane's bytes. `Dot` multiplies a quad by the query or the weights and adds the products to
// the lane. `Format` turns stored bytes into codes. Both are template arguments, so the loops hold
// no branch on the format. Sums are named members because g++ 12 spills arrays of vectors.
#if defined(KVSIEVE_QUANT_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_DOT_INL_H_
#undef KVSIEVE_QUANT_KERNELS_DOT_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_DOT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "quant/kernels_codes-inl.h"
#include "quant/kernels_query.h"
#include "quant/layout.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// Two multiplier words of one quad, broadcast: see kernels_query.h.
struct Words {
  VI first, second;
  static constexpr int kCount = 2;
  explicit HWY_INLINE Words(const std::int32_t* words)
      : first(hn::Set(DI(), words[0])), second(hn::Set(DI(), words[1])) {}
};
struct Word {
  VI only;
  static constexpr int kCount = 1;
  explicit HWY_INLINE Word(const std::int32_t* word) : only(hn::Set(DI(), word[0])) {}
};

// 16-bit multiply-add pairs; multipliers in QueryForm::kPairs.
struct MaddDot {
  using Multiplier = Words;
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
    // Left alone, g++ 12 reassociates the adds of several quads and spills the products.
    asm("" : "+v"(s.sum.raw));
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
  using Multiplier = Words;
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

// Keys times one byte of the query.
struct VnniByteDot {
  using Multiplier = Word;
  using Codes = V8;
  struct Sum {
    VI sum;
  };
  template <Sign kSign>
  static HWY_INLINE Codes Widen(V8 bytes) {
    return bytes;
  }
  static HWY_INLINE Sum Start(std::int32_t value) { return {hn::Set(DI(), value)}; }
  static HWY_INLINE void AddKey(Sum& s, Codes codes, Word q) {
    asm("vpdpbusd %2, %1, %0" : "+v"(s.sum.raw) : "v"(codes.raw), "v"(q.only.raw));
  }
  static HWY_INLINE VI Finish(Sum s) { return s.sum; }
};
#endif  // HWY_AVX3

// Keys times one byte of the query, by sums of pairs in 16 bits (kByteLimitOfPairs). Intrinsics,
// because Highway 1.0.3 has no such operation.
struct ByteDot {
  using Multiplier = Word;
  using Codes = V8;
  struct Sum {
    VI sum;
  };
  template <Sign kSign>
  static HWY_INLINE Codes Widen(V8 bytes) {
    return bytes;
  }
  static HWY_INLINE Sum Start(std::int32_t value) { return {hn::Set(DI(), value)}; }
  static HWY_INLINE void AddKey(Sum& s, Codes codes, Word q) {
#if HWY_TARGET == HWY_AVX3
    const __m512i pairs = _mm512_maddubs_epi16(codes.raw, q.only.raw);
    s.sum.raw = _mm512_add_epi32(s.sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#else
    const __m256i pairs = _mm256_maddubs_epi16(codes.raw, q.only.raw);
    s.sum.raw = _mm256_add_epi32(s.sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    // As above.
    asm("" : "+v"(s.sum.raw));
  }
  static HWY_INLINE VI Finish(Sum s) { return s.sum; }
};

// As ByteDot, for codes of at most 15 and groups of at most kSmallGroup dims: eight sums of two
// products, 2 * 15 * 127 each, still fit 16 bits, so they are widened once per group.
struct SmallByteDot {
  using Multiplier = Word;
  using Codes = V8;
  struct Sum {
    VI pairs;
    std::int32_t start;
  };
  template <Sign kSign>
  static HWY_INLINE Codes Widen(V8 bytes) {
    return bytes;
  }
  static HWY_INLINE Sum Start(std::int32_t value) { return {hn::Zero(DI()), value}; }
  static HWY_INLINE void AddKey(Sum& s, Codes codes, Word q) {
#if HWY_TARGET == HWY_AVX3
    s.pairs.raw = _mm512_add_epi16(s.pairs.raw, _mm512_maddubs_epi16(codes.raw, q.only.raw));
#else
    s.pairs.raw = _mm256_add_epi16(s.pairs.raw, _mm256_maddubs_epi16(codes.raw, q.only.raw));
#endif
    // As above.
    asm("" : "+v"(s.pairs.raw));
  }
  static HWY_INLINE VI Finish(Sum s) {
    const D16 d16;
    VI unused = hn::Zero(DI());
    return hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(d16, s.pairs), hn::Set(d16, 1),
                                         hn::Set(DI(), s.start), unused);
  }
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
  const typename Dot::Multiplier w(words);
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
  constexpr int kStride = kSide == Side::kKey ? Dot::Multiplier::kCount : kBlockRows;
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

// Quads k.. of one unit of two vectors; the words of neighbouring quads are kNextQuad apart.
template <class Dot, class Format, Side kSide, int kHeads, int kVectors, int k = 0>
HWY_INLINE void AddUnit(Sums<Dot>& s, const Lines<kVectors == 1>& lines0,
                        const Lines<kVectors == 1>& lines1,
                        const typename Format::template Reader<kSide>& reader,
                        const std::int32_t* words) {
  if constexpr (k < Format::kQuads) {
    constexpr int kNextQuad = kSide == Side::kKey ? kHeadTile * Dot::Multiplier::kCount : 4;
    constexpr Sign kSign = kSide == Side::kKey ? Sign::kUnsigned : Format::kValueSign;
    const V8 codes0 = reader.template Quad<k>(lines0);
    const V8 codes1 = kVectors == 1 ? codes0 : reader.template Quad<k>(lines1);
    AddQuad<Dot, kSide, kHeads, kVectors>(s, Dot::template Widen<kSign>(codes0),
                                          Dot::template Widen<kSign>(codes1),
                                          words + k * kNextQuad);
    AddUnit<Dot, Format, kSide, kHeads, kVectors, k + 1>(s, lines0, lines1, reader, words);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_DOT_INL_H_
