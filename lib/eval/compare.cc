#include "kvsieve/eval/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/targets.h"
#include "lib/eval/row_errors.h"

namespace kvsieve::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Times are those of the best round: what disturbs a round only makes it longer.
constexpr int kAttendRounds = 10;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

template <class T>
void ReadElements(const void* row, int dim, float* out) {
  for (int d = 0; d < dim; ++d) out[d] = ToFloat(static_cast<const T*>(row)[d]);
}

void ReadRow(const HeadsView& view, int head, std::int64_t row, float* out) {
  const void* from = view.row(head, row);
  switch (view.type) {
    case ElementType::kF32:
      return ReadElements<float>(from, view.dim, out);
    case ElementType::kF16:
      return ReadElements<F16>(from, view.dim, out);
    case ElementType::kBF16:
      return ReadElements<BF16>(from, view.dim, out);
  }
}

// Sixteen partial sums, so that the compiler can use SIMD without reordering one sum.
float Dot(const float* a, const float* b, int dim) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  double total = 0;
  for (; d < dim; ++d) total += a[d] * b[d];
  for (const float sum : sums) total += sum;
  return static_cast<float>(total);
}

// What one KV head of the compressed cache holds: its decoded keys, and where they stand among the
// columns of ExactAttention (prompt rows, then eval rows).
struct HeadKeys {
  std::vector<TokenPos> positions;
  std::vector<std::int64_t> columns;
  std::vector<float> keys;  // [rows, key_dim]
};

// One pipeline on one trace, from the compressed prompt on.
class EvalRun {
 public:
  EvalRun(const Trace& trace, const ExactAttention& exact, Parallel& parallel,
          const CompareOptions& options, bool evicts, Cache cache)
      : trace_(trace),
        exact_(exact),
        parallel_(parallel),
        options_(options),
        evicts_(evicts),
        cache_(std::move(cache)),
        attend_seconds_(trace.layers().size(), std::numeric_limits<double>::infinity()) {
    for (int i = 0; i < cache_.layers(); ++i) {
      const LayerSpec& layer = cache_.layer(i);
      outputs_.emplace_back(static_cast<std::size_t>(layer.query_heads) * layer.value_dim);
      for (int head = 0; head < layer.kv_heads; ++head) heads_.push_back({i, head});
    }
    keys_.resize(heads_.size());
    meters_.resize(heads_.size());
  }

  // All eval tokens in order; then the figures are in `result`.
  Status Run(PipelineResult* result) {
    const bool measure = options_.measure == Measure::kAccuracy && trace_.n_eval() > 0;
    if (measure) KVS_RETURN_IF_ERROR(GatherKeys());
    for (std::int64_t query = 0; query < trace_.n_eval(); ++query) {
      KVS_RETURN_IF_ERROR(AppendRow(query, measure));
      KVS_RETURN_IF_ERROR(Attend(query, parallel_));
      if (measure) {
        ParallelFor(parallel_, static_cast<std::int64_t>(heads_.size()),
                    [&](std::int64_t task, int) { MeasureHead(task, query); });
      }
      if (evicts_) KVS_RETURN_IF_ERROR(Evict(query));
    }
    KVS_RETURN_IF_ERROR(TimeAttention());
    WriteResult(measure, result);
    return {};
  }

 private:
  struct HeadId {
    int layer_index;
    int head;
  };

  bool has_eval_rows(int layer_index) const {
    return trace_.layers()[layer_index].eval_keys.data != nullptr;
  }

  Status AppendRow(std::int64_t query, bool measure) {
    const auto position = trace_.eval_positions().subspan(query, 1);
    for (int i = 0; i < cache_.layers(); ++i) {
      if (!has_eval_rows(i)) continue;
      const TraceLayer& layer = trace_.layers()[i];
      KVS_RETURN_IF_ERROR(cache_.Append(i, Phase::kDecode, layer.eval_keys.Slice(query, 1),
                                        layer.eval_values.Slice(query, 1), position));
    }
    if (!measure) return {};
    // Stored rows may change from exact to encoded as the tail moves on, so they are read anew.
    if (options_.decode_rows == DecodeRows::kStored) return GatherKeys();
    for (std::size_t task = 0; task < heads_.size(); ++task) AppendExactKey(task, query);
    return {};
  }

  // After the attention of a token: what the schedule says is due.
  Status Evict(std::int64_t query) {
    const auto position = trace_.eval_positions().subspan(query, 1);
    for (int i = 0; i < cache_.layers(); ++i) {
      const HeadsView queries = trace_.layers()[i].eval_queries.Slice(query, 1);
      KVS_RETURN_IF_ERROR(cache_.Observe(i, position, queries));
      KVS_RETURN_IF_ERROR(cache_.Evict(i));
    }
    return {};
  }

