// Kernels of the scorers that look at rows one by one: norms, dots, spreads and sums of up to 64
// rows in a panel, f32 [dim, kBlockRows] as LoadPanel writes it, lane = row. Sums run over dims in
// ascending order in one chain per row, so a row's result does not depend on its place in the
// panel. `out` is [kBlockRows]; what stands behind the rows that exist is finite and means nothing.
//
// A sum of n products is off by at most (n + 1) * 2^-24 * the sum of their magnitudes; a norm,
// relative, by (dim + 3) * 2^-25.
#ifndef KVSIEVE_EVICT_ROW_KERNELS_H_
#define KVSIEVE_EVICT_ROW_KERNELS_H_

#include <cstdint>

#include "evict/window_kernels.h"

namespace kvsieve::evict {

// |row|; +inf when its square passes f32.
void ColumnNorms(const float* panel, int dim, float* out);

// row . vector, vector [dim].
void ColumnDots(const float* panel, int dim, const float* vector, float* out);

// sums[d] = sum over rows of weights[row] * row[d]; weights [kBlockRows], 0 where there is no row.
void WeightedRowSum(const float* panel, int dim, const float* weights, float* sums);

// low[d] = min(low[d], row[d]), high[d] = max(...), over the first `count` rows.
void WidenRange(const float* panel, int dim, int count, float* low, float* high);

// Standard deviation (divisor dim - 1; 0 where dim is 1) over dims of
// (row[d] - low[d]) * inverse_range[d]; at most kMaxDeviation, also in place of NaN.
inline constexpr float kMaxDeviation = 1e30F;
void ColumnDeviations(const float* panel, int dim, const float* low, const float* inverse_range,
                      float* out);

// Of Gaussian queries the log of the expected exp(q.row): mean.row + half the mean of the squares
// of (q - mean).row. queries: the mean first, then the centred ones, all times the layer's scale.
// dots is scratch [PaddedQueries(count), kBlockRows]. Dots are clamped at kMaxDot: always finite.
inline constexpr float kMaxDot = 1e15F;
void ExpectedLogits(const WindowQueries& queries, const float* panel, float* dots, float* out);

// values[i] = exp(values[i] - top) in place; top >= every value. Returns their sum.
double ExpBelow(float top, std::int64_t count, float* values);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_ROW_KERNELS_H_
