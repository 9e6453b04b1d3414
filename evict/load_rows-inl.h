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
// Four elements per vector: what a 4 x 4 transpose works on.
using QuadTag = hn::FixedTag<float, 4>;
using QuadVec = hn::Vec<QuadTag>;

HWY_INLINE QuadVec LoadQuad(QuadTag d, const float* from) { return hn::LoadU(d, from); }

HWY_INLINE QuadVec LoadQuad(QuadTag d, const BF16* from) {
  const hn::Rebind<std::uint16_t, QuadTag> half;
  const hn::RebindToUnsigned<QuadTag> full;
  const auto bits = hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(full, bits)));
}

HWY_INLINE QuadVec LoadQuad(QuadTag d, const F16* from) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // one exact instruction
  const hn::Rebind<hwy::float16_t, QuadTag> half;
  return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  HWY_ALIGN float quad[4];
  for (int i = 0; i < 4; ++i) quad[i] = ToFloat(from[i]);
  return hn::Load(d, quad);
#endif
}

// Four rows x four dims, stored as four dims x four rows.
template <class T>
HWY_INLINE void TransposeQuad(const T* const row[4], int dim, float* panel) {
  const QuadTag d;
  const QuadVec r0 = LoadQuad(d, row[0] + dim);
  const QuadVec r1 = LoadQuad(d, row[1] + dim);
  const QuadVec r2 = LoadQuad(d, row[2] + dim);
  const QuadVec r3 = LoadQuad(d, row[3] + dim);
  const QuadVec low02 = hn::InterleaveLower(d, r0, r2);
  const QuadVec low13 = hn::InterleaveLower(d, r1, r3);
  const QuadVec high02 = hn::InterleaveUpper(d, r0, r2);
  const QuadVec high13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, panel);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, panel + kBlockRows);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, panel + 2 * kBlockRows);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, panel + 3 * kBlockRows);
}
#endif

// panel [dim, kBlockRows]; columns from count on, up to a multiple of 4, repeat the last row, the
// rest are 0. Dims outside, rows inside: the panel is written line by line, and what is read at a
// stride is one cache line of each of 64 rows.
template <class T>
void TransposeRows(const T* rows, std::int64_t stride, int dim, int count, float* panel) {
  const int written = (count + 3) / 4 * 4;
  const T* row[kBlockRows];
  for (int r = 0; r < written; ++r) row[r] = rows + std::min(r, count - 1) * stride;
  int k = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; k + 4 <= dim; k += 4) {
    for (int r = 0; r < written; r += 4) TransposeQuad(row + r, k, panel + k * kBlockRows + r);
  }
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
    for (; k + 4 <= dim; k += 4) hn::StoreU(LoadQuad(d, row + k), d, to + k);
#endif
    for (; k < dim; ++k) to[k] = ToFloat(row[k]);
    std::fill(to + dim, to + out_stride, 0.0F);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::evict
HWY_AFTER_NAMESPACE();

#endif  // KVSIEVE_EVICT_LOAD_ROWS_INL_H_
