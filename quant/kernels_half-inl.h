// Floats of one or two bytes, for AVX2 and AVX-512: scores and weighted sums in f32. Included once
// per target by the units of the formats.
//
// A vector of 16-bit lanes is loaded at once: one code a lane, or the two codes of a pair (two dims
// of a row for keys, two rows of a dim for values; CodeLayout::kPairs). `Format` widens the lanes
// to the f32 numbers of code k of each.
#if defined(KVSIEVE_QUANT_KERNELS_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_HALF_INL_H_
#undef KVSIEVE_QUANT_KERNELS_HALF_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_HALF_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/kernels_common-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

using DHalf = hn::Rebind<std::int16_t, DF>;
using VHalf = hn::Vec<DHalf>;

HWY_INLINE VF WidenF16(VHalf bits) {
  return hn::PromoteTo(DF(), hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
}

struct F16Format {
  static constexpr int kCodes = 1;
  static constexpr CacheLevel kAheadTo = CacheLevel::kL2;
  static constexpr float kUnit = 1.0F;  // what sums are in
  template <int k>
  static HWY_INLINE VF Widen(VHalf lanes) {
    return WidenF16(lanes);
  }
};

struct BF16Format {
  static constexpr int kCodes = 1;
  static constexpr CacheLevel kAheadTo = CacheLevel::kL2;
  static constexpr float kUnit = 1.0F;
  template <int k>
  static HWY_INLINE VF Widen(VHalf lanes) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DI(), lanes)));
  }
};

// e4m3 | s eeee mmm | is the f16 number | s 0eeee mmm0000000 | times 2^8, subnormal ones included.
// The shift to the right leaves a second sign bit, which is masked.
struct Fp8Format {
  static constexpr int kCodes = 2;
  static constexpr CacheLevel kAheadTo = CacheLevel::kL1;
  static constexpr float kUnit = 256.0F;
  template <int k>
  static HWY_INLINE VF Widen(VHalf lanes) {
    const VHalf high = k == 0 ? hn::ShiftLeft<8>(lanes) : lanes;
    const auto kept = static_cast<std::int16_t>(0xBF80);
    return WidenF16(hn::And(hn::ShiftRight<1>(high), hn::Set(DHalf(), kept)));
  }
};

// f32 sums of one head over kVectors vectors.
struct HeadSums {
  VF v0, v1, v2, v3;
};
// The vectors that one multiplier is for: as loaded, and widened.
struct Lanes {
  VHalf v0, v1, v2, v3;
};
struct Inputs {
  VF v0, v1, v2, v3;
};

// AVX-512 has registers for 4 heads by 4 vectors, AVX2 for 4 by 2.
constexpr int kWide = HWY_TARGET == HWY_AVX3 ? 4 : 2;

HWY_INLINE HeadSums NoSums() {
  const VF zero = hn::Zero(DF());
  return {zero, zero, zero, zero};
}

HWY_INLINE VHalf LoadLanes(const std::uint8_t* bytes) {
  return hn::LoadU(DHalf(), reinterpret_cast<const std::int16_t*>(bytes));
}

template <class Format, int kVectors, int k>
HWY_INLINE Inputs WidenAll(const Lanes& lanes) {
  Inputs in;
  in.v0 = Format::template Widen<k>(lanes.v0);
  if constexpr (kVectors > 1) in.v1 = Format::template Widen<k>(lanes.v1);
  if constexpr (kVectors > 2) in.v2 = Format::template Widen<k>(lanes.v2);
  if constexpr (kVectors > 3) in.v3 = Format::template Widen<k>(lanes.v3);
  return in;
}

template <int kVectors>
HWY_INLINE void MulAddAll(HeadSums& s, const Inputs& in, float multiplier) {
  const VF m = hn::Set(DF(), multiplier);
  s.v0 = hn::MulAdd(in.v0, m, s.v0);
  if constexpr (kVectors > 1) s.v1 = hn::MulAdd(in.v1, m, s.v1);
  if constexpr (kVectors > 2) s.v2 = hn::MulAdd(in.v2, m, s.v2);
  if constexpr (kVectors > 3) s.v3 = hn::MulAdd(in.v3, m, s.v3);
}

template <int kHeads>
struct TileSums {
  HeadSums s0, s1, s2, s3;
  HWY_INLINE TileSums() : s0(NoSums()), s1(NoSums()), s2(NoSums()), s3(NoSums()) {}

