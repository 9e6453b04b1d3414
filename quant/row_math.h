// Arithmetic on one f32 row whose result decides stored bytes. The order of every sum is fixed
// and nothing rounds differently on another target (IEEE f32 and f64, no contraction), so encoded
// bytes are the same everywhere. Compiled once per instruction set.
#ifndef KVSIEVE_QUANT_ROW_MATH_H_
#define KVSIEVE_QUANT_ROW_MATH_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve::quant {

// Largest |x|. Inf or NaN when the row holds one.
float AbsMax(const float* row, int dim);

struct MinMax {
  float min;
  float max;
};
// Precondition: finite, dim >= 1.
MinMax FindMinMax(const float* row, int dim);

// As ToFloat, for finite values.
void F16ToRow(const std::uint16_t* codes, int dim, float* row);

// Largest magnitude that codecs with a scale take, after the transforms. What is decoded is finite
// then, and so is every sum on its way back through a rotation: with at most kMaxDim = 2^12
// elements a row is at most 2^118 long, and 2^12 elements of it add up to at most 2^124 and their
// rounding.
inline constexpr float kMaxScaled = 0x1p112F;

// Each an error that names row and element: when the row holds a NaN or Inf; also when it holds
// more than kMaxScaled.
Status CheckFinite(const float* row, int dim, std::int64_t row_index, std::string_view codec);
Status CheckScaled(const float* row, int dim, std::int64_t row_index, std::string_view codec);
// CheckScaled of rows f32 [count, dim], the first of which is row `first`, and whose AbsMax is
// `largest`.
Status CheckScaledRows(float largest, const float* rows, int count, int dim, std::int64_t first,
                       std::string_view codec);

// visit(row_index, const float* row) -> Status for all rows in order, until one fails.
template <class Visit>
Status ForEachRow(const RowSource& rows, Visit visit) {
  const int dim = rows.dim();
  std::vector<float> buffer(static_cast<std::size_t>(kBlockRows) * dim);
  for (RowIndex first = 0; first < rows.rows(); first += kBlockRows) {
    const RowIndex left = rows.rows() - first;
    const int count = left < kBlockRows ? static_cast<int>(left) : kBlockRows;
    rows.ReadRows(first, count, buffer.data());
    for (int r = 0; r < count; ++r) {
      KVS_RETURN_IF_ERROR(visit(first + r, buffer.data() + static_cast<std::ptrdiff_t>(r) * dim));
    }
  }
  return Status::Ok();
}

// The same, but no row is read where all are known to be within `limit`: for a `visit` that only
// looks for elements beyond it.
template <class Visit>
Status ForRowsBeyond(float limit, const RowSource& rows, Visit visit) {
  if (rows.LargestMagnitude() <= limit) return Status::Ok();
  return ForEachRow(rows, visit);
}

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_ROW_MATH_H_
