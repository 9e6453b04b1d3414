// Integer codes of one vector of lanes, out of the lines they are packed in, for AVX2 and AVX-512.
#if defined(KVSIEVE_QUANT_KERNELS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_CODES_INL_H_
#undef KVSIEVE_QUANT_KERNELS_CODES_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/kernels_common-inl.h"
#include "quant/layout.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

// One vector of each line of a unit.
template <bool kPartial>
struct Lines {
  const std::uint8_t* at;
  std::size_t stride;
  int count;  // kPartial: i32 lanes that exist

  // A partial vector reads `count` lanes and no further.
  HWY_INLINE V8 operator[](int line) const {
    const std::uint8_t* from = at + static_cast<std::size_t>(line) * stride;
    if constexpr (!kPartial) return hn::LoadU(D8(), from);
    const DI di;
    return hn::BitCast(D8(), hn::MaskedLoad(hn::FirstN(di, static_cast<std::size_t>(count)), di,
                                            reinterpret_cast<const std::int32_t*>(from)));
  }
};

// Bytes shifted by kBits to the right, or -kBits to the left; what comes from other bytes is left
// for the caller to mask.
template <int kBits>
HWY_INLINE V8 ShiftBytes(V8 bytes) {
  const hn::RebindToUnsigned<D16> du16;
  if constexpr (kBits > 0) {
    return hn::BitCast(D8(), hn::ShiftRight<kBits>(hn::BitCast(du16, bytes)));
  } else if constexpr (kBits < 0) {
    return hn::BitCast(D8(), hn::ShiftLeft<-kBits>(hn::BitCast(du16, bytes)));
  } else {
    return bytes;
  }
}
template <int kShift, int kMask>
HWY_INLINE V8 Field(V8 bytes) {
  return hn::And(ShiftBytes<kShift>(bytes), hn::Set(D8(), kMask));
}

// What is known of codes when they are widened.
enum class Sign { kSigned, kUnsigned };

// Formats: how codes lie in the lines of a unit (quant/layout.h), and what they stand for. A reader
// gives the codes of quad k, one a byte: for keys unsigned, with the reader's offset added to the
// true code; for values true codes of sign kValueSign.
struct Int8Format {
  static constexpr int kLines = 1;
  static constexpr int kQuads = 1;
  static constexpr Sign kValueSign = Sign::kSigned;
  template <Side kSide>
  struct Reader {
    static constexpr std::int32_t offset = kSide == Side::kKey ? 128 : 0;
    explicit HWY_INLINE Reader(const Codebook*) {}
    template <int k, class L>
    HWY_INLINE V8 Quad(const L& lines) const {
      if constexpr (kSide == Side::kValue) return lines[0];
      return hn::Xor(lines[0], hn::Set(D8(), 0x80));
    }
  };
};

struct NibbleFormat {
  static constexpr int kLines = 1;
  static constexpr int kQuads = 2;
  static constexpr Sign kValueSign = Sign::kUnsigned;
  template <Side kSide>
  struct Reader {
    static constexpr std::int32_t offset = 0;
    explicit HWY_INLINE Reader(const Codebook*) {}
    template <int k, class L>
    HWY_INLINE V8 Quad(const L& lines) const {
      return Field<4 * k, 15>(lines[0]);
    }
  };
};

// Codes that select one of 2^kBits signed levels. Table look-ups see the low 4 bits of a byte, and
// give 0 where bit 7 is set: the other bits may be anything.
template <int kBits>
struct CodebookFormat {
  static constexpr int kLines = kBits == 3 ? 3 : kBits == 5 ? 5 : 1;
  static constexpr int kQuads = kBits == 4 ? 2 : kBits == 2 ? 4 : 8;
  static constexpr Sign kValueSign = Sign::kSigned;

  template <Side kSide>
  struct Reader {
    std::int32_t offset = 0;  // keys: the lowest level becomes 0, so that codes stay small
    V8 table;
    V8 second;  // 5 bits: levels 16..31; 2 bits: by bits 2 and 3 of a byte

    explicit HWY_INLINE Reader(const Codebook* codebook) {
      constexpr int kLevels = 1 << kBits;
      if constexpr (kSide == Side::kKey) {
        offset = -codebook->level[0];
        for (int i = 1; i < kLevels; ++i)
          offset = std::max<std::int32_t>(offset, -codebook->level[i]);
      }
      alignas(16) std::uint8_t levels[2][16];
      for (int i = 0; i < 16; ++i) {
        levels[0][i] = static_cast<std::uint8_t>(codebook->level[i % kLevels] + offset);
        const int other = kBits == 5 ? 16 + i : i / 4;
        levels[1][i] = static_cast<std::uint8_t>(codebook->level[other] + offset);
      }
      table = hn::LoadDup128(D8(), levels[0]);
      second = hn::LoadDup128(D8(), levels[1]);
    }

    template <int k, class L>
    HWY_INLINE V8 Quad(const L& lines) const {
      const D8 d8;
      if constexpr (kBits == 5) {
        const V8 nibbles = Field<k % 2 * 4, 15>(lines[k / 2]);
        return Blend<kBitShift[k]>(lines[4], hn::TableLookupBytes(second, nibbles),
                                   hn::TableLookupBytes(table, nibbles));
      } else if constexpr (kBits == 3) {
        // Quads k and k ^ 2 share a vector: bits 0..2 and 4..6 of each byte, the others 0.
        constexpr int kOdd = k % 2;
        constexpr int kThirdShift = k < 4 ? kOdd : -1 - kOdd;
        const V8 low = ShiftBytes<2 * kOdd>(lines[k / 4]);
        const V8 both = hn::Or(hn::And(low, hn::Set(d8, 0x33)), Field<kThirdShift, 0x44>(lines[2]));
        return hn::TableLookupBytes(table, ShiftBytes<k % 4 / 2 * 4>(both));
      } else if constexpr (kBits == 2) {
        return hn::TableLookupBytes(k % 2 == 0 ? table : second, Field<k / 2 * 4, 15>(lines[0]));
      } else if constexpr (kBits == 1) {
        return hn::TableLookupBytes(table, Field<kBitShift[k], 1>(lines[0]));
      } else {
        return hn::TableLookupBytes(table, Field<4 * k, 15>(lines[0]));
      }
    }

   private:
    // Bytes of `yes` where bit kBit of `bits` is set, else of `no`.
    template <int kBit>
    static HWY_INLINE V8 Blend(V8 bits, V8 yes, V8 no) {
#if HWY_TARGET == HWY_AVX3
      const auto set = hn::TestBit(bits, hn::Set(D8(), 1 << kBit));
#else
      const auto set = hn::MaskFromVec(ShiftBytes<kBit - 7>(bits));  // of a mask, bit 7 counts
#endif
      return hn::IfThenElse(set, yes, no);
    }
  };
};

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_CODES_INL_H_