  // Codes k.. of the lanes; the multiplier of code k and head h lies at k * kNext + h * kStride.
  template <class Format, int kVectors, int kStride, int kNext, int k = 0>
  HWY_INLINE void Add(const Lanes& lanes, const float* multipliers) {
    const Inputs in = WidenAll<Format, kVectors, k>(lanes);
    const float* m = multipliers + k * kNext;
    MulAddAll<kVectors>(s0, in, m[0]);
    if constexpr (kHeads > 1) MulAddAll<kVectors>(s1, in, m[kStride]);
    if constexpr (kHeads > 2) MulAddAll<kVectors>(s2, in, m[2 * kStride]);
    if constexpr (kHeads > 3) MulAddAll<kVectors>(s3, in, m[3 * kStride]);
    if constexpr (k + 1 < Format::kCodes) {
      Add<Format, kVectors, kStride, kNext, k + 1>(lanes, multipliers);
    }
  }
};

// -- keys ---------------------------------------------------------------------------------------

// out: where the rows of each vector begin, for head 0.
template <class Format>
HWY_INLINE void StoreSums(const HeadSums& s, float* const out[kWide], int h) {
  const DF df;
  const VF unit = hn::Set(df, Format::kUnit);
  hn::StoreU(hn::Mul(s.v0, unit), df, out[0] + h * kBlockRows);
  hn::StoreU(hn::Mul(s.v1, unit), df, out[1] + h * kBlockRows);
  if constexpr (kWide > 2) {
    hn::StoreU(hn::Mul(s.v2, unit), df, out[2] + h * kBlockRows);
    hn::StoreU(hn::Mul(s.v3, unit), df, out[3] + h * kBlockRows);
  }
}

template <class Format, int kHeads>
HWY_NOINLINE void ScoreHeads(const KernelBlock& b, const float* q, float* logits) {
  constexpr int kPanelsPerStep = kWide * kLanes / kPanelRows;
  constexpr int kCodes = Format::kCodes;
  const int panels = (b.rows + kPanelRows - 1) / kPanelRows;
  const int steps = (b.dim + kCodes - 1) / kCodes;
  constexpr std::size_t kStepBytes = kPanelRows * 2;
  const std::size_t panel_bytes = static_cast<std::size_t>(steps) * kStepBytes;
  constexpr std::size_t kRowBytes = static_cast<std::size_t>(kLanes) * 2;
  Ahead<Format::kAheadTo> ahead(b);
  for (int panel = 0; panel < panels; panel += kPanelsPerStep) {
    // Panels past the last one repeat it, which needs no second kernel.
    const std::uint8_t* codes[kWide];
    float* out[kWide];
    for (int v = 0; v < kWide; ++v) {
      const int first_lane = panel * kPanelRows + v * kLanes;
      const int p = std::min(first_lane / kPanelRows, panels - 1);
      const int lane = first_lane % kPanelRows;
      codes[v] = b.codes + static_cast<std::size_t>(p) * panel_bytes +
                 static_cast<std::size_t>(lane) / kLanes * kRowBytes;
      out[v] = logits + p * kPanelRows + lane;
    }
    TileSums<kHeads> s;
    const std::uint8_t* c0 = codes[0];
    const std::uint8_t* c1 = codes[1];
    const std::uint8_t* c2 = codes[kWide - 2];
    const std::uint8_t* c3 = codes[kWide - 1];
    std::size_t at = 0;
    for (int step = 0; step < steps; ++step) {
      Lanes lanes;
      lanes.v0 = LoadLanes(c0 + at);
      lanes.v1 = LoadLanes(c1 + at);
      if constexpr (kWide > 2) lanes.v2 = LoadLanes(c2 + at);
      if constexpr (kWide > 2) lanes.v3 = LoadLanes(c3 + at);
      s.template Add<Format, kWide, 1, kHeadTile>(lanes, q + step * kCodes * kHeadTile);
      at += kStepBytes;
      if constexpr (kWide > 2) {
        ahead.template Step<2>();
      } else if (step % 2 == 0) {
        ahead.template Step<1>();
      }
    }
    StoreSums<Format>(s.s0, out, 0);
    if constexpr (kHeads > 1) StoreSums<Format>(s.s1, out, 1);
    if constexpr (kHeads > 2) StoreSums<Format>(s.s2, out, 2);
    if constexpr (kHeads > 3) StoreSums<Format>(s.s3, out, 3);
  }
}

