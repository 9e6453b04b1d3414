#include <algorithm>
#include <cstddef>
#include <cstring>

#include "quant/kernels.h"
#include "quant/kernels_plain.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_half.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/kernels_common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <HalfType kType>
HWY_INLINE VF LoadHalves(const std::uint8_t* bytes) {
  return LoadScales(kType, reinterpret_cast<const std::uint16_t*>(bytes));
}

// f32 sums of one head over kVectors vectors.
struct HeadSums {
  VF v0, v1, v2, v3;
};
// The vectors that one multiplier is for.
struct Inputs {
  VF v0, v1, v2, v3;
};

// AVX-512 has registers for 4 heads by 4 vectors, AVX2 for 4 by 2.
constexpr int kWide = HWY_TARGET == HWY_AVX3 ? 4 : 2;

HWY_INLINE HeadSums NoSums() {
  const VF zero = hn::Zero(DF());
  return {zero, zero, zero, zero};
}

template <int kVectors>
HWY_INLINE void MulAddAll(HeadSums& s, const Inputs& in, float multiplier) {
  const VF m = hn::Set(DF(), multiplier);
  s.v0 = hn::MulAdd(in.v0, m, s.v0);
  if constexpr (kVectors > 1) s.v1 = hn::MulAdd(in.v1, m, s.v1);
  if constexpr (kVectors > 2) s.v2 = hn::MulAdd(in.v2, m, s.v2);
  if constexpr (kVectors > 3) s.v3 = hn::MulAdd(in.v3, m, s.v3);
}

// -- keys ---------------------------------------------------------------------------------------

// out: where the rows of each vector begin, for head 0.
HWY_INLINE void StoreSums(const HeadSums& s, float* const out[kWide], int h) {
  const DF df;
  hn::StoreU(s.v0, df, out[0] + h * kBlockRows);
  hn::StoreU(s.v1, df, out[1] + h * kBlockRows);
  if constexpr (kWide > 2) {
    hn::StoreU(s.v2, df, out[2] + h * kBlockRows);
    hn::StoreU(s.v3, df, out[3] + h * kBlockRows);
  }
}

template <HalfType kType, int kHeads>
HWY_NOINLINE void ScoreHeads(const KernelBlock& b, const float* q, float* logits) {
  constexpr int kPanelsPerStep = kWide * kLanes / kPanelRows;
  const int panels = (b.rows + kPanelRows - 1) / kPanelRows;
  const std::size_t panel_bytes = static_cast<std::size_t>(b.dim) * kPanelRows * 2;
  constexpr std::size_t kRowBytes = static_cast<std::size_t>(kLanes) * 2;
  Ahead<CacheLevel::kL2> ahead(b);
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
    HeadSums s0 = NoSums(), s1 = NoSums(), s2 = NoSums(), s3 = NoSums();
    const std::uint8_t* c0 = codes[0];
    const std::uint8_t* c1 = codes[1];
    const std::uint8_t* c2 = codes[kWide - 2];
    const std::uint8_t* c3 = codes[kWide - 1];
    std::size_t at = 0;
    for (int d = 0; d < b.dim; ++d) {
      Inputs in;
      in.v0 = LoadHalves<kType>(c0 + at);
      in.v1 = LoadHalves<kType>(c1 + at);
      if constexpr (kWide > 2) in.v2 = LoadHalves<kType>(c2 + at);
      if constexpr (kWide > 2) in.v3 = LoadHalves<kType>(c3 + at);
      const float* qd = q + d * kHeadTile;
      MulAddAll<kWide>(s0, in, qd[0]);
      if constexpr (kHeads > 1) MulAddAll<kWide>(s1, in, qd[1]);
      if constexpr (kHeads > 2) MulAddAll<kWide>(s2, in, qd[2]);
      if constexpr (kHeads > 3) MulAddAll<kWide>(s3, in, qd[3]);
      at += kPanelRows * 2;
      if constexpr (kWide > 2) {
        ahead.Step<2>();
      } else if (d % 2 == 0) {
        ahead.Step<1>();
      }
    }
    StoreSums(s0, out, 0);
    if constexpr (kHeads > 1) StoreSums(s1, out, 1);
    if constexpr (kHeads > 2) StoreSums(s2, out, 2);
    if constexpr (kHeads > 3) StoreSums(s3, out, 3);
  }
}

template <HalfType kType>
HWY_INLINE void ScoreBlock(const KernelBlock& block, const float* q, int heads, float* logits) {
  if (heads == 1) return ScoreHeads<kType, 1>(block, q, logits);
  if (heads == 2) return ScoreHeads<kType, 2>(block, q, logits);
  if (heads == 3) return ScoreHeads<kType, 3>(block, q, logits);
  ScoreHeads<kType, 4>(block, q, logits);
}

void HalfScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  const auto* q = static_cast<const float*>(prepared);
  if (block.half_type == HalfType::kF16) {
    ScoreBlock<HalfType::kF16>(block, q, heads, logits);
  } else {
    ScoreBlock<HalfType::kBF16>(block, q, heads, logits);
  }
}

// -- values -------------------------------------------------------------------------------------

