// expected_attention: the attention that queries still to come are expected to pay to a row, times
// the length of its value, if they are distributed as the window queries are (Expected Attention,
// Devoto et al. 2025, arXiv:2510.00636; kvpress ExpectedAttention). For one query head, mu and Cov
// (divisor: the number of queries) the mean and covariance of its window queries:
//   E exp(scale q.k) = exp(scale mu.k + scale^2 k'Cov k / 2)      for Gaussian q
//   score            = reduce over the group of softmax over rows of that exponent, times |v|
// k'Cov k is the mean of ((q - mu).k)^2 over the window, so Cov is never formed: it costs one dot
// per query and row, as window_attention does, and cannot turn negative.
//
// The original takes mu and Cov from queries before RoPE, of the whole prompt, and turns them by
// the average rotation of the next 512 positions; that needs the model's RoPE. Here they come from
// the last queries as they are rotated at the end of the prompt, which is where the next queries
// will be; rows that only a query far away would meet are underrated. The softmax is over all rows,
// sinks included (the original leaves its 4 sinks out). The softcap of a layer is not applied.
#include <algorithm>
#include <vector>

#include "evict/head_pass.h"
#include "evict/row_blocks.h"
#include "evict/row_kernels.h"
#include "evict/window_scores.h"

namespace kvsieve::evict {
namespace {

struct ExpectedOptions {
  int window = 32;
  Reduce group = Reduce::kMean;
  RowOptions rows;
  bool pool_window = false;  // smooth over the window's rows too: they can be evicted
};

// One call's sizes, and where things lie in a worker's memory. f32.
struct ExpectedShape {
  int queries = 0;  // mean and centred queries: window + 1
  int group = 0;
  int key_dim = 0;
  int dim = 0;  // the larger of K and V
  std::int64_t max_rows = 0;

  std::int64_t query_floats() const { return std::int64_t{PaddedQueries(queries)} * key_dim; }
  std::int64_t dots_floats() const { return std::int64_t{PaddedQueries(queries)} * kBlockRows; }
  std::int64_t Floats() const {
    return PanelSpace::Floats(dim) + group * (query_floats() + max_rows) + dots_floats() +
           kBlockRows;
  }
};
struct ExpectedSpace {
  ExpectedSpace(float* space, const ExpectedShape& shape)
      : panel(space, shape.dim),
        queries(space + PanelSpace::Floats(shape.dim)),
        logits(queries + shape.group * shape.query_floats()),
        dots(logits + shape.group * shape.max_rows),
        block(dots + shape.dots_floats()) {}

  PanelSpace panel;
  float* queries;  // [group, PaddedQueries, key_dim]
  float* logits;   // [group, max_rows]
  float* dots;     // [PaddedQueries, kBlockRows]
  float* block;    // [kBlockRows]
};

class ExpectedAttention final : public Scorer {
 public:
  explicit ExpectedAttention(const ExpectedOptions& options) : options_(options) {}

  std::string Canonical() const override {
    return StrCat("expected_attention(window=", options_.window,
                  ",group=", ReduceName(options_.group), ",", options_.rows.Canonical(), ")");
  }
  ScorerNeeds needs() const override { return {.window_queries = options_.window, .values = true}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    KVS_ASSIGN_OR_RETURN(const std::vector<int> query_rows,
                         FindWindowQueries(options_.window, observation));
    ExpectedShape shape;
    shape.queries = static_cast<int>(query_rows.size()) + 1;
    shape.group = observation.layer.group();
    shape.key_dim = observation.layer.key_dim;
    shape.dim = std::max(observation.layer.key_dim, observation.layer.value_dim);
    for (const HeadObservation& head : observation.heads) {
      shape.max_rows = std::max(shape.max_rows, static_cast<std::int64_t>(head.positions.size()));
    }
    return ForEachHead(observation, parallel, shape.Floats(), scratch, scores,
                       [&](const HeadPass& pass) {
                         ExpectedSpace space(pass.space, shape);
                         for (int g = 0; g < shape.group; ++g) {
                           LoadQueries(observation, query_rows, pass.head * shape.group + g,
                                       space.queries + g * shape.query_floats());
                         }
                         ScoreHead(pass, shape, space);
                       });
  }

