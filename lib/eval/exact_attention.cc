#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <new>
#include <numeric>

#include "kvsieve/eval/quality.h"
#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/file_error.h"
#include "lib/eval/portable_math.h"
#include "lib/eval/top_columns.h"

namespace kvsieve::eval {
namespace {

// The columns that one query sees. Positions increase along the columns, so they are a range.
struct ColumnRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

// Where one query head writes.
struct HeadResult {
  float* probabilities;       // [n_eval, columns], zero on entry
  float* outputs;             // [n_eval, value_dim]
  std::int32_t* top_columns;  // [n_eval, kTopColumns]
  std::int32_t* top_counts;   // [n_eval]
};

// The first logit of a query head that f32 cannot hold.
struct Overflow {
  std::int64_t query = -1;  // -1: none
  std::int64_t column = 0;
};

// Temporary memory of one worker, for the largest layer.
struct Scratch {
  std::vector<double> logits;        // [n_eval, tokens + n_eval]
  std::vector<float> weights;        // the same
  std::vector<double> totals;        // [n_eval]
  std::vector<double> accumulators;  // [n_eval, value_dim]
  std::vector<float> queries;        // [n_eval, key_dim]
  std::vector<float> block;          // [kBlockRows, dim]
  std::vector<float> transposed;     // [key_dim, kBlockRows]
  std::vector<std::int32_t> order;   // [tokens + n_eval]

  Scratch(std::int64_t queries_count, std::int64_t columns, int max_dim)
      : logits(static_cast<std::size_t>(queries_count * columns)),
        weights(logits.size()),
        totals(static_cast<std::size_t>(queries_count)),
        accumulators(static_cast<std::size_t>(queries_count * max_dim)),
        queries(accumulators.size()),
        block(static_cast<std::size_t>(kBlockRows) * static_cast<std::size_t>(max_dim)),
        transposed(block.size()),
        order(static_cast<std::size_t>(columns)) {}
};

// Attention of one query head of one layer over blocks of kBlockRows columns. Inner loops run over
// columns (logits) or dimensions (outputs) with one sum each, so that they vectorise without
// reordering a sum.
class HeadAttention {
 public:
  HeadAttention(const Trace& trace, const TraceLayer& layer, int query_head)
      : trace_(trace),
        layer_(layer),
        query_head_(query_head),
        kv_head_(query_head / layer.spec.group()),
        columns_(trace.tokens() + trace.n_eval()) {}

  // After an overflow `result` is incomplete.
  Overflow Run(Scratch& scratch, const HeadResult& result) const {
    const Overflow overflow = ComputeLogits(scratch);
    if (overflow.query >= 0) return overflow;
    for (std::int64_t query = 0; query < trace_.n_eval(); ++query) {
      Softmax(query, scratch, result);
    }
    ComputeOutputs(scratch, result);
    return {};
  }

 private:
  // Rows that exist: eval rows may not have been recorded.
  std::int64_t stored_columns() const {
    return trace_.tokens() + (layer_.eval_keys.data != nullptr ? trace_.n_eval() : 0);
  }

  ColumnRange Visible(std::int64_t query) const {
    const auto count_up_to = [](std::span<const TokenPos> positions, std::int64_t limit) {
      return std::upper_bound(positions.begin(), positions.end(), limit) - positions.begin();
    };
    const std::int64_t query_position = trace_.eval_positions()[static_cast<std::size_t>(query)];
    const auto columns_up_to = [&](std::int64_t limit) -> std::int64_t {
      const std::int64_t columns =
          count_up_to(trace_.positions(), limit) + count_up_to(trace_.eval_positions(), limit);
      return std::min(columns, stored_columns());
    };
    const int window = layer_.spec.sliding_window;
    return {window > 0 ? columns_up_to(query_position - window) : 0, columns_up_to(query_position)};
  }