template <int kVectors>
HWY_INLINE void AddTo(const HeadSums& s, float* acc) {
  const DF df;
  hn::StoreU(hn::Add(s.v0, hn::LoadU(df, acc)), df, acc);
  if constexpr (kVectors > 1) {
    hn::StoreU(hn::Add(s.v1, hn::LoadU(df, acc + kLanes)), df, acc + kLanes);
  }
  if constexpr (kVectors > 2) {
    hn::StoreU(hn::Add(s.v2, hn::LoadU(df, acc + 2 * kLanes)), df, acc + 2 * kLanes);
    hn::StoreU(hn::Add(s.v3, hn::LoadU(df, acc + 3 * kLanes)), df, acc + 3 * kLanes);
  }
}

// kVectors vectors of dims from `values` on; count < kLanes: one vector, of which only `count`
// dims exist.
template <HalfType kType, int kHeads, int kVectors>
HWY_INLINE void ValueTile(const KernelBlock& b, const std::uint8_t* values, int count,
                          const float* weights, float* acc, Ahead<CacheLevel::kL2>& ahead) {
  const std::size_t row_bytes = static_cast<std::size_t>(b.dim) * 2;
  constexpr std::size_t kStep = static_cast<std::size_t>(kLanes) * 2;
  alignas(32) std::uint8_t padded[kLanes * 2] = {};
  HeadSums s0 = NoSums(), s1 = NoSums(), s2 = NoSums(), s3 = NoSums();
  for (int row = 0; row < b.rows; ++row) {
    Inputs in;
    if (kVectors == 1 && count < kLanes) {
      std::memcpy(padded, values, static_cast<std::size_t>(count) * 2);
      in.v0 = LoadHalves<kType>(padded);
    } else {
      in.v0 = LoadHalves<kType>(values);
    }
    if constexpr (kVectors > 1) in.v1 = LoadHalves<kType>(values + kStep);
    if constexpr (kVectors > 2) in.v2 = LoadHalves<kType>(values + 2 * kStep);
    if constexpr (kVectors > 2) in.v3 = LoadHalves<kType>(values + 3 * kStep);
    MulAddAll<kVectors>(s0, in, weights[row]);
    if constexpr (kHeads > 1) MulAddAll<kVectors>(s1, in, weights[kBlockRows + row]);
    if constexpr (kHeads > 2) MulAddAll<kVectors>(s2, in, weights[2 * kBlockRows + row]);
    if constexpr (kHeads > 3) MulAddAll<kVectors>(s3, in, weights[3 * kBlockRows + row]);
    values += row_bytes;
    if constexpr (kVectors * kLanes == 64) {
      ahead.Step<2>();
    } else if (row % 2 == 0) {
      ahead.Step<1>();
    }
  }
  const int stride = AccumulatorStride(b.dim);
  AddTo<kVectors>(s0, acc);
  if constexpr (kHeads > 1) AddTo<kVectors>(s1, acc + stride);
  if constexpr (kHeads > 2) AddTo<kVectors>(s2, acc + 2 * stride);
  if constexpr (kHeads > 3) AddTo<kVectors>(s3, acc + 3 * stride);
}

template <HalfType kType, int kHeads>
HWY_NOINLINE void AccumulateHeads(const KernelBlock& b, const float* weights, float* acc) {
  Ahead<CacheLevel::kL2> ahead(b);
  int d = 0;
  for (; d + kWide * kLanes <= b.dim; d += kWide * kLanes) {
    ValueTile<kType, kHeads, kWide>(b, b.codes + static_cast<std::size_t>(d) * 2, kLanes, weights,
                                    acc + d, ahead);
  }
  for (; d < b.dim; d += kLanes) {
    ValueTile<kType, kHeads, 1>(b, b.codes + static_cast<std::size_t>(d) * 2,
                                std::min(b.dim - d, kLanes), weights, acc + d, ahead);
  }
}

template <HalfType kType>
HWY_INLINE void AccumulateBlock(const KernelBlock& block, const float* weights, int heads,
                                float* acc) {
  if (heads == 1) return AccumulateHeads<kType, 1>(block, weights, acc);
  if (heads == 2) return AccumulateHeads<kType, 2>(block, weights, acc);
  if (heads == 3) return AccumulateHeads<kType, 3>(block, weights, acc);
  AccumulateHeads<kType, 4>(block, weights, acc);
}

void HalfAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  if (block.half_type == HalfType::kF16) {
    AccumulateBlock<HalfType::kF16>(block, weights, heads, acc);
  } else {
    AccumulateBlock<HalfType::kBF16>(block, weights, heads, acc);
  }
}
#else
void HalfScore(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  PlainScoreHalf(block, prepared, heads, logits);
}
void HalfAccumulate(const KernelBlock& block, const float* weights, int heads, float* acc) {
  PlainAccumulateHalf(block, weights, heads, acc);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {
HWY_EXPORT(HalfScore);
HWY_EXPORT(HalfAccumulate);
}  // namespace

void ScoreHalf(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  HWY_DYNAMIC_DISPATCH(HalfScore)(block, prepared, heads, logits);
}

void AccumulateHalf(const KernelBlock& block, const float* weights, int heads, float* acc) {
  HWY_DYNAMIC_DISPATCH(HalfAccumulate)(block, weights, heads, acc);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