  void AppendExactKey(std::size_t task, std::int64_t query) {
    const auto [layer_index, head] = heads_[task];
    if (!has_eval_rows(layer_index)) return;
    const HeadsView& rows = trace_.layers()[layer_index].eval_keys;
    HeadKeys& held = keys_[task];
    held.positions.push_back(trace_.eval_positions()[query]);
    held.columns.push_back(trace_.tokens() + query);
    held.keys.resize(held.keys.size() + rows.dim);
    ReadRow(rows, head, query, held.keys.data() + held.keys.size() - rows.dim);
  }

  Status GatherKeys() {
    std::vector<Status> statuses(heads_.size());
    ParallelFor(parallel_, static_cast<std::int64_t>(heads_.size()),
                [&](std::int64_t task, int) { statuses[task] = GatherHead(task); });
    for (Status& status : statuses) KVS_RETURN_IF_ERROR(std::move(status));
    return {};
  }

  Status GatherHead(std::int64_t task) {
    const auto [layer_index, head] = heads_[task];
    const std::int64_t rows = cache_.rows(layer_index, head);
    HeadKeys& held = keys_[task];
    held.positions.resize(rows);
    held.keys.resize(rows * cache_.layer(layer_index).key_dim);
    KVS_RETURN_IF_ERROR(cache_.Gather(layer_index, head, held.positions, held.keys, {}));
    held.columns.clear();
    for (const TokenPos position : held.positions) held.columns.push_back(ColumnOf(position));
    return {};
  }

  std::int64_t ColumnOf(TokenPos position) const {
    const auto prompt = trace_.positions();
    const auto at = std::lower_bound(prompt.begin(), prompt.end(), position);
    if (at != prompt.end()) return at - prompt.begin();
    const auto eval = trace_.eval_positions();
    return trace_.tokens() + (std::lower_bound(eval.begin(), eval.end(), position) - eval.begin());
  }

  Status Attend(std::int64_t query, Parallel& parallel) {
    const auto position = trace_.eval_positions().subspan(query, 1);
    AttendParams params;
    params.parallel = &parallel;
    for (int i = 0; i < cache_.layers(); ++i) {
      const HeadsView queries = trace_.layers()[i].eval_queries.Slice(query, 1);
      const auto start = Clock::now();
      KVS_RETURN_IF_ERROR(
          cache_.Attend(i, position, queries, params, scratch_, outputs_[i].data(), nullptr));
      attend_seconds_[i] = std::min(attend_seconds_[i], Seconds(Clock::now() - start));
    }
    return {};
  }

  // The last token again, when all rows are there and the run so far has warmed everything up. On
  // one thread too: waking a second one may take longer than a step over few rows.
  Status TimeAttention() {
    if (trace_.n_eval() == 0) return {};
    std::fill(attend_seconds_.begin(), attend_seconds_.end(),
              std::numeric_limits<double>::infinity());
    for (int round = 0; round < kAttendRounds; ++round) {
      SerialParallel serial;
      KVS_RETURN_IF_ERROR(Attend(trace_.n_eval() - 1, parallel_));
      KVS_RETURN_IF_ERROR(Attend(trace_.n_eval() - 1, serial));
    }
    return {};
  }

  void MeasureHead(std::int64_t task, std::int64_t query) {
    const auto [layer_index, head] = heads_[task];
    const TraceLayer& layer = trace_.layers()[layer_index];
    const HeadKeys& held = keys_[task];
    std::vector<float> q(layer.spec.key_dim);
    std::vector<float> logits(held.positions.size());
    for (int g = 0; g < layer.spec.group(); ++g) {
      const int query_head = head * layer.spec.group() + g;
      ReadRow(layer.eval_queries, query_head, query, q.data());
      Logits(layer.spec, held, q.data(), trace_.eval_positions()[query], logits.data());
      const float* output =
          outputs_[layer_index].data() + std::int64_t{query_head} * layer.spec.value_dim;
      meters_[task].Add(exact_, layer_index, query_head, query, held.columns, logits,
                        {output, static_cast<std::size_t>(layer.spec.value_dim)});
    }
  }

  // The definition of attention (scale, then softcap, then visibility) on decoded keys.
  static void Logits(const LayerSpec& layer, const HeadKeys& held, const float* q,
                     TokenPos query_position, float* logits) {
    for (std::size_t row = 0; row < held.positions.size(); ++row) {
      const TokenPos position = held.positions[row];
      const bool in_window =
          layer.sliding_window == 0 || position > query_position - layer.sliding_window;
      if (position > query_position || !in_window) {
        logits[row] = -std::numeric_limits<float>::infinity();
        continue;
      }
      const float logit =
          layer.scale * Dot(q, held.keys.data() + row * layer.key_dim, layer.key_dim);
      logits[row] = layer.softcap > 0 ? layer.softcap * std::tanh(logit / layer.softcap) : logit;
    }
  }

