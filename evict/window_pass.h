// The pass of the window scorers over one layer: softmax of the last queries over all visible keys,
// then one figure per row, or several, joined over the queries and their group.
#ifndef KVSIEVE_EVICT_WINDOW_PASS_H_
#define KVSIEVE_EVICT_WINDOW_PASS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "evict/window_kernels.h"
#include "kvsieve/evict.h"
#include "kvsieve/parallel.h"

namespace kvsieve::evict {

// What one window query says of one row; p is the row's softmax weight, o the attention output.
enum class RowWeight : std::uint8_t {
  kAttention,           // p
  kOutputPerturbation,  // p / (1 - p) * |o - v|: how far o moves when the row goes (DropKV)
  kLosses,              // the figures of LossFigure
};

constexpr std::size_t FiguresOf(RowWeight weight) {
  return weight == RowWeight::kLosses ? std::size_t{kLossFigures} : 1;
}

struct WindowPass {
  const Observation& observation;
  RowWeight weight = RowWeight::kAttention;
  int window = 0;                // last rows whose queries look
  bool keys_as_queries = false;  // each head's own last keys, for callers that have no queries
  bool causal = true;            // row visible iff its position <= the query's
  Reduce queries = Reduce::kMean;
  Reduce group = Reduce::kMean;
  std::span<const std::int64_t> head_begin;  // [kv_heads + 1]
  // Where each figure goes, [rows of all heads]: sums or maxima, a mean is not divided yet.
  std::array<float*, kLossFigures> figures = {};
  // With kLosses: where attention goes on, [rows of all heads]. The square of what
  // AddAlongDiagonals sums, summed over the group; rows before `first_followed` are left out.
  float* diagonals = nullptr;
  RowIndex first_followed = 0;

  bool reads_values() const { return weight != RowWeight::kAttention; }
};

// What a KV head's figures are made of.
struct WindowSums {
  int queries = 0;           // that looked, of each head of the group
  int group = 0;             // query heads
  double query_square = 0;   // |scale q|^2, summed over both
  double output_square = 0;  // |o|^2, the same; 0 when values are not read

  double count() const { return static_cast<double>(queries) * group; }
};

// Which rows of the observed queries are those of the last `window` positions, clipped to the
// longest head. Error: names the positions whose queries were not observed.
Result<std::vector<int>> FindWindowQueries(int window, const Observation& observation);

// q.K in f32, computed once unless scratch->limit_bytes is too small for the logits of one query
// head; then twice, or three times when values are read. Reads K once for as many query heads of a
// group as the scratch holds logits for: one by default. The result, [kv_heads], depends on neither
// scratch nor workers.
//
// Error of a weight p against exact arithmetic: relative 4e-6 + (68 + blocks) * 2^-24 + 2 * e,
// where blocks = rows / 64 and e is the error of a logit, at most (key_dim + 2) * 2^-24 * scale *
// sum |q_d k_d|. The odds p / (1 - p) carry 1 / (1 - p) times that.
Result<std::vector<WindowSums>> RunWindow(const WindowPass& pass, Parallel& parallel,
                                          ScoreScratch* scratch);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_WINDOW_PASS_H_
