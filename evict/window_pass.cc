#include "evict/window_pass.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "evict/row_blocks.h"
#include "evict/window_space.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

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

double SquareOf(const float* begin, const float* end) {
  return std::inner_product(begin, end, begin, 0.0);
}

// Looks at one KV head in a worker's memory. Blocks ascend, then the query heads that are worked on
// together; sums over heads and blocks never change their order.
class HeadTask {
 public:
  HeadTask(const WindowPass& call, const WindowShape& shape, std::span<const int> query_rows,
           const WindowSpace& space, int kv_head)
      : call_(call),
        shape_(shape),
        query_rows_(query_rows),
        space_(space),
        kv_head_(kv_head),
        head_(call.observation.heads[kv_head]),
        rows_(static_cast<std::int64_t>(head_.positions.size())),
        queries_(call.keys_as_queries ? static_cast<int>(std::min<std::int64_t>(call.window, rows_))
                                      : shape.queries) {}

  WindowSums Run() {
    if (rows_ == 0) return {};
    sums_.queries = queries_;
    sums_.group = shape_.group;
    CountVisible();
    for (int first = 0; first < shape_.group; first += shape_.heads_at_once) {
      heads_ = std::min(shape_.heads_at_once, shape_.group - first);
      first_query_head_ = first;
      for (int i = 0; i < heads_; ++i) LoadQueries(i);
      Attend();
      if (call_.reads_values()) SumOutputs();
      Reduce();
    }
    return sums_;
  }

 private:
  std::int64_t blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }
  int RowsIn(std::int64_t block) const {
    return static_cast<int>(std::min<std::int64_t>(kBlockRows, rows_ - block * kBlockRows));
  }

  TokenPos QueryPosition(int q) const {
    if (call_.keys_as_queries) {
      return head_.positions[head_.positions.size() - static_cast<std::size_t>(queries_ - q)];
    }
    return call_.observation.window_positions[query_rows_[q]];
  }

  // Rows are in position order, so what a query sees is a prefix.
  void CountVisible() {
    for (int q = 0; q < queries_; ++q) {
      const TokenPos position = QueryPosition(q);
      const auto end =
          call_.causal ? std::upper_bound(head_.positions.begin(), head_.positions.end(), position)
                       : head_.positions.end();
      space_.visible_rows[q] = static_cast<std::int32_t>(end - head_.positions.begin());
    }
  }

  // Queries of one head to f32 [PaddedQueries, key_dim], the layer's scale folded in.
  void LoadQueries(int i) {
    float* queries = space_.heads[i].queries;
    if (call_.keys_as_queries) {
      CopyKeys(queries);
    } else {
      CopyObserved(kv_head_ * shape_.group + first_query_head_ + i, queries);
    }
    const auto dim = static_cast<std::size_t>(shape_.key_dim);
    float* end = queries + static_cast<std::size_t>(queries_) * dim;
    for (float* value = queries; value < end; ++value) *value *= call_.observation.layer.scale;
    sums_.query_square += SquareOf(queries, end);
    std::fill(end, queries + static_cast<std::size_t>(PaddedQueries(queries_)) * dim, 0.0F);
  }

  void CopyObserved(int query_head, float* to) const {
    const Observation& observation = call_.observation;
    const auto dim = static_cast<std::size_t>(shape_.key_dim);
    const float* from = observation.window_queries + static_cast<std::size_t>(query_head) *
                                                         observation.window_positions.size() * dim;
    for (const int row : query_rows_) {
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
    const auto live = static_cast<std::size_t>(queries_) *
                      static_cast<std::size_t>(ValueStride(shape_.value_dim));
    for (int i = 0; i < heads_; ++i) {
      const float* outputs = space_.heads[i].outputs;
      sums_.output_square += SquareOf(outputs, outputs + live);
    }
  }

  void Reduce() {
    if (call_.diagonals != nullptr) {
      const auto size = static_cast<std::size_t>(blocks() * kBlockRows + PaddedQueries(queries_));
      for (int i = 0; i < heads_; ++i) std::fill_n(space_.heads[i].diagonals, size, 0.0F);
    }
    for (std::int64_t block = 0; block < blocks(); ++block) {
      for (int i = 0; i < heads_; ++i) {
        ReduceBlock(i, block);
        for (std::size_t f = 0; f < FiguresOf(call_.weight); ++f) {
          JoinGroup(first_query_head_ + i, space_.reduced + f * kBlockRows, RowsIn(block),
                    FiguresAt(f, block));
        }
      }
    }
    if (call_.diagonals != nullptr) JoinDiagonals();
  }

  // To space_.reduced.
  void ReduceBlock(int i, std::int64_t block) {
    const float* weights = LoadWeights(i, block);
    if (call_.weight == RowWeight::kAttention) {
      return ReduceAttention(weights, space_.factors, queries_, call_.queries, space_.reduced);
    }
    // After LoadWeights: both use the panel. Without room for weights there is one head only.
    if (i == 0) LoadPanelOf(*head_.values, block);
    Probabilities(weights, space_.factors, queries_, space_.probabilities);
    const BlockOutputs outputs{space_.probabilities, space_.heads[i].outputs, queries_,
                               space_.panel,         shape_.value_dim,        space_.distances};
    if (call_.weight == RowWeight::kLosses) {
      ReduceLosses(outputs, space_.reduced);
      return FollowDiagonals(i, block, outputs);
    }
    ReducePerturbation(outputs, call_.queries, space_.reduced);
  }

  void FollowDiagonals(int i, std::int64_t block, const BlockOutputs& outputs) {
    if (call_.diagonals == nullptr) return;
    const std::int64_t before = call_.first_followed - block * kBlockRows;
    AddAlongDiagonals(outputs, static_cast<int>(std::clamp<std::int64_t>(before, 0, kBlockRows)),
                      space_.heads[i].diagonals + block * kBlockRows);
  }

  // What goes on behind the last row is still to come.
  void JoinDiagonals() {
    float* joined = call_.diagonals + call_.head_begin[kv_head_];
    for (int i = 0; i < heads_; ++i) {
      const float* sums = space_.heads[i].diagonals;
      for (std::int64_t r = 0; r < rows_; ++r) joined[r] += sums[r] * sums[r];
    }
  }

  float* FiguresAt(std::size_t figure, std::int64_t block) const {
    return call_.figures[figure] + call_.head_begin[kv_head_] + block * kBlockRows;
  }

  void JoinGroup(int query_head, const float* reduced, int rows, float* joined) const {
    for (int r = 0; r < rows; ++r) {
      if (query_head == 0) {
        joined[r] = reduced[r];
      } else if (call_.group == Reduce::kMax) {
        joined[r] = std::max(joined[r], reduced[r]);
      } else {
        joined[r] += reduced[r];
      }
    }
  }

  const WindowPass& call_;
  const WindowShape& shape_;
  const std::span<const int> query_rows_;
  const WindowSpace& space_;
  const int kv_head_;
  const HeadObservation& head_;
  const std::int64_t rows_;
  const int queries_;  // of this head: a short head has fewer keys to ask with
  WindowSums sums_;
  int first_query_head_ = 0;
  int heads_ = 0;
};