  // Block [first, first + count) of the columns as f32 [count, dim]: prompt rows, then eval rows.
  void ReadBlock(const HeadsView& prompt, const HeadsView& eval, std::int64_t first, int count,
                 float* out) const {
    for (int r = 0; r < count; ++r) {
      const std::int64_t column = first + r;
      const bool is_prompt = column < trace_.tokens();
      const HeadsView& rows = is_prompt ? prompt : eval;
      ConvertToF32(rows.row(kv_head_, is_prompt ? column : column - trace_.tokens()), rows.type,
                   rows.dim, out + std::ptrdiff_t{r} * rows.dim);
    }
  }

  Overflow ComputeLogits(Scratch& scratch) const {
    const int dim = layer_.spec.key_dim;
    const double scale = static_cast<double>(layer_.spec.scale);
    for (std::int64_t query = 0; query < trace_.n_eval(); ++query) {
      ConvertToF32(layer_.eval_queries.row(query_head_, query), layer_.eval_queries.type, dim,
                   scratch.queries.data() + query * dim);
    }
    for (std::int64_t first = 0; first < stored_columns(); first += kBlockRows) {
      const int count =
          static_cast<int>(std::min<std::int64_t>(kBlockRows, stored_columns() - first));
      ReadBlock(layer_.keys, layer_.eval_keys, first, count, scratch.block.data());
      for (int r = 0; r < count; ++r) {
        for (int d = 0; d < dim; ++d) {
          scratch.transposed[static_cast<std::size_t>(d * kBlockRows + r)] =
              scratch.block[static_cast<std::size_t>(r * dim + d)];
        }
      }
      for (std::int64_t query = 0; query < trace_.n_eval(); ++query) {
        double dots[kBlockRows];
        Dots(scratch.queries.data() + query * dim, scratch.transposed.data(), dots);
        double* logits = scratch.logits.data() + query * columns_ + first;
        for (int r = 0; r < count; ++r) {
          if (!FitsF32(dots[r] * scale)) return {query, first + r};
          logits[r] = Softcap(dots[r] * scale);
        }
      }
    }
    return {};
  }

  // Lanes past the block's rows hold leftovers of an earlier block and are not used.
  void Dots(const float* query, const float* transposed, double* __restrict dots) const {
    std::fill_n(dots, kBlockRows, 0.0);
    for (int d = 0; d < layer_.spec.key_dim; ++d) {
      const float q = query[d];
      const float* keys = transposed + std::ptrdiff_t{d} * kBlockRows;
      for (int r = 0; r < kBlockRows; ++r) dots[r] += static_cast<double>(q * keys[r]);
    }
  }

  // False for NaN too, the sum of a product that overflowed up and one that overflowed down.
  static bool FitsF32(double logit) {
    return std::abs(logit) <= static_cast<double>(std::numeric_limits<float>::max());
  }

  double Softcap(double logit) const {
    const double cap = static_cast<double>(layer_.spec.softcap);
    return cap > 0 ? cap * PortableTanh(logit / cap) : logit;
  }

  void Softmax(std::int64_t query, Scratch& scratch, const HeadResult& result) const {
    const ColumnRange visible = Visible(query);
    const double* logits = scratch.logits.data() + query * columns_;
    float* weights = scratch.weights.data() + query * columns_;
    std::fill_n(weights, columns_, 0.0F);
    result.top_counts[query] = 0;
    scratch.totals[static_cast<std::size_t>(query)] = 0;
    if (visible.size() <= 0) return;
    const double max = *std::max_element(logits + visible.begin, logits + visible.end);
    for (std::int64_t c = visible.begin; c < visible.end; ++c) {
      weights[c] = static_cast<float>(PortableExp(logits[c] - max));
    }
    const double total = std::accumulate(weights + visible.begin, weights + visible.end, 0.0);
    scratch.totals[static_cast<std::size_t>(query)] = total;
    float* probabilities = result.probabilities + query * columns_;
    for (std::int64_t c = visible.begin; c < visible.end; ++c) {
      probabilities[c] = static_cast<float>(static_cast<double>(weights[c]) / total);
    }
    const auto top =
        SelectTop<double>({logits + visible.begin, static_cast<std::size_t>(visible.size())},
                          kTopColumns, scratch.order);
    result.top_counts[query] = static_cast<std::int32_t>(top.size());
    std::transform(top.begin(), top.end(), result.top_columns + query * kTopColumns,
                   [&](std::int32_t c) { return static_cast<std::int32_t>(visible.begin) + c; });
  }

