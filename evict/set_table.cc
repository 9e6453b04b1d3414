#include "evict/set_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "evict/check_observation.h"

namespace kvsieve::evict {
namespace {

// The mean over many heads, in f64 and in head order.
class MeanScores {
 public:
  void Add(const Scores& scores) {
    const std::size_t heads = scores.head_begin.size() - 1;
    const std::size_t rows = scores.raw.size() / heads;
    raw_.resize(rows);
    smoothed_.resize(rows);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t begin = head * rows;
      for (std::size_t i = 0; i < rows; ++i) {
        raw_[i] += scores.raw[begin + i];
        smoothed_[i] += scores.smoothed[begin + i];
      }
    }
    heads_ += static_cast<double>(heads);
  }
  Scores Take() const {
    Scores mean;
    mean.head_begin = {0, static_cast<std::int64_t>(raw_.size())};
    for (const double sum : raw_) mean.raw.push_back(static_cast<float>(sum / heads_));
    for (const double sum : smoothed_) mean.smoothed.push_back(static_cast<float>(sum / heads_));
    return mean;
  }

 private:
  std::vector<double> raw_;
  std::vector<double> smoothed_;
  double heads_ = 0;
};

std::int64_t BytesOf(const Scores& scores) {
  return static_cast<std::int64_t>((scores.raw.size() + scores.smoothed.size()) * sizeof(float));
}

std::int64_t TokensOf(const Observation& layer, std::span<const TokenPos> positions) {
  return std::max(layer.tokens_seen, static_cast<std::int64_t>(positions.size()));
}

}  // namespace

Result<SetTable> SetTable::Create(Scope scope, std::span<const Observation> layers) {
  SetTable table;
  table.layers_ = layers;
  table.scope_ = scope;
  const Observation* first = nullptr;
  for (const Observation& layer : layers) {
    const bool slides = layer.layer.sliding_window > 0;
    const bool joins = scope == Scope::kModel && first != nullptr;  // the set of the first layer
    table.first_set_.push_back(joins ? 0 : table.sets_.size());
    if (slides) continue;
    if (scope != Scope::kKvHead) {
      KVS_RETURN_IF_ERROR(CheckSamePositions(joins ? *first : layer, layer));
    }
    if (first == nullptr) first = &layer;
    const int kv_heads = layer.layer.kv_heads;
    if (joins) {
      table.sets_.front().heads += kv_heads;
    } else if (scope == Scope::kKvHead) {
      for (const HeadObservation& head : layer.heads) {
        table.sets_.push_back({head.positions, TokensOf(layer, head.positions),
                               table.ranked_layers_, 1, layer.exact_before});
      }
    } else {
      const std::span<const TokenPos> positions = layer.heads[0].positions;
      table.sets_.push_back({positions, TokensOf(layer, positions), table.ranked_layers_, kv_heads,
                             layer.exact_before});
    }
    ++table.ranked_layers_;
  }
  return table;
}

Result<SetTable> SetTable::CreateUnseen(Scope scope, std::span<const Observation> layers,
                                        std::int64_t tokens) {
  KVS_ASSIGN_OR_RETURN(SetTable table, Create(scope, layers));
  for (Set& set : table.sets_) {
    set.positions = RowPositions::First(tokens);
    set.tokens = tokens;
  }
  return table;
}

std::int64_t SetTable::heads() const {
  std::int64_t heads = 0;
  for (const Set& set : sets_) heads += set.heads;
  return heads;
}

SetScores::SetScores(const SetTable& table)
    : layers_(table.layers()), places_(table.sets().size()), keys_(table.sets().size()) {
  for (std::size_t layer = table.layers(); layer-- > 0;) {  // a shared set is the first layer's
    for (std::size_t i = 0; i < table.sets_of(layer); ++i) {
      places_[table.first_set(layer) + i] = {layer, i};
    }
  }
}

Result<Scores> SetScores::ScoreOnce(const EvictStage& stage, const Observation& layer,
                                    Parallel& parallel, ScoreScratch* scratch) const {
  ScoreScratch once{.limit_bytes = scratch->limit_bytes};
  Scores scores;
  KVS_RETURN_IF_ERROR(stage.scorer->Score(layer, parallel, &once, &scores));
  std::int64_t held = BytesOf(scores);
  for (const Scores& other : layers_) held += BytesOf(other);
  scratch->peak_bytes = std::max(scratch->peak_bytes, once.peak_bytes + held);
  scratch->recomputed |= once.recomputed;
  return scores;
}

Status SetScores::Score(const EvictStage& stage, const SetTable& table, std::size_t layer,
                        Parallel& parallel, ScoreScratch* scratch) {
  const std::size_t first_set = table.first_set(layer);
  const std::size_t count = table.sets_of(layer);
  if (count == 0 || Of(first_set).smoothed.size() > 0) return Status::Ok();
  Scores& scores = layers_[places_[first_set].layer];
  if (stage.scope == Scope::kKvHead) {
    KVS_ASSIGN_OR_RETURN(scores, ScoreOnce(stage, table.layer(layer), parallel, scratch));
  } else {
    MeanScores mean;
    for (std::size_t other = 0; other < table.layers(); ++other) {
      if (table.slides(other) || (stage.scope == Scope::kLayer && other != layer)) continue;
      KVS_ASSIGN_OR_RETURN(const Scores of_heads,
                           ScoreOnce(stage, table.layer(other), parallel, scratch));
      mean.Add(of_heads);
    }
    scores = mean.Take();
  }
  if (stage.adaptive()) Sort(first_set, count, parallel);
  return Status::Ok();
}

void SetScores::Sort(std::size_t first_set, std::size_t count, Parallel& parallel) {
  for (std::size_t i = 0; i < count; ++i) {
    keys_[first_set + i].resize(Of(first_set + i).smoothed.size());
  }
  ParallelFor(parallel, static_cast<std::int64_t>(count), [&](std::int64_t i, int) {
    const HeadScores scores = Of(first_set + static_cast<std::size_t>(i));
    std::vector<std::uint64_t>& keys = keys_[first_set + static_cast<std::size_t>(i)];
    for (std::size_t row = 0; row < keys.size(); ++row) {
      keys[row] = OrderKey(scores.smoothed[row], scores.raw[row]);
    }
    std::sort(keys.begin(), keys.end(), std::greater<>());
  });
}

void SetScores::Drop(const SetTable& table, std::size_t layer) {
  layers_[layer] = Scores();
  for (std::size_t i = 0; i < table.sets_of(layer); ++i) {
    keys_[table.first_set(layer) + i] = std::vector<std::uint64_t>();
  }
}

HeadScores SetScores::Of(std::size_t set) const {
  const Scores& scores = layers_[places_[set].layer];
  if (scores.head_begin.empty()) return {};
  const auto begin = static_cast<std::size_t>(scores.head_begin[places_[set].head]);
  const auto size = static_cast<std::size_t>(scores.head_begin[places_[set].head + 1]) - begin;
  return {std::span(scores.smoothed).subspan(begin, size),
          std::span(scores.raw).subspan(begin, size)};
}

}  // namespace kvsieve::evict