template <class Format>
HWY_INLINE void ScoreBlock(const KernelBlock& block, const void* prepared, int heads,
                           float* logits) {
  const auto* q = static_cast<const float*>(prepared);
  if (heads == 1) return ScoreHeads<Format, 1>(block, q, logits);
  if (heads == 2) return ScoreHeads<Format, 2>(block, q, logits);
  if (heads == 3) return ScoreHeads<Format, 3>(block, q, logits);
  ScoreHeads<Format, 4>(block, q, logits);
}

// -- values -------------------------------------------------------------------------------------

template <class Format>
HWY_INLINE void AddVector(VF sum, float* acc) {
  const DF df;
  hn::StoreU(hn::MulAdd(sum, hn::Set(df, Format::kUnit), hn::LoadU(df, acc)), df, acc);
}
template <class Format, int kVectors>
HWY_INLINE void AddTo(const HeadSums& s, float* acc) {
  AddVector<Format>(s.v0, acc);
  if constexpr (kVectors > 1) AddVector<Format>(s.v1, acc + kLanes);
  if constexpr (kVectors > 2) AddVector<Format>(s.v2, acc + 2 * kLanes);
  if constexpr (kVectors > 3) AddVector<Format>(s.v3, acc + 3 * kLanes);
}

// kVectors vectors of dims from `values` on; count < kLanes: one vector, of which only `count`
// dims exist.
template <class Format, int kHeads, int kVectors>
HWY_INLINE void ValueTile(const KernelBlock& b, const std::uint8_t* values, int count,
                          const float* weights, float* acc, Ahead<Format::kAheadTo>& ahead) {
  const std::size_t line_bytes = static_cast<std::size_t>(b.dim) * 2;
  constexpr std::size_t kStep = static_cast<std::size_t>(kLanes) * 2;
  alignas(32) std::uint8_t padded[kLanes * 2] = {};
  TileSums<kHeads> s;
  for (int row = 0; row < b.rows; row += Format::kCodes) {
    Lanes lanes;
    if (kVectors == 1 && count < kLanes) {
      std::memcpy(padded, values, static_cast<std::size_t>(count) * 2);
      lanes.v0 = LoadLanes(padded);
    } else {
      lanes.v0 = LoadLanes(values);
    }
    if constexpr (kVectors > 1) lanes.v1 = LoadLanes(values + kStep);
    if constexpr (kVectors > 2) lanes.v2 = LoadLanes(values + 2 * kStep);
    if constexpr (kVectors > 3) lanes.v3 = LoadLanes(values + 3 * kStep);
    s.template Add<Format, kVectors, kBlockRows, 1>(lanes, weights + row);
    values += line_bytes;
    if constexpr (kVectors * kLanes == 64) {
      ahead.template Step<2>();
    } else if (row / Format::kCodes % 2 == 0) {
      ahead.template Step<1>();
    }
  }
  const int stride = AccumulatorStride(b.dim);
  AddTo<Format, kVectors>(s.s0, acc);
  if constexpr (kHeads > 1) AddTo<Format, kVectors>(s.s1, acc + stride);
  if constexpr (kHeads > 2) AddTo<Format, kVectors>(s.s2, acc + 2 * stride);
  if constexpr (kHeads > 3) AddTo<Format, kVectors>(s.s3, acc + 3 * stride);
}

template <class Format, int kHeads>
HWY_NOINLINE void AccumulateHeads(const KernelBlock& b, const float* weights, float* acc) {
  Ahead<Format::kAheadTo> ahead(b);
  int d = 0;
  for (; d + kWide * kLanes <= b.dim; d += kWide * kLanes) {
    ValueTile<Format, kHeads, kWide>(b, b.codes + static_cast<std::size_t>(d) * 2, kLanes, weights,
                                     acc + d, ahead);
  }
  for (; d < b.dim; d += kLanes) {
    ValueTile<Format, kHeads, 1>(b, b.codes + static_cast<std::size_t>(d) * 2,
                                 std::min(b.dim - d, kLanes), weights, acc + d, ahead);
  }
}

template <class Format>
HWY_INLINE void AccumulateBlock(const KernelBlock& block, const float* weights, int heads,
                                float* acc) {
  if (heads == 1) return AccumulateHeads<Format, 1>(block, weights, acc);
  if (heads == 2) return AccumulateHeads<Format, 2>(block, weights, acc);
  if (heads == 3) return AccumulateHeads<Format, 3>(block, weights, acc);
  AccumulateHeads<Format, 4>(block, weights, acc);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_HALF_INL_H_