  void ComputeOutputs(Scratch& scratch, const HeadResult& result) const {
    const int dim = layer_.spec.value_dim;
    std::fill(scratch.accumulators.begin(), scratch.accumulators.end(), 0.0);
    for (std::int64_t first = 0; first < stored_columns(); first += kBlockRows) {
      const int count =
          static_cast<int>(std::min<std::int64_t>(kBlockRows, stored_columns() - first));
      ReadBlock(layer_.values, layer_.eval_values, first, count, scratch.block.data());
      for (std::int64_t query = 0; query < trace_.n_eval(); ++query) {
        AddRows(scratch.weights.data() + query * columns_ + first, scratch.block.data(), count,
                scratch.accumulators.data() + query * dim);
      }
    }
    for (std::int64_t query = 0; query < trace_.n_eval(); ++query) {
      const double total = scratch.totals[static_cast<std::size_t>(query)];
      const double* sums = scratch.accumulators.data() + query * dim;
      for (int d = 0; d < dim; ++d) {
        result.outputs[query * dim + d] = total > 0 ? static_cast<float>(sums[d] / total) : 0.0F;
      }
    }
  }

  void AddRows(const float* weights, const float* rows, int count, double* __restrict sums) const {
    const int dim = layer_.spec.value_dim;
    for (int r = 0; r < count; ++r) {
      const float weight = weights[r];
      const float* row = rows + std::ptrdiff_t{r} * dim;
      for (int d = 0; d < dim; ++d) sums[d] += static_cast<double>(weight * row[d]);
    }
  }

