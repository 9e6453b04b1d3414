// The sets of rows that a decision chooses from, and their scores.
#ifndef KVSIEVE_EVICT_SET_TABLE_H_
#define KVSIEVE_EVICT_SET_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "evict/scorers.h"
#include "evict/selection.h"
#include "evict/top_k.h"
#include "kvsieve/evict.h"

namespace kvsieve::evict {

// What an evictor is made of. Immutable.
struct EvictStage {
  std::shared_ptr<const Scorer> scorer;
  Scope scope = Scope::kKvHead;
  Selection selection;
  std::string_view preset = {};  // the name it was built under, if that is a preset's

  bool adaptive() const { return selection.split.kind == SplitKind::kAdaptive; }
  // Whether rows of different layers are ranked against each other.
  bool ranks_over_layers() const {
    return scope == Scope::kModel || (adaptive() && selection.split.scope == SplitScope::kModel);
  }
};

// Positions of the rows of a set, ascending: a list, or 0, 1, ... of rows that are to come.
class RowPositions {
 public:
  RowPositions(std::span<const TokenPos> listed)  // NOLINT: implicit on purpose
      : listed_(listed), rows_(std::ssize(listed)) {}
  static RowPositions First(std::int64_t rows) {
    RowPositions first{std::span<const TokenPos>()};
    first.rows_ = rows;
    return first;
  }

  std::int64_t rows() const { return rows_; }
  // How many lie before `position`.
  std::int64_t RowsBefore(std::int64_t position) const {
    if (listed_.empty()) return std::clamp<std::int64_t>(position, 0, rows_);
    return std::lower_bound(listed_.begin(), listed_.end(), position) - listed_.begin();
  }

 private:
  std::span<const TokenPos> listed_;
  std::int64_t rows_;
};

// The sets of the layers given together: one per KV head, layer or model, as the scope says.
// Sliding-window layers have none: whole leading blocks of them fall away by themselves.
class SetTable {
 public:
  struct Set {
    RowPositions positions;
    std::int64_t tokens = 0;    // that came, as many as positions at least
    int ranked_layer = 0;       // counts the layers that do not slide
    int heads = 1;              // KV heads that share the set
    TokenPos exact_before = 0;  // rows before it are stored exact
  };

  // Fails when heads that share a set have different rows.
  static Result<SetTable> Create(Scope scope, std::span<const Observation> layers);
  // Of a prompt of so many tokens that is to come: only the shapes of `layers` count.
  static Result<SetTable> CreateUnseen(Scope scope, std::span<const Observation> layers,
                                       std::int64_t tokens);

  std::size_t layers() const { return layers_.size(); }
  const Observation& layer(std::size_t layer) const { return layers_[layer]; }
  bool slides(std::size_t layer) const { return layers_[layer].layer.sliding_window > 0; }
  int ranked_layers() const { return ranked_layers_; }

  std::span<const Set> sets() const { return sets_; }
  std::int64_t heads() const;  // KV heads of the ranked layers
  // The sets of one layer are [first_set, first_set + sets_of). Layers may share theirs.
  std::size_t first_set(std::size_t layer) const { return first_set_[layer]; }
  std::size_t sets_of(std::size_t layer) const {
    if (slides(layer)) return 0;
    return scope_ == Scope::kKvHead ? layers_[layer].heads.size() : 1;
  }

 private:
  std::span<const Observation> layers_;
  Scope scope_ = Scope::kKvHead;
  std::vector<Set> sets_;
  std::vector<std::size_t> first_set_;
  int ranked_layers_ = 0;
};

// Scores of the sets, layer by layer.
class SetScores {
 public:
  explicit SetScores(const SetTable& table);

  // Scores one layer, or with scope=model all of them, unless that is done.
  Status Score(const EvictStage& stage, const SetTable& table, std::size_t layer,
               Parallel& parallel, ScoreScratch* scratch);
  // Forgets the scores of one layer.
  void Drop(const SetTable& table, std::size_t layer);

  // Of one set of the table; empty when it was not scored.
  HeadScores Of(std::size_t set) const;
  // With an adaptive split: OrderKey of each row of the set, descending.
  std::span<const std::uint64_t> SortedKeys(std::size_t set) const { return keys_[set]; }

 private:
  struct Place {  // where the scores of a set are
    std::size_t layer = 0;
    std::size_t head = 0;
  };
  Result<Scores> ScoreOnce(const EvictStage& stage, const Observation& layer, Parallel& parallel,
                           ScoreScratch* scratch) const;
  void Sort(std::size_t first_set, std::size_t count, Parallel& parallel);

  std::vector<Scores> layers_;
  std::vector<Place> places_;
  std::vector<std::vector<std::uint64_t>> keys_;
};

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SET_TABLE_H_
