#include "quant/half_rows.h"

#include <cstring>

#include "kvsieve/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/half_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
namespace HWY_NAMESPACE {

template <HalfType kType>
HWY_INLINE std::uint16_t ToHalf(float x) {
  return kType == HalfType::kF16 ? ToF16(x).bits : ToBF16(x).bits;
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
constexpr int kDims = 8;
using DF32x8 = hn::Rebind<float, D32x8>;

// Eight elements as halves in the low bytes of 32-bit words. The CPU's f16 conversions are exact
// (nearest even) on these targets; see kvsieve/float16.h.
template <HalfType kType>
HWY_INLINE V32x8 LoadHalves(const float* x) {
  const D32x8 d32;
  const auto v = hn::LoadU(DF32x8(), x);
  if constexpr (kType == HalfType::kF16) {
    const hn::Rebind<hwy::float16_t, D32x8> dh;
    const hn::Rebind<std::uint16_t, D32x8> d16;
    return hn::PromoteTo(d32, hn::BitCast(d16, hn::DemoteTo(dh, v)));
  } else {
    const V32x8 bits = hn::BitCast(d32, v);
    const V32x8 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    return hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF))));
  }
}

// 16 rows of keys, `line` [dim][16 rows].
template <HalfType kType>
void StorePanel(const float* rows, int dim, std::uint16_t* line) {
  const D32x8 d32;
  int d = 0;
  for (; d + kDims <= dim; d += kDims, line += kDims * kPanelRows) {
    // Rows 2 p and 2 p + 1 side by side.
    const auto pair = [&](int p) HWY_ATTR {
      const float* x = rows + std::ptrdiff_t{2 * p} * dim + d;
      return hn::Or(LoadHalves<kType>(x), hn::ShiftLeft<16>(LoadHalves<kType>(x + dim)));
    };
    const Vectors8 lines =
        Transpose({pair(0), pair(1), pair(2), pair(3), pair(4), pair(5), pair(6), pair(7)});
    const auto store = [&](V32x8 v, int k) HWY_ATTR {
      hn::StoreU(v, d32, reinterpret_cast<std::uint32_t*>(line + k * kPanelRows));
    };
    store(lines.v0, 0);
    store(lines.v1, 1);
    store(lines.v2, 2);
    store(lines.v3, 3);
    store(lines.v4, 4);
    store(lines.v5, 5);
    store(lines.v6, 6);
    store(lines.v7, 7);
  }
  for (; d < dim; ++d, line += kPanelRows) {
    for (int r = 0; r < kPanelRows; ++r) line[r] = ToHalf<kType>(rows[std::ptrdiff_t{r} * dim + d]);
  }
}
#endif  // AVX2 or AVX3

// One row, elements `step` apart.
template <HalfType kType>
HWY_INLINE void StoreRow(const float* row, int dim, std::uint16_t* to, int step) {
  int d = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<std::uint16_t, D32x8> d16;
  for (; step == 1 && d + kDims <= dim; d += kDims) {
    hn::StoreU(hn::TruncateTo(d16, LoadHalves<kType>(row + d)), d16, to + d);
  }
#endif
  for (; d < dim; ++d) to[std::ptrdiff_t{d} * step] = ToHalf<kType>(row[d]);
}

template <HalfType kType>
void StoreRows(const BlockLayout& layout, const float* rows, int count, std::uint8_t* codes,
               int first_row) {
  const int dim = layout.dim;
  const bool key = layout.side == Side::kKey;
  for (int r = 0; r < count;) {
    const int at = first_row + r;
    const float* row = rows + std::ptrdiff_t{r} * dim;
    auto* to = reinterpret_cast<std::uint16_t*>(codes + HalfAt(layout.side, dim, at, 0).byte);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    if (key && at % kPanelRows == 0 && r + kPanelRows <= count) {
      StorePanel<kType>(row, dim, to);
      r += kPanelRows;
      continue;
    }
#endif
    StoreRow<kType>(row, dim, to, key ? kPanelRows : 1);
    ++r;
  }
}

void StoreF16RowsOf(const BlockLayout& layout, const float* rows, int count, std::uint8_t* codes,
                    int first_row) {
  StoreRows<HalfType::kF16>(layout, rows, count, codes, first_row);
}
void StoreBF16RowsOf(const BlockLayout& layout, const float* rows, int count, std::uint8_t* codes,
                     int first_row) {
  StoreRows<HalfType::kBF16>(layout, rows, count, codes, first_row);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {

HWY_EXPORT(StoreF16RowsOf);
HWY_EXPORT(StoreBF16RowsOf);

void StoreHalfRows(HalfType type, const BlockLayout& layout, const float* rows, int count,
                   BlockRef block, int first_row) {
  if (type == HalfType::kF16) {
    HWY_DYNAMIC_DISPATCH(StoreF16RowsOf)(layout, rows, count, block.data, first_row);
  } else {
    HWY_DYNAMIC_DISPATCH(StoreBF16RowsOf)(layout, rows, count, block.data, first_row);
  }
}

}  // namespace kvsieve::quant
#endif  // HWY_ONCE
