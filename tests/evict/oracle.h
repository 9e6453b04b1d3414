// What eviction should compute, in f64, plain loops and full sorts. Includes nothing of evict/.
#ifndef KVSIEVE_TESTS_EVICT_ORACLE_H_
#define KVSIEVE_TESTS_EVICT_ORACLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/types.h"

namespace kvsieve::oracle {

// One layer, all heads with the same rows. k [kv_heads, rows, key_dim], v [kv_heads, rows,
// value_dim], q [query_heads, window_rows, key_dim]: the queries of the last window_rows rows.
struct Layer {
  LayerSpec spec;
  std::int64_t rows = 0;
  int window_rows = 0;
  std::vector<float> k, v, q;
  std::vector<TokenPos> positions;
};

struct Options {
  int window = 32;
  std::string queries = "mean";
  std::string group = "mean";
  std::string pool = "max";  // max, avg, none
  int width = 7;
  bool pad_zero = false;
  bool causal = true;
  bool pool_window = false;
  bool perturbation = false;
};

struct HeadScores {
  std::vector<double> raw;
  std::vector<double> raw_bound;  // how far f32 may be from raw, derived in oracle.cc
  std::vector<double> smoothed;
  std::vector<double> smoothed_bound;
};

std::vector<HeadScores> Score(const Layer& layer, const Options& options);

// Softmax weights of one query over the first `visible` rows of a KV head, and how far f32 may be
// from each, relative.
struct Weights {
  std::vector<double> p;
  double relative_error = 0;
};
Weights Softmax(const Layer& layer, int kv_head, const float* q, std::int64_t visible);

// The attention output of these weights, and how far f32 may be from it, as a length.
struct Output {
  std::vector<double> o;
  double error = 0;
};
Output OutputOf(const Layer& layer, int kv_head, const Weights& weights);

std::vector<double> Smooth(const std::vector<double>& raw, const Options& options);

// What stays of `raw.size()` rows: rules 2.1 to 2.5 of the selection, `budget` rows already
// resolved. Positions equal rows.
struct Selection {
  std::int64_t budget = 0;
  std::int64_t sinks = 4;
  std::int64_t newest = 0;                                    // max(window, recent)
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // [first, last]
  bool ties_high = false;
};
std::vector<std::int64_t> Keep(const std::vector<float>& smoothed, const std::vector<float>& raw,
                               const Selection& selection);

}  // namespace kvsieve::oracle

#endif  // KVSIEVE_TESTS_EVICT_ORACLE_H_
