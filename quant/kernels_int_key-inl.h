// Scores of integer codes: q.k of one block, for AVX2 and AVX-512. See kernels_dot-inl.h.
#if defined(KVSIEVE_QUANT_KERNELS_INT_KEY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_QUANT_KERNELS_INT_KEY_INL_H_
#undef KVSIEVE_QUANT_KERNELS_INT_KEY_INL_H_
#else
#define KVSIEVE_QUANT_KERNELS_INT_KEY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/kernels_dot-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

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
    VF scale = LoadScales(block.half_type, block.scales + at);
    if (block.codebook != nullptr) scale = hn::Mul(scale, hn::Set(df, block.codebook->level_scale));
    const VF zero =
        block.zeros == nullptr ? hn::Zero(df) : LoadScales(HalfType::kF16, block.zeros + at);
    Head(0, row, a, scale, zero);
    if constexpr (kHeads > 1) Head(1, row, b, scale, zero);
    if constexpr (kHeads > 2) Head(2, row, c, scale, zero);
    if constexpr (kHeads > 3) Head(3, row, d, scale, zero);
  }

 private:
  HWY_INLINE void Head(int h, int row, VI sum, VF scale, VF zero) const {
    const DF df;
    const int at = group_index * kHeadTile + h;
    const auto query_sum = static_cast<float>(query.group_sums[at]);
    float* out = logits + h * kBlockRows + row;
    VF part = hn::Mul(scale, hn::ConvertTo(df, sum));
    part = hn::MulAdd(zero, hn::Set(df, query_sum), part);
    part = hn::Mul(part, hn::Set(df, query.scales[at]));
    if (group_index > 0) part = hn::Add(part, hn::LoadU(df, out));
    hn::StoreU(part, df, out);
  }
};

// Both vectors of rows, one group of `units` units.
template <class Dot, class Format, int kHeads>
HWY_INLINE void KeyGroup(const std::uint8_t* codes0, const std::uint8_t* codes1, int units,
                         const std::int32_t* words,
                         const typename Format::template Reader<Side::kKey>& reader,
                         Sums<Dot>& sums, Ahead<CacheLevel::kL1>& ahead) {
  for (int u = 0; u < units; ++u) {
    const Lines<false> lines0{codes0, kLine, kLanes};
    const Lines<false> lines1{codes1, kLine, kLanes};
    AddUnit<Dot, Format, Side::kKey, kHeads, 2>(sums, lines0, lines1, reader, words);
    words += kHeadTile * Dot::Multiplier::kCount * Format::kQuads;
    codes0 += Format::kLines * kLine;
    codes1 += Format::kLines * kLine;
    for (int l = 0; l < Format::kLines; ++l) ahead.Step<kPairLines>();
  }
}

template <class Dot, class Format, int kHeads>
HWY_NOINLINE void ScoreHeads(const KernelBlock& b, const IntQuery& query, float* logits) {
  constexpr int kUnitDims = 4 * Format::kQuads;
  const typename Format::template Reader<Side::kKey> reader(b.codebook);
  const int panels = (b.rows + kPanelRows - 1) / kPanelRows;
  const int group_units = (b.group + kUnitDims - 1) / kUnitDims;
  const int groups = b.dim / b.group;
  const std::size_t group_bytes = static_cast<std::size_t>(group_units * Format::kLines) * kLine;
  const std::size_t panel_bytes = static_cast<std::size_t>(groups) * group_bytes;
  constexpr int kPanelsPerStep = kLanes * 2 / kPanelRows;
  Ahead<CacheLevel::kL1> ahead(b);

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
            0U - static_cast<std::uint32_t>(reader.offset) *
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
      codes0 += group_bytes;
      codes1 += group_bytes;
      words += group_units * Format::kQuads * kHeadTile * Dot::Multiplier::kCount;
    }
  }
  ahead.Finish(b);
}

template <class Dot, class Format>
HWY_INLINE void ScoreBlock(const KernelBlock& b, const void* prepared, int heads, float* logits) {
  const IntQuery query(prepared);
  if (heads == 1) return ScoreHeads<Dot, Format, 1>(b, query, logits);
  if (heads == 2) return ScoreHeads<Dot, Format, 2>(b, query, logits);
  if (heads == 3) return ScoreHeads<Dot, Format, 3>(b, query, logits);
  ScoreHeads<Dot, Format, 4>(b, query, logits);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // KVSIEVE_QUANT_KERNELS_INT_KEY_INL_H_
