// Exact attention over a trace, and how far a compressed cache is from it.
#ifndef KVSIEVE_EVAL_QUALITY_H_
#define KVSIEVE_EVAL_QUALITY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvsieve/eval/trace.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"

namespace kvsieve::eval {

// Exact attention of every eval query over all rows seen (prompt, then eval rows, causal; sliding
// window and softcap of the layer): f32 products, f64 sums. Computed once per trace.
class ExactAttention {
 public:
  static ExactAttention Compute(const Trace& trace, Parallel& parallel);

  // f32 [tokens + n_eval] of one query, zero where the row is not visible.
  std::span<const float> Probabilities(int layer_index, int query_head, std::int64_t query) const;
  // f32 [value_dim]
  std::span<const float> Output(int layer_index, int query_head, std::int64_t query) const;
  // Mean of |o - out_eval| / |out_eval|; nullopt when the trace has no out_eval.
  std::optional<double> engine_rel_error() const;

 private:
  struct LayerResult {
    std::vector<float> probabilities;  // [query_heads, n_eval, tokens + n_eval]
    std::vector<float> outputs;        // [query_heads, n_eval, value_dim]
    std::int64_t columns = 0;
    std::int64_t queries = 0;
    int value_dim = 0;
  };
  std::vector<LayerResult> layers_;
  std::optional<double> engine_rel_error_;
};

// Mean over (layer, query head, query), unweighted; natural logarithm.
struct Accuracy {
  struct {
    double mean = 0, p50 = 0, p99 = 0, max = 0;
  } output_rel_error;            // |o - o*| / |o*|
  double output_cosine = 0;
  double attention_kl = 0;        // KL(p_compressed || p_full) over the rows that stayed
  double attention_mass_kept = 0;  // full attention mass on rows that stayed
  double top32_overlap = 0;  // share of the 32 strongest full rows among the 32 strongest kept ones
};

// Collects per-query figures; Summary() of a range of layers.
class AccuracyMeter {
 public:
  // kept_columns: columns of Probabilities() that the compressed cache still holds, increasing.
  // logits: the compressed cache's logits of those columns, -inf where not visible.
  // output: the compressed cache's output [value_dim].
  void Add(const ExactAttention& exact, int layer_index, int query_head, std::int64_t query,
           std::span<const std::int64_t> kept_columns, std::span<const float> logits,
           std::span<const float> output);
  Accuracy Summary() const;                 // over all layers
  Accuracy Summary(int layer_index) const;  // one layer
  void Merge(const AccuracyMeter& other);

 private:
  struct Sample {
    int layer_index;
    double rel_error, cosine, kl, mass, top32;
  };
  std::vector<Sample> samples_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_QUALITY_H_
