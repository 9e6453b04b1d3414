#include "evict/window_scores.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "evict/head_pass.h"
#include "evict/row_blocks.h"
#include "evict/window_space.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr std::string_view kReduceNames[] = {"mean", "sum", "max"};

// "992..1003" or "992..1003, 1010".
std::string RunsOf(std::span<const TokenPos> positions) {
  std::string out;
  for (std::size_t i = 0; i < positions.size();) {
    std::size_t end = i + 1;
    while (end < positions.size() && positions[end] == positions[end - 1] + 1) ++end;
    out += StrCat(i == 0 ? "" : ", ", positions[i]);
    if (end > i + 1) out += StrCat("..", positions[end - 1]);
    i = end;
  }
  return out;
}

struct WindowCall {
  const WindowOptions& options;
  RowWeight weight;
  const Observation& observation;
  std::vector<int> query_rows;
  WindowShape shape;
  Scores* scores;
};

// Scores one KV head in a worker's memory. Blocks ascend, then the query heads that are worked on
// together; sums over heads and blocks never change their order.
class HeadTask {
 public:
  HeadTask(const WindowCall& call, const WindowSpace& space, int kv_head)
      : call_(call),
        shape_(call.shape),
        space_(space),
        kv_head_(kv_head),
        head_(call.observation.heads[kv_head]),
        rows_(static_cast<std::int64_t>(head_.positions.size())),
        queries_(call.options.keys_as_queries
                     ? static_cast<int>(std::min<std::int64_t>(call.options.window, rows_))
                     : call.shape.queries),
        raw_(call.scores->raw.data() + call.scores->head_begin[kv_head]) {}

  void Run() {
    if (rows_ == 0) return;
    CountVisible();
    for (int first = 0; first < shape_.group; first += shape_.heads_at_once) {
      heads_ = std::min(shape_.heads_at_once, shape_.group - first);
      first_query_head_ = first;
      for (int i = 0; i < heads_; ++i) LoadQueries(i);
      Attend();
      if (call_.weight == RowWeight::kOutputPerturbation) SumOutputs();
      Reduce();
    }
    Finish();
  }

