// Exact attention over a trace, and how far a compressed cache is from it.
//
//   ThreadPool pool(0);
//   KVS_ASSIGN_OR_RETURN(ExactAttention exact, ExactAttention::Compute(trace, pool));
//   AccuracyMeter meter;
//   for each (layer, query head, query): meter.Add(exact, layer, head, query, kept, logits, out);
//   const Accuracy accuracy = meter.Summary();
//
// A *column* is a row of the uncompressed cache as one query sees it: columns [0, tokens) are the
// prompt, [tokens, tokens + n_eval) the eval rows. `layer_index` counts Trace::layers().
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

// Rows that top32_overlap compares.
inline constexpr int kTopColumns = 32;

// Exact attention of every eval query over all rows seen (prompt, then eval rows, causal; sliding
// window and softcap of the layer): f32 products, f64 sums. Computed once per trace; the same bits
// for any number of workers.
class ExactAttention {
 public:
  // Holds 4 * query_heads * n_eval * (tokens + n_eval) bytes per layer; kOutOfMemory when the heap
  // refuses them. kNonFinite, naming layer, query head and query, when a logit is beyond f32; so
  // all that this class hands out is finite.
  static Result<ExactAttention> Compute(const Trace& trace, Parallel& parallel);

  // f32 [tokens + n_eval] of one query, zero where the row is not visible.
  std::span<const float> Probabilities(int layer_index, int query_head, std::int64_t query) const;
  // f32 [value_dim], zero when no row is visible.
  std::span<const float> Output(int layer_index, int query_head, std::int64_t query) const;
  // The strongest visible columns, at most kTopColumns, ascending; of equal logits the lower
  // column counts as stronger.
  std::span<const std::int32_t> TopColumns(int layer_index, int query_head,
                                           std::int64_t query) const;
  // Mean over (layer, query head, query) of |o - out_eval| / |out_eval|, over the layers that
  // recorded out_eval; nullopt when none did.
  std::optional<double> engine_rel_error() const { return engine_rel_error_; }

 private:
  struct LayerResult {
    std::int64_t columns = 0;
    std::int64_t queries = 0;
    int value_dim = 0;
    std::vector<float> probabilities;       // [query_heads, n_eval, tokens + n_eval]
    std::vector<float> outputs;             // [query_heads, n_eval, value_dim]
    std::vector<std::int32_t> top_columns;  // [query_heads, n_eval, kTopColumns]
    std::vector<std::int32_t> top_counts;   // [query_heads, n_eval]
  };
  void MeasureEngineError(const Trace& trace);

  std::vector<LayerResult> layers_;
  std::optional<double> engine_rel_error_;
};

// Unweighted means over (layer, query head, query); natural logarithm. Never NaN or Inf: the edges
// are defined at RelativeError and in docs/trace-format.md. Without samples everything is 0.
struct Accuracy {
  struct {
    double mean = 0, p50 = 0, p99 = 0, max = 0;
  } output_rel_error;              // |o - o*| / |o*|; percentiles by nearest rank
  double output_cosine = 0;        // o.o* / (|o| |o*|)
  double attention_kl = 0;         // KL(p_compressed || p_full) over the rows that stayed
  double attention_mass_kept = 0;  // full attention mass on rows that stayed
  double top32_overlap = 0;  // share of the 32 strongest full rows among the 32 strongest kept ones
};

// |value - reference| / |reference|. Where the reference is zero: 0 when value is zero too, else
// 1, the error of answering zero. A value that is not finite: kNonFiniteError.
double RelativeError(std::span<const float> value, std::span<const float> reference);
inline constexpr double kNonFiniteError = 1e9;

// Collects the figures of one query after the other. One per worker, then Merge: the summary does
// not depend on the order.
class AccuracyMeter {
 public:
  // kept_columns: columns that the compressed cache still holds, increasing.
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
    int layer_index, query_head;
    std::int64_t query;
    double rel_error, cosine, kl, mass, top32;
  };
  static Accuracy Summarize(std::vector<Sample> samples);

  std::vector<Sample> samples_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_QUALITY_H_