 private:
  // scale * mean, then scale * (query - mean) of each; [PaddedQueries, key_dim].
  static void LoadQueries(const Observation& observation, const std::vector<int>& query_rows,
                          int query_head, float* out) {
    const auto dim = static_cast<std::size_t>(observation.layer.key_dim);
    const float* from = observation.window_queries + static_cast<std::size_t>(query_head) *
                                                         observation.window_positions.size() * dim;
    const double scale = observation.layer.scale;
    const auto queries = query_rows.size();
    for (std::size_t d = 0; d < dim; ++d) {
      double mean = 0;
      for (const int row : query_rows) mean += from[static_cast<std::size_t>(row) * dim + d];
      mean /= static_cast<double>(queries);
      out[d] = static_cast<float>(scale * mean);
      for (std::size_t q = 0; q < queries; ++q) {
        const double query = from[static_cast<std::size_t>(query_rows[q]) * dim + d];
        out[(q + 1) * dim + d] = static_cast<float>(scale * (query - mean));
      }
    }
    const auto padded = static_cast<std::size_t>(PaddedQueries(static_cast<int>(queries) + 1));
    std::fill(out + (queries + 1) * dim, out + padded * dim, 0.0F);
  }

  void ScoreHead(const HeadPass& pass, const ExpectedShape& shape, ExpectedSpace& space) const {
    const auto rows = static_cast<std::int64_t>(pass.raw.size());
    ForEachBlock(0, rows, [&](RowIndex first, int count) {
      const float* panel = space.panel.Load(*pass.rows.keys, first, count);
      for (int g = 0; g < shape.group; ++g) {
        const WindowQueries queries{space.queries + g * shape.query_floats(), shape.queries,
                                    shape.key_dim};
        ExpectedLogits(queries, panel, space.dots, space.block);
        std::copy_n(space.block, count, space.logits + g * shape.max_rows + first);
      }
    });
    for (int g = 0; g < shape.group; ++g) {
      JoinGroup(g, space.logits + g * shape.max_rows, pass.raw);
    }
    const float divisor = options_.group == Reduce::kMean ? static_cast<float>(shape.group) : 1.0F;
    ForEachBlock(0, rows, [&](RowIndex first, int count) {
      const RowSource& values = *pass.rows.values;
      ColumnNorms(space.panel.Load(values, first, count), values.dim(), space.block);
      for (int i = 0; i < count; ++i) pass.raw[first + i] *= space.block[i] / divisor;
    });
    SmoothRows(options_.rows.pool, options_.pool_window ? 0 : options_.window, pass.raw,
               pass.smoothed);
  }

  // Softmax of one query head's logits, in place, into the group's scores.
  void JoinGroup(int query_head, float* logits, std::span<float> raw) const {
    const float top = *std::max_element(logits, logits + raw.size());
    const double sum = ExpBelow(top, static_cast<std::int64_t>(raw.size()), logits);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const auto weight = static_cast<float>(logits[i] / sum);
      if (query_head == 0) {
        raw[i] = weight;
      } else if (options_.group == Reduce::kMax) {
        raw[i] = std::max(raw[i], weight);
      } else {
        raw[i] += weight;
      }
    }
  }

  ExpectedOptions options_;
};

}  // namespace

ScorerParts MakeExpectedAttention(ArgReader& args, const Selection& selection) {
  ExpectedOptions options;
  args.Int("window", &options.window, 1, kMaxWindow);
  ReadReduce(args, "group", &options.group);
  options.rows = ReadRowOptions(args);
  options.pool_window = !selection.protect_window;
  return {std::make_unique<ExpectedAttention>(options), options.rows.scope, true};
}

}  // namespace kvsieve::evict