 private:
  std::int64_t blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }
  int RowsIn(std::int64_t block) const {
    return static_cast<int>(std::min<std::int64_t>(kBlockRows, rows_ - block * kBlockRows));
  }

  TokenPos QueryPosition(int q) const {
    if (call_.options.keys_as_queries) {
      return head_.positions[head_.positions.size() - static_cast<std::size_t>(queries_ - q)];
    }
    return call_.observation.window_positions[call_.query_rows[q]];
  }

  // Rows are in position order, so what a query sees is a prefix.
  void CountVisible() {
    for (int q = 0; q < queries_; ++q) {
      const TokenPos position = QueryPosition(q);
      const auto end = call_.options.causal ? std::upper_bound(head_.positions.begin(),
                                                               head_.positions.end(), position)
                                            : head_.positions.end();
      space_.visible_rows[q] = static_cast<std::int32_t>(end - head_.positions.begin());
    }
  }

  // Queries of one head to f32 [PaddedQueries, key_dim], the layer's scale folded in.
  void LoadQueries(int i) {
    float* queries = space_.heads[i].queries;
    if (call_.options.keys_as_queries) {
      CopyKeys(queries);
    } else {
      CopyObserved(kv_head_ * shape_.group + first_query_head_ + i, queries);
    }
    const auto dim = static_cast<std::size_t>(shape_.key_dim);
    float* end = queries + static_cast<std::size_t>(queries_) * dim;
    for (float* value = queries; value < end; ++value) *value *= call_.observation.layer.scale;
    std::fill(end, queries + static_cast<std::size_t>(PaddedQueries(queries_)) * dim, 0.0F);
  }

  void CopyObserved(int query_head, float* to) const {
    const Observation& observation = call_.observation;
    const auto dim = static_cast<std::size_t>(shape_.key_dim);
    const float* from = observation.window_queries + static_cast<std::size_t>(query_head) *
                                                         observation.window_positions.size() * dim;
    for (const int row : call_.query_rows) {
      to = std::copy_n(from + static_cast<std::size_t>(row) * dim, dim, to);
    }
  }

  // The head's own last keys.
  void CopyKeys(float* to) const {
    ForEachBlock(rows_ - queries_, rows_, [&](RowIndex first, int count) {
      head_.keys->ReadRows(first, count, to);
      to += std::int64_t{count} * shape_.key_dim;
    });
  }

  RowSource::RowMajor Locate(const RowSource& source, std::int64_t block) const {
    return LocateRows(source, block * kBlockRows, RowsIn(block), space_.staging);
  }

  void LoadPanelOf(const RowSource& source, std::int64_t block) {
    LoadPanel(Locate(source, block), source.dim(), RowsIn(block), space_.panel);
  }

  BlockWeights WeightsAt(int i, std::int64_t block) const {
    const HeadSpace& head = space_.heads[i];
    const std::int64_t kept = shape_.stored ? block : 0;
    return {head.weights + kept * PaddedQueries(queries_) * kBlockRows,
            head.tops + block * QueryStride(queries_), head.sums + block * QueryStride(queries_)};
  }

  // The keys of `block`, where they lie; none past the last block.
  RowsAhead KeysAhead(std::int64_t block) const {
    if (block >= blocks() || !head_.keys->TryView()) return {};
    return {LocateRows(*head_.keys, block * kBlockRows, RowsIn(block), nullptr), shape_.key_dim,
            RowsIn(block)};
  }

  // Precondition: the block's keys are in the panel.
  void AttendAt(int i, std::int64_t block) {
    for (int q = 0; q < queries_; ++q) {
      const std::int64_t left = space_.visible_rows[q] - block * kBlockRows;
      space_.visible[q] = static_cast<int>(std::clamp<std::int64_t>(left, 0, RowsIn(block)));
    }
    AttendBlock(
        {space_.heads[i].queries, queries_, shape_.key_dim, call_.observation.layer.softcap},
        space_.panel, space_.visible, i == 0 ? KeysAhead(block + 1) : RowsAhead(),
        WeightsAt(i, block));
  }

  void Attend() {
    for (std::int64_t block = 0; block < blocks(); ++block) {
      LoadPanelOf(*head_.keys, block);
      for (int i = 0; i < heads_; ++i) AttendAt(i, block);
    }
    for (int i = 0; i < heads_; ++i) {
      const HeadSpace& head = space_.heads[i];
      FinishSoftmax(head.tops, head.sums, blocks(), queries_, head.maximum, head.inverse_sum);
    }
  }

  // Weights and their factors; the weights are computed again, to the same bits, when there was no
  // room to keep them.
  const float* LoadWeights(int i, std::int64_t block) {
    const HeadSpace& head = space_.heads[i];
    if (!shape_.stored) {
      LoadPanelOf(*head_.keys, block);
      AttendAt(i, block);
    }
    const BlockWeights at = WeightsAt(i, block);
    BlockFactors(at.top, head.maximum, head.inverse_sum, queries_, space_.factors);
    return at.weights;
  }

  void SumOutputs() {
    const auto size = static_cast<std::size_t>(PaddedQueries(queries_)) *
                      static_cast<std::size_t>(ValueStride(shape_.value_dim));
    for (int i = 0; i < heads_; ++i) std::fill_n(space_.heads[i].outputs, size, 0.0F);
    for (std::int64_t block = 0; block < blocks(); ++block) {
      LoadRows(Locate(*head_.values, block), shape_.value_dim, RowsIn(block), space_.value_rows);
      for (int i = 0; i < heads_; ++i) {
        Probabilities(LoadWeights(i, block), space_.factors, queries_, space_.probabilities);
        AddOutputs(space_.probabilities, queries_, space_.value_rows, shape_.value_dim,
                   RowsIn(block), space_.heads[i].outputs);
      }
    }
  }

  void Reduce() {
    for (std::int64_t block = 0; block < blocks(); ++block) {
      for (int i = 0; i < heads_; ++i) {
        const float* weights = LoadWeights(i, block);
        if (call_.weight == RowWeight::kAttention) {
          ReduceAttention(weights, space_.factors, queries_, call_.options.queries, space_.reduced);
        } else {
          // After LoadWeights: both use the panel. Without room for weights there is one head only.
          if (i == 0) LoadPanelOf(*head_.values, block);
          Probabilities(weights, space_.factors, queries_, space_.probabilities);
          ReducePerturbation(space_.probabilities, space_.heads[i].outputs, queries_,
                             call_.options.queries, space_.panel, shape_.value_dim,
                             space_.distances, space_.reduced);
        }
        JoinGroup(first_query_head_ + i, block);
      }
    }
  }

  void JoinGroup(int query_head, std::int64_t block) {
    float* raw = raw_ + block * kBlockRows;
    for (int r = 0; r < RowsIn(block); ++r) {
      const float score = space_.reduced[r];
      if (query_head == 0) {
        raw[r] = score;
      } else if (call_.options.group == Reduce::kMax) {
        raw[r] = std::max(raw[r], score);
      } else {
        raw[r] += score;
      }
    }
  }

  void Finish() {
    float divisor = 1.0F;
    if (call_.options.queries == Reduce::kMean) divisor *= static_cast<float>(queries_);
    if (call_.options.group == Reduce::kMean) divisor *= static_cast<float>(shape_.group);
    const std::span<float> raw(raw_, static_cast<std::size_t>(rows_));
    for (float& score : raw) score /= divisor;
    const std::span<float> smoothed(
        call_.scores->smoothed.data() + call_.scores->head_begin[kv_head_], raw.size());
    SmoothRows(call_.options.pool, call_.options.pool_window ? 0 : call_.options.window, raw,
               smoothed);
  }

  const WindowCall& call_;
  const WindowShape& shape_;
  const WindowSpace& space_;
  const int kv_head_;
  const HeadObservation& head_;
  const std::int64_t rows_;
  const int queries_;  // of this head: a short head has fewer keys to ask with
  float* const raw_;
  int first_query_head_ = 0;
  int heads_ = 0;
};