WindowShape ShapeOf(const WindowPass& pass) {
  const LayerSpec& layer = pass.observation.layer;
  WindowShape shape;
  shape.key_dim = layer.key_dim;
  shape.value_dim = pass.reads_values() ? layer.value_dim : 0;
  shape.figures = static_cast<int>(FiguresOf(pass.weight));
  shape.diagonals = pass.diagonals != nullptr;
  shape.group = pass.keys_as_queries ? 1 : layer.group();
  for (const HeadObservation& head : pass.observation.heads) {
    shape.max_rows = std::max(shape.max_rows, static_cast<std::int64_t>(head.positions.size()));
  }
  shape.queries = static_cast<int>(std::min<std::int64_t>(pass.window, shape.max_rows));
  return shape;
}

}  // namespace

Result<std::vector<int>> FindWindowQueries(int window, const Observation& observation) {
  std::span<const TokenPos> positions;
  for (const HeadObservation& head : observation.heads) {
    if (head.positions.size() > positions.size()) positions = head.positions;
  }
  const std::size_t queries = std::min<std::size_t>(window, positions.size());
  std::vector<int> rows;
  std::vector<TokenPos> missing;
  const std::span<const TokenPos> observed = observation.window_positions;
  for (const TokenPos position : positions.last(queries)) {
    const auto found = std::lower_bound(observed.begin(), observed.end(), position);
    if (found != observed.end() && *found == position && observation.window_queries != nullptr) {
      rows.push_back(static_cast<int>(found - observed.begin()));
    } else {
      missing.push_back(position);
    }
  }
  if (missing.empty()) return rows;
  return Status::Invalid(
      StrCat("layer ", observation.layer.layer, ": the queries of ", missing.size(),
             " window positions were not observed: ", RunsOf(missing), " (option window=", window,
             "); observe queries up to the last row, or take a scorer without queries"));
}

Result<std::vector<WindowSums>> RunWindow(const WindowPass& pass, Parallel& parallel,
                                          ScoreScratch* scratch) {
  const int kv_heads = pass.observation.layer.kv_heads;
  std::vector<WindowSums> sums(static_cast<std::size_t>(kv_heads));
  if (pass.head_begin.back() == 0) return sums;
  std::vector<int> query_rows;
  if (!pass.keys_as_queries) {
    KVS_ASSIGN_OR_RETURN(query_rows, FindWindowQueries(pass.window, pass.observation));
  }
  WindowShape shape = ShapeOf(pass);
  const int workers = parallel.workers();
  const std::int64_t limit = scratch != nullptr ? scratch->limit_bytes : 0;
  FitScratch(limit, std::min(workers, kv_heads), &shape);
  KVS_ASSIGN_OR_RETURN(const WindowSpaces spaces, WindowSpaces::Create(shape, workers));
  ParallelFor(parallel, kv_heads, [&](std::int64_t head, int worker) {
    sums[head] =
        HeadTask(pass, shape, query_rows, spaces.worker(worker), static_cast<int>(head)).Run();
  });
  if (scratch != nullptr) {
    scratch->peak_bytes = std::min(workers, kv_heads) * SpaceBytes(shape);
    scratch->recomputed = !shape.stored;
  }
  return sums;
}

}  // namespace kvsieve::evict
