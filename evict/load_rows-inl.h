// Rows of any element type to f32, transposed or not.
#if defined(KVSIEVE_EVICT_LOAD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSIEVE_EVICT_LOAD_ROWS_INL_H_
#undef KVSIEVE_EVICT_LOAD_ROWS_INL_H_
#else
#define KVSIEVE_EVICT_LOAD_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvsieve/float16.h"
#include "kvsieve/types.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::evict {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// The transposes work on squares of 4 rows x 4 dims, and of 16 x 16 where vectors are that long.
using QuadTag = hn::FixedTag<float, 4>;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define KVS_EVICT_WIDE_SQUARES 1
using SquareTag = hn::FixedTag<float, 16>;
#else
#define KVS_EVICT_WIDE_SQUARES 0
using SquareTag = QuadTag;
#endif

template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const BF16* from) {
  const hn::Rebind<std::uint16_t, D> half;
  const hn::RebindToUnsigned<D> full;
  const auto bits = hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(full, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const F16* from) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // one exact instruction
  const hn::Rebind<hwy::float16_t, D> half;
  return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  HWY_ALIGN float quad[4];
  for (int i = 0; i < 4; ++i) quad[i] = ToFloat(from[i]);
  return hn::Load(d, quad);
#endif
}

// Four rows, transposed within each 128-bit block: block b of t0 is dim 4 b of the four, of t1 dim
// 4 b + 1, and so on.
template <class D>
struct FourRowsOfDims {
  hn::Vec<D> t0, t1, t2, t3;
};

template <class D, class T>
HWY_INLINE FourRowsOfDims<D> LoadFourRows(D d, const T* const* row, int dim) {
  const auto r0 = LoadAsF32(d, row[0] + dim);
  const auto r1 = LoadAsF32(d, row[1] + dim);
  const auto r2 = LoadAsF32(d, row[2] + dim);
  const auto r3 = LoadAsF32(d, row[3] + dim);
  const auto low02 = hn::InterleaveLower(d, r0, r2);
  const auto low13 = hn::InterleaveLower(d, r1, r3);
  const auto high02 = hn::InterleaveUpper(d, r0, r2);
  const auto high13 = hn::InterleaveUpper(d, r1, r3);
  return {hn::InterleaveLower(d, low02, low13), hn::InterleaveUpper(d, low02, low13),
          hn::InterleaveLower(d, high02, high13), hn::InterleaveUpper(d, high02, high13)};
}

// row[0..3], dims [dim, dim + 4) -> panel, one line per dim.
template <class T>
HWY_INLINE void TransposeSquare(QuadTag d, const T* const* row, int dim, float* panel) {
  const auto rows = LoadFourRows(d, row, dim);
  hn::StoreU(rows.t0, d, panel);
  hn::StoreU(rows.t1, d, panel + kBlockRows);
  hn::StoreU(rows.t2, d, panel + 2 * kBlockRows);
  hn::StoreU(rows.t3, d, panel + 3 * kBlockRows);
}

#if KVS_EVICT_WIDE_SQUARES
using SquareVec = hn::Vec<SquareTag>;

// Blocks 0 of a, b, c, d side by side make the first line, blocks 1 the fifth, and so on.
HWY_INLINE void StoreEveryFourthLine(SquareVec a, SquareVec b, SquareVec c, SquareVec d,
                                     float* panel) {
  const SquareTag tag;
  const auto ac = hn::ConcatLowerLower(tag, c, a);
  const auto bd = hn::ConcatLowerLower(tag, d, b);
  hn::StoreU(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(bd), ac), tag, panel);
  hn::StoreU(hn::OddEvenBlocks(bd, hn::SwapAdjacentBlocks(ac)), tag, panel + 4 * kBlockRows);
  const auto ac_high = hn::ConcatUpperUpper(tag, c, a);
  const auto bd_high = hn::ConcatUpperUpper(tag, d, b);
  hn::StoreU(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(bd_high), ac_high), tag,
             panel + 8 * kBlockRows);
  hn::StoreU(hn::OddEvenBlocks(bd_high, hn::SwapAdjacentBlocks(ac_high)), tag,
             panel + 12 * kBlockRows);
}

// row[0..15], dims [dim, dim + 16).
template <class T>
HWY_INLINE void TransposeSquare(SquareTag tag, const T* const* row, int dim, float* panel) {
  const auto a = LoadFourRows(tag, row, dim);
  const auto b = LoadFourRows(tag, row + 4, dim);
  const auto c = LoadFourRows(tag, row + 8, dim);
  const auto d = LoadFourRows(tag, row + 12, dim);
  StoreEveryFourthLine(a.t0, b.t0, c.t0, d.t0, panel);
  StoreEveryFourthLine(a.t1, b.t1, c.t1, d.t1, panel + kBlockRows);
  StoreEveryFourthLine(a.t2, b.t2, c.t2, d.t2, panel + 2 * kBlockRows);
  StoreEveryFourthLine(a.t3, b.t3, c.t3, d.t3, panel + 3 * kBlockRows);
}
#endif
#undef KVS_EVICT_WIDE_SQUARES

// Dims [begin, end) of row[0..rows), in squares; returns the first dim that is left.
template <class D, class T>
int TransposeSquares(D d, const T* const* row, int rows, int begin, int end, float* panel) {
  const int side = static_cast<int>(hn::Lanes(d));
  const int squares = (end - begin) / side;
  for (int r = 0; r < rows; r += side) {  // rows outside: what is read lies together
    for (int i = 0; i < squares; ++i) {
      const int dim = begin + i * side;
      TransposeSquare(d, row + r, dim, panel + dim * kBlockRows + r);
    }
  }
  return begin + squares * side;
}
#endif

// panel [dim, kBlockRows]; columns from count on, up to a multiple of 16, repeat the last row, the
// rest are 0.
template <class T>
void TransposeRows(const T* rows, std::int64_t stride, int dim, int count, float* panel) {
  const int written = (count + 15) / 16 * 16;
  const T* row[kBlockRows];
  for (int r = 0; r < written; ++r) row[r] = rows + std::min(r, count - 1) * stride;
  int k = 0;
#if HWY_TARGET != HWY_SCALAR
  k = TransposeSquares(SquareTag(), row, written, k, dim, panel);
  k = TransposeSquares(QuadTag(), row, written, k, dim, panel);
#endif
  for (; k < dim; ++k) {
    for (int r = 0; r < written; ++r) panel[k * kBlockRows + r] = ToFloat(row[r][k]);
  }
  for (int d = 0; written < kBlockRows && d < dim; ++d) {
    std::fill(panel + d * kBlockRows + written, panel + (d + 1) * kBlockRows, 0.0F);
  }
}

// out [count, out_stride], zero from dim on.
template <class T>
void ConvertRows(const T* rows, std::int64_t stride, int dim, int count, float* out,
                 std::int64_t out_stride) {
  for (int i = 0; i < count; ++i) {
    const T* row = rows + i * stride;
    float* to = out + i * out_stride;
    int k = 0;
#if HWY_TARGET != HWY_SCALAR
    const QuadTag d;
    for (; k + 4 <= dim; k += 4) hn::StoreU(LoadAsF32(d, row + k), d, to + k);
#endif
    for (; k < dim; ++k) to[k] = ToFloat(row[k]);
    std::fill(to + dim, to + out_stride, 0.0F);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::evict
HWY_AFTER_NAMESPACE();

#endif  // KVSIEVE_EVICT_LOAD_ROWS_INL_H_
