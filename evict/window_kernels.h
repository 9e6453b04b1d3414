// Kernels of the window scorers: softmax attention of a few queries over blocks of 64 rows, kept
// in a form that needs exp once per weight and gives the same bits whether weights were stored or
// computed again.
//
// Of block b and query q:   top = max over the block's visible rows of the logit x
//                           weight[j] = exp(x[j] - top), 0 where invisible;   sum = sum of weights
// After all blocks:         M = max of top;   Z = sum over b, ascending, of sum * exp(top - M)
// The softmax weight is     p[j] = weight[j] * factor,   factor = exp(top - M) / Z
#ifndef KVSIEVE_EVICT_WINDOW_KERNELS_H_
#define KVSIEVE_EVICT_WINDOW_KERNELS_H_

#include <cstdint>

#include "kvsieve/types.h"

namespace kvsieve::evict {

enum class Reduce : std::uint8_t { kMean, kSum, kMax };

// Queries are worked on in tiles of 4; arrays with one value per query hold a multiple of 16.
constexpr int PaddedQueries(int queries) { return (queries + 3) / 4 * 4; }
constexpr int QueryStride(int queries) { return (queries + 15) / 16 * 16; }
// Value rows and outputs, f32, zero from dim on.
constexpr int ValueStride(int dim) { return (dim + kBlockRows - 1) / kBlockRows * kBlockRows; }

// From this p on a row counts as all of the output: f32 resolves 1 - p to 2^-24.
inline constexpr float kMaxWeight = 1.0F - 0x1p-20F;

// The queries of one head: f32 [PaddedQueries(count), dim], times the layer's scale, zero rows
// from count on.
struct WindowQueries {
  const float* data = nullptr;
  int count = 0;
  int dim = 0;
  float softcap = 0.0F;
};

// One block's softmax of one head.
struct BlockWeights {
  float* weights = nullptr;  // [PaddedQueries(count), kBlockRows]
  float* top = nullptr;      // [QueryStride(count)]
  float* sum = nullptr;      // [QueryStride(count)]
};

// `count` rows (1..kBlockRows) as f32 [dim, kBlockRows]; the columns from count on are finite.
void LoadPanel(const RowSource::RowMajor& rows, int dim, int count, float* panel);

// The same rows as f32 [count, ValueStride(dim)].
void LoadRows(const RowSource::RowMajor& rows, int dim, int count, float* out);

// Rows [count, dim] that are read next: fetched while arithmetic leaves the memory idle.
struct RowsAhead {
  RowSource::RowMajor rows;
  int dim = 0;
  int count = 0;  // 0: none
};

// visible: per query, how many of the block's rows it sees: the first ones.
void AttendBlock(const WindowQueries& queries, const float* panel, const int* visible,
                 const RowsAhead& ahead, const BlockWeights& out);

// tops, sums: [blocks, QueryStride(count)]. Writes M and 1 / Z per query (0 where Z is 0).
void FinishSoftmax(const float* tops, const float* sums, std::int64_t blocks, int count,
                   float* maximum, float* inverse_sum);

// factor per query of one block.
void BlockFactors(const float* top, const float* maximum, const float* inverse_sum, int count,
                  float* factors);

// out [kBlockRows]: sum (kMean, kSum) or maximum (kMax) over queries of p.
void ReduceAttention(const float* weights, const float* factors, int count, Reduce reduce,
                     float* out);

// probabilities [PaddedQueries(count), kBlockRows] = p.
void Probabilities(const float* weights, const float* factors, int count, float* probabilities);

// outputs [PaddedQueries(count), ValueStride(dim)] += probabilities * rows, `rows` from LoadRows.
void AddOutputs(const float* probabilities, int queries, const float* rows, int dim, int row_count,
                float* outputs);

// What the softmax and the outputs of one head say of one block.
struct BlockOutputs {
  const float* probabilities;  // [PaddedQueries(queries), kBlockRows]
  const float* outputs;        // [PaddedQueries(queries), ValueStride(dim)]
  int queries;
  const float* panel;  // v as columns, [dim, kBlockRows]
  int dim;
  float* distances;  // scratch of the size of probabilities
};

// out [kBlockRows]: sum or maximum over queries of p / (1 - p) * |output - v|.
void ReducePerturbation(const BlockOutputs& block, Reduce reduce, float* out);

// Sums over queries, out [kLossFigures, kBlockRows]. To first order the output moves by
// p (v - output) times what a row's logit is off, by p times what v is off, and, exactly, by
// p / (1 - p) (output - v) when the row goes.
enum LossFigure : std::uint8_t {
  kLogitLoss,  // p^2 |output - v|^2
  kValueLoss,  // p^2 |v|^2
  kDropLoss,   // (p / (1 - p))^2 |output - v|^2
};
inline constexpr int kLossFigures = 3;
void ReduceLosses(const BlockOutputs& block, float* out);

// Where the queries' attention goes on: adds p |output - v| of query q and row j to
// out[j + queries - 1 - q], the row that the last query would look at if it were as far behind.
// Rows before `first` add nothing. After ReduceLosses, which fills the distances.
// out [kBlockRows + queries - 1].
void AddAlongDiagonals(const BlockOutputs& block, int first, float* out);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_WINDOW_KERNELS_H_