  const Trace& trace_;
  const TraceLayer& layer_;
  int query_head_;
  int kv_head_;
  std::int64_t columns_;
};

// One row of a contiguous array of rows.
template <class T>
std::span<const T> Row(const std::vector<T>& array, std::int64_t row, std::int64_t row_size) {
  return std::span(array).subspan(static_cast<std::size_t>(row * row_size),
                                  static_cast<std::size_t>(row_size));
}

Status Refusal(const Trace& trace, int layer_index, int query_head, const Overflow& overflow) {
  const int layer = trace.layers()[static_cast<std::size_t>(layer_index)].spec.layer;
  const bool is_prompt = overflow.column < trace.tokens();
  return FileErrors(trace.name())
      .Make(
          ErrorCode::kNonFinite,
          StrCat("layer ", layer, ", query head ", query_head, ", eval query ", overflow.query),
          StrCat("the logit of ", is_prompt ? "prompt" : "eval", " row ",
                 is_prompt ? overflow.column : overflow.column - trace.tokens(), " is beyond f32"),
          "capture it again, no model has such keys and queries");
}

}  // namespace

Result<ExactAttention> ExactAttention::Compute(const Trace& trace, Parallel& parallel) try {
  const std::int64_t n_eval = trace.n_eval();
  const std::int64_t columns = trace.tokens() + n_eval;
  ExactAttention exact;
  std::vector<std::pair<int, int>> tasks;  // (layer index, query head)
  int max_dim = 1;
  for (const TraceLayer& layer : trace.layers()) {
    const auto rows = static_cast<std::size_t>(layer.spec.query_heads * n_eval);
    for (int head = 0; head < layer.spec.query_heads; ++head) {
      tasks.emplace_back(static_cast<int>(exact.layers_.size()), head);
    }
    max_dim = std::max({max_dim, layer.spec.key_dim, layer.spec.value_dim});
    LayerResult& result = exact.layers_.emplace_back();
    result.columns = columns;
    result.queries = n_eval;
    result.value_dim = layer.spec.value_dim;
    result.probabilities.resize(rows * static_cast<std::size_t>(columns));
    result.outputs.resize(rows * static_cast<std::size_t>(result.value_dim));
    result.top_columns.resize(rows * kTopColumns);
    result.top_counts.resize(rows);
  }
  std::vector<Overflow> overflows(tasks.size());
  // Allocated here: a task has no way to report a failure.
  std::vector<Scratch> scratch(static_cast<std::size_t>(parallel.workers()),
                               Scratch(n_eval, columns, max_dim));
  ParallelFor(parallel, std::ssize(tasks), [&](std::int64_t task, int worker) {
    const auto [layer_index, head] = tasks[static_cast<std::size_t>(task)];
    LayerResult& result = exact.layers_[static_cast<std::size_t>(layer_index)];
    const std::int64_t first_row = head * n_eval;
    overflows[static_cast<std::size_t>(task)] =
        HeadAttention(trace, trace.layers()[static_cast<std::size_t>(layer_index)], head)
            .Run(scratch[static_cast<std::size_t>(worker)],
                 {result.probabilities.data() + first_row * columns,
                  result.outputs.data() + first_row * result.value_dim,
                  result.top_columns.data() + first_row * kTopColumns,
                  result.top_counts.data() + first_row});
  });
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const auto [layer_index, head] = tasks[task];
    if (overflows[task].query >= 0) return Refusal(trace, layer_index, head, overflows[task]);
  }
  exact.MeasureEngineError(trace);
  return exact;
} catch (const std::bad_alloc&) {
  return Status(ErrorCode::kOutOfMemory,
                trace.name() +
                    ": exact attention needs more memory than there is; capture fewer "
                    "layers, tokens or eval queries");
}

void ExactAttention::MeasureEngineError(const Trace& trace) {
  double sum = 0;
  std::int64_t count = 0;
  std::vector<float> recorded;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const HeadsView& outputs = trace.layers()[i].eval_outputs;
    if (outputs.data == nullptr) continue;
    recorded.resize(static_cast<std::size_t>(outputs.dim));
    for (int head = 0; head < outputs.heads; ++head) {
      for (std::int64_t query = 0; query < outputs.rows; ++query, ++count) {
        ConvertToF32(outputs.row(head, query), outputs.type, outputs.dim, recorded.data());
        sum += RelativeError(Output(static_cast<int>(i), head, query), recorded);
      }
    }
  }
  if (count > 0) engine_rel_error_ = sum / static_cast<double>(count);
}

std::span<const float> ExactAttention::Probabilities(int layer_index, int query_head,
                                                     std::int64_t query) const {
  const LayerResult& layer = layers_[static_cast<std::size_t>(layer_index)];
  return Row(layer.probabilities, query_head * layer.queries + query, layer.columns);
}

std::span<const float> ExactAttention::Output(int layer_index, int query_head,
                                              std::int64_t query) const {
  const LayerResult& layer = layers_[static_cast<std::size_t>(layer_index)];
  return Row(layer.outputs, query_head * layer.queries + query, layer.value_dim);
}

std::span<const std::int32_t> ExactAttention::TopColumns(int layer_index, int query_head,
                                                         std::int64_t query) const {
  const LayerResult& layer = layers_[static_cast<std::size_t>(layer_index)];
  const std::int64_t row = query_head * layer.queries + query;
  const std::int32_t count = layer.top_counts[static_cast<std::size_t>(row)];
  return Row(layer.top_columns, row, kTopColumns).first(static_cast<std::size_t>(count));
}

}  // namespace kvsieve::eval