  void WriteResult(bool measure, PipelineResult* result) const {
    double total_seconds = 0;
    AccuracyMeter all;
    for (const AccuracyMeter& meter : meters_) all.Merge(meter);
    for (std::size_t i = 0; i < result->layers.size(); ++i) {
      total_seconds += attend_seconds_[i];
      result->layers[i].report.demoted_rows = cache_.ReportLayer(static_cast<int>(i)).demoted_rows;
      if (trace_.n_eval() == 0) continue;
      result->layers[i].time.attend_us_per_token = attend_seconds_[i] * 1e6;
      if (measure) result->layers[i].accuracy = all.Summary(static_cast<int>(i));
    }
    if (trace_.n_eval() > 0) result->time.attend_us_per_token = total_seconds * 1e6;
    if (measure) result->accuracy = all.Summary();
  }

  const Trace& trace_;
  const ExactAttention& exact_;
  Parallel& parallel_;
  const CompareOptions& options_;
  bool evicts_;  // during decode
  Cache cache_;
  AttendScratch scratch_;
  std::vector<HeadId> heads_;                // [tasks], one per layer and KV head
  std::vector<HeadKeys> keys_;               // [tasks]
  std::vector<AccuracyMeter> meters_;        // [tasks]: merged in order, whoever ran them
  std::vector<std::vector<float>> outputs_;  // [layers][query_heads, value_dim] of one query
  std::vector<double> attend_seconds_;       // [layers], the least of one token
};

}  // namespace

Comparison DescribeSetting(const Trace& trace, const Parallel& parallel) {
  Comparison comparison;
  comparison.target = ActiveTarget();
  comparison.threads = parallel.workers();
  comparison.trace_name = trace.name();
  comparison.tokens = trace.tokens();
  comparison.n_eval = trace.n_eval();
  comparison.layers = trace.LayerSpecs();
  return comparison;
}

Result<Comparer> Comparer::Create(const Trace& trace, Parallel& parallel,
                                  const CompareOptions& options) {
  KVS_ASSIGN_OR_RETURN(ExactAttention exact, ExactAttention::Compute(trace, parallel));
  return Comparer(trace, parallel, options, std::move(exact));
}

Comparer::Comparer(const Trace& trace, Parallel& parallel, const CompareOptions& options,
                   ExactAttention exact)
    : trace_(&trace), parallel_(&parallel), options_(options), exact_(std::move(exact)) {}

Result<PipelineResult> Comparer::Run(std::shared_ptr<const Pipeline> pipeline) const {
  const bool evicts = pipeline->schedule().kind == Schedule::Kind::kEvery &&
                      options_.decode_rows == DecodeRows::kStored;
  if (evicts && pipeline->evictor()->needs().external_scores) {
    return Status::Unsupported(
        "external with schedule=every(n): the scores handed in are those of prompt rows, decode "
        "rows have none; use once or per_chunk, or --decode-rows exact");
  }
  CacheOptions cache_options;
  cache_options.parallel = parallel_;
  cache_options.decode_rows = options_.decode_rows;
  KVS_ASSIGN_OR_RETURN(CompressedPrompt prompt,
                       CompressPrompt(*trace_, pipeline, cache_options, options_.prompt));
  KVS_RETURN_IF_ERROR(MeasureRowErrors(*trace_, prompt.cache, *parallel_, &prompt.result));
  EvalRun run(*trace_, exact_, *parallel_, options_, evicts, std::move(prompt.cache));
  KVS_RETURN_IF_ERROR(run.Run(&prompt.result));
  return std::move(prompt.result);
}

Comparison Comparer::Describe() const {
  Comparison comparison = DescribeSetting(*trace_, *parallel_);
  comparison.decode_rows = options_.decode_rows;
  comparison.chunk_rows = options_.prompt.chunk_rows;
  comparison.engine_rel_error = exact_.engine_rel_error();
  return comparison;
}

void MarkParetoFront(std::span<PipelineResult> results) {
  const auto error = [](const PipelineResult& r) {
    return r.accuracy ? r.accuracy->output_rel_error.mean : 0.0;
  };
  const auto dominates = [&](const PipelineResult& a, const PipelineResult& b) {
    const std::int64_t a_bytes = a.bytes.kept_bytes();
    const std::int64_t b_bytes = b.bytes.kept_bytes();
    return a_bytes <= b_bytes && error(a) <= error(b) && (a_bytes < b_bytes || error(a) < error(b));
  };
  for (PipelineResult& result : results) {
    result.pareto = std::none_of(results.begin(), results.end(), [&](const PipelineResult& other) {
      return dominates(other, result);
    });
  }
}

std::string PathName(const LayerReport& report) {
  if (report.key_path == report.value_path) return report.key_path;
  return StrCat("k:", report.key_path, " v:", report.value_path);
}

}  // namespace kvsieve::eval
