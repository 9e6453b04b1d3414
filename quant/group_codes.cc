#include "quant/group_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kvsieve/float16.h"
#include "quant/ggml_block.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
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

struct alignas(64) Batch {
  float low[kBatch];   // smallest element; then the zero point
  float high[kBatch];  // largest element or magnitude
  float scale[kBatch];
  float inverse[kBatch];  // 1 / scale, 0 for 0
  std::uint16_t scale_bits[kBatch];
  std::uint16_t zero_bits[kBatch];
};

// find(batch, i, x) for each group of a batch, solve(batch, count) for its scales, then
// write(batch, i, x, codes) for each group.
template <class Find, class Solve, class Write>
HWY_INLINE void InBatches(const GroupedRows& rows, const TilePlanes& to, Find find, Solve solve,
                          Write write) {
  const int groups = rows.dim / rows.group;
  const int total = rows.rows * groups;
  Batch batch;
  int r = 0;
  int g = 0;
  for (int first = 0; first < total; first += kBatch) {
    const int count = std::min(kBatch, total - first);
    const float* x = rows.data + std::ptrdiff_t{first} * rows.group;
    for (int i = 0; i < count; ++i) find(batch, i, x + i * rows.group);
    solve(batch, count);
    for (int i = 0; i < count; ++i) {
      const int at = g * to.capacity_rows + r;
      to.scales[at] = batch.scale_bits[i];
      if (to.zeros != nullptr) to.zeros[at] = batch.zero_bits[i];
      write(batch, i, x + i * rows.group, to.codes->row(r) + g * rows.group);
      if (++g < groups) continue;
      g = 0;
      ++r;
    }
  }
}

// The bf16 number not below high / limit, for each of a batch.
HWY_INLINE void RoundScalesUp(Batch& batch, int count, float limit) {
  for (int i = 0; i < count; ++i) {
    const float exact = batch.high[i] / limit;
    std::uint32_t bits = (std::bit_cast<std::uint32_t>(exact) + 0xFFFFU) >> 16;
    bits = bits > 0x7F7FU ? 0x7F7FU : bits;
    const float scale = std::bit_cast<float>(bits << 16);
    batch.scale_bits[i] = static_cast<std::uint16_t>(bits);
    batch.scale[i] = scale;
    batch.inverse[i] = scale == 0.0F ? 0.0F : 1.0F / scale;
  }
}

void EncodeSymOf(const GroupedRows& rows, SymCodes codes, const TilePlanes& to) {
  const auto limit = static_cast<float>(codes.limit);
  const CodeRange range{-limit, limit, codes.bias};
  InBatches(
      rows, to,
      [&](Batch& batch, int i, const float* x)
          HWY_ATTR { batch.high[i] = AbsMaxOf(x, rows.group); },
      [&](Batch& batch, int count) HWY_ATTR { RoundScalesUp(batch, count, limit); },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* to_codes) HWY_ATTR {
        RoundToCodesOf(x, rows.group, {0.0F, batch.scale[i], batch.inverse[i]}, range, to_codes);
      });
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

void EncodeAsymOf(const GroupedRows& rows, int code_limit, const TilePlanes& to) {
  const auto limit = static_cast<float>(code_limit);
  const CodeRange range{0.0F, limit, 0};
  InBatches(
      rows, to,
      [&](Batch& batch, int i, const float* x) HWY_ATTR {
        const MinMax found = MinMaxOf(x, rows.group);
        batch.low[i] = found.min;
        batch.high[i] = found.max;
      },
      [&](Batch& batch, int count) HWY_ATTR {
        RoundZerosDown(batch, count);
        RoundScalesUp(batch, count, limit);
      },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* to_codes) HWY_ATTR {
        RoundToCodesOf(x, rows.group, {batch.low[i], batch.scale[i], batch.inverse[i]}, range,
                       to_codes);
      });
}

// f16 bits of ggml's scales, high / divisor, and their inverses before that rounding.
HWY_INLINE void SolveGgml(Batch& batch, int count, float divisor) {
  for (int i = 0; i < count; ++i) {
    const float scale = batch.high[i] / divisor;
    batch.scale_bits[i] = ToF16(scale).bits;
    batch.inverse[i] = GgmlInverse(scale);
  }
}

void EncodeQ8_0Of(const GroupedRows& rows, const TilePlanes& to) {
  InBatches(
      rows, to,
      [&](Batch& batch, int i, const float* x)
          HWY_ATTR { batch.high[i] = AbsMaxOf(x, kGgmlBlock); },
      [&](Batch& batch, int count) HWY_ATTR { SolveGgml(batch, count, 127.0F); },
      [&](const Batch& batch, int i, const float* x, std::uint8_t* codes)
          HWY_ATTR { RoundHalfAwayOf(x, kGgmlBlock, batch.inverse[i], codes); });
}

void EncodeQ4_0Of(const GroupedRows& rows, const TilePlanes& to) {
  InBatches(
      rows, to,
      [&](Batch& batch, int i, const float* x) HWY_ATTR {
        // The first of the largest in magnitude; zero for a block of zeros, of either sign.
        const float magnitude = AbsMaxOf(x, kGgmlBlock);
        int j = 0;
        while (std::fabs(x[j]) != magnitude) ++j;
        batch.high[i] = magnitude == 0.0F ? 0.0F : x[j];
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

void EncodeSym(const GroupedRows& rows, SymCodes codes, const TilePlanes& to) {
  KVS_DCHECK(codes.bias % 2 == 0);
  HWY_DYNAMIC_DISPATCH(EncodeSymOf)(rows, codes, to);
}

void EncodeAsym(const GroupedRows& rows, int limit, const TilePlanes& to) {
  HWY_DYNAMIC_DISPATCH(EncodeAsymOf)(rows, limit, to);
}

void EncodeQ8_0(const GroupedRows& rows, const TilePlanes& to) {
  HWY_DYNAMIC_DISPATCH(EncodeQ8_0Of)(rows, to);
}

void EncodeQ4_0(const GroupedRows& rows, const TilePlanes& to) {
  HWY_DYNAMIC_DISPATCH(EncodeQ4_0Of)(rows, to);
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