WindowShape ShapeOf(const WindowCall& call) {
  const LayerSpec& layer = call.observation.layer;
  WindowShape shape;
  shape.key_dim = layer.key_dim;
  shape.value_dim = call.weight == RowWeight::kOutputPerturbation ? layer.value_dim : 0;
  shape.group = call.options.keys_as_queries ? 1 : layer.group();
  for (const HeadObservation& head : call.observation.heads) {
    shape.max_rows = std::max(shape.max_rows, static_cast<std::int64_t>(head.positions.size()));
  }
  shape.queries = static_cast<int>(std::min<std::int64_t>(call.options.window, shape.max_rows));
  return shape;
}

}  // namespace

void ReadReduce(ArgReader& args, std::string_view key, Reduce* reduce) {
  int index = static_cast<int>(*reduce);
  args.Choice(key, kReduceNames, &index);
  *reduce = static_cast<Reduce>(index);
}

std::string_view ReduceName(Reduce reduce) { return kReduceNames[static_cast<int>(reduce)]; }

std::string WindowOptions::Canonical() const {
  std::string out = StrCat("window=", window, ",queries=", ReduceName(queries));
  if (!keys_as_queries) out += StrCat(",group=", ReduceName(group));
  return StrCat(out, ",", pool.Canonical(), ",scope=", ScopeName(scope),
                ",causal=", causal ? "true" : "false");
}

WindowOptions ReadWindowOptions(ArgReader& args, const Selection& selection, QuerySource source) {
  WindowOptions options;
  options.keys_as_queries = source == QuerySource::kKeys;
  args.Int("window", &options.window, 1, kMaxWindow);
  ReadReduce(args, "queries", &options.queries);
  if (source == QuerySource::kObserved) ReadReduce(args, "group", &options.group);
  ReadPool(args, &options.pool);
  ReadScope(args, &options.scope);
  args.Bool("causal", &options.causal);
  options.pool_window = !selection.protect_window;
  return options;
}

Result<std::vector<int>> FindWindowQueries(int window_option, const Observation& observation) {
  std::span<const TokenPos> positions;
  for (const HeadObservation& head : observation.heads) {
    if (head.positions.size() > positions.size()) positions = head.positions;
  }
  const std::size_t window = std::min<std::size_t>(window_option, positions.size());
  std::vector<int> rows;
  std::vector<TokenPos> missing;
  const std::span<const TokenPos> observed = observation.window_positions;
  for (const TokenPos position : positions.last(window)) {
    const auto found = std::lower_bound(observed.begin(), observed.end(), position);
    if (found != observed.end() && *found == position && observation.window_queries != nullptr) {
      rows.push_back(static_cast<int>(found - observed.begin()));
    } else {
      missing.push_back(position);
    }
  }
  if (missing.empty()) return rows;
  return Status::Invalid(StrCat("layer ", observation.layer.layer, ": the queries of ",
                                missing.size(), " window positions were not observed: ",
                                RunsOf(missing), " (option window=", window_option, ")"));
}

Status ScoreWindow(const WindowOptions& options, RowWeight weight, const Observation& observation,
                   Parallel& parallel, ScoreScratch* scratch, Scores* scores) {
  ResetScores(observation, scores);
  if (scores->raw.empty()) return Status::Ok();
  std::vector<int> query_rows;
  if (!options.keys_as_queries) {
    KVS_ASSIGN_OR_RETURN(query_rows, FindWindowQueries(options.window, observation));
  }
  WindowCall call{options, weight, observation, std::move(query_rows), {}, scores};
  call.shape = ShapeOf(call);
  const int workers = parallel.workers();
  const int kv_heads = observation.layer.kv_heads;
  const std::int64_t limit = scratch != nullptr ? scratch->limit_bytes : 0;
  FitScratch(limit, std::min(workers, kv_heads), &call.shape);
  KVS_ASSIGN_OR_RETURN(const WindowSpaces spaces, WindowSpaces::Create(call.shape, workers));
  ParallelFor(parallel, kv_heads, [&](std::int64_t head, int worker) {
    HeadTask(call, spaces.worker(worker), static_cast<int>(head)).Run();
  });
  if (scratch != nullptr) {
    scratch->peak_bytes = std::min(workers, kv_heads) * SpaceBytes(call.shape);
    scratch->recomputed = !call.shape.stored;
  }
  return Status::Ok();
}

}  // namespace kvsieve::evict
