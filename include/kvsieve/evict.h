// Eviction: which rows of each KV head stay. Thinks in rows and positions, never in bytes; how
// rows are stored is none of its business (kvsieve/codec.h).
//
//   Observation -> Scorer -> Reducer -> Smoother -> Budget -> Selector -> KeepSet
//
// An Evictor is one such composition, built from a spec such as
//   snapkv(budget=25%,window=32,sinks=4,pool=max:7)
#ifndef KVSIEVE_EVICT_H_
#define KVSIEVE_EVICT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/keep_set.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/stage_info.h"
#include "kvsieve/types.h"

namespace kvsieve {

// The candidate rows of one KV head. Pointers and spans are the caller's and outlive the call.
struct HeadObservation {
  const RowSource* keys = nullptr;      // [rows, key_dim]
  const RowSource* values = nullptr;    // [rows, value_dim]
  std::span<const TokenPos> positions;  // [rows], strictly increasing
};

// What a scorer may look at in one layer.
struct Observation {
  LayerSpec layer;
  std::span<const HeadObservation> heads;  // [kv_heads]
  // The last post-RoPE queries, unscaled: f32 [query_heads, window_rows, key_dim], contiguous.
  const float* window_queries = nullptr;
  std::span<const TokenPos> window_positions;  // [window_rows], increasing; may be empty
  // Scores handed in from outside (scorer `external`): [kv_heads, rows], or empty.
  std::span<const float> external_scores;
  // Tokens that came to the layer, kept or not; 0: as many as each head has rows.
  std::int64_t tokens_seen = 0;
  // Rows at positions before this one are stored exact and go to no tier.
  TokenPos exact_before = 0;

  int window_rows() const { return static_cast<int>(window_positions.size()); }
};

// Scores of one layer, [kv_heads, rows] in CSR form (heads may differ in rows); higher = keep.
// Protection is never done by inflating a score.
struct Scores {
  std::vector<std::int64_t> head_begin;  // [kv_heads + 1]
  std::vector<float> raw;                // before smoothing
  std::vector<float> smoothed;           // after smoothing; what ranks first
};

// Heads that are treated as one: those of scorers share one set of rows, after their scores were
// averaged; those of a plan in bytes share its budget.
enum class Scope : std::uint8_t { kKvHead, kLayer, kModel };

// What a scorer reads beside the keys.
struct ScorerNeeds {
  int window_queries = 0;        // rows of true queries that must have been observed; 0 = none
  int window_keys = 0;           // last keys that stand in for queries; 0 = none
  bool values = false;           // reads V
  bool external_scores = false;  // reads Observation::external_scores

  // Rows of the observation window, which selection protects.
  int window() const { return window_queries > window_keys ? window_queries : window_keys; }
};

// Memory that scoring may use, and what it did use.
struct ScoreScratch {
  std::int64_t limit_bytes = 0;  // 0 = enough for the logits of one query head per worker
  std::int64_t peak_bytes = 0;   // written by the call
  bool recomputed = false;       // written: logits did not fit, q.K was computed twice
};

// Scores the rows of one layer. Stateless and const: one object serves every layer and thread.
class Scorer {
 public:
  virtual ~Scorer() = default;
  // The call with every default written out, without selection keys:
  // "window_attention(window=32,...)".
  virtual std::string Canonical() const = 0;
  virtual ScorerNeeds needs() const = 0;
  // Fills `scores->raw` (and `smoothed`, equal to raw when the scorer does not smooth).
  // Errors: kInvalidArgument when the observation lacks what needs() states.
  virtual Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
                       Scores* scores) const = 0;
};

// What the output of each KV head loses when rows are stored less well, in CSR form as Scores:
// the expected square of its error over the expected square of the output, per unit of
//   key    |k - k'|^2 / |k - mean k|^2
//   value  |v - v'|^2 / |v|^2
// and for a row that is not stored at all. Finite, not negative.
struct RowLosses {
  std::vector<std::int64_t> head_begin;  // [kv_heads + 1]
  std::vector<float> key;
  std::vector<float> value;
  std::vector<float> drop;
};

// An evict stage that chooses no rows but tells what each is worth: whoever owns the stores gives
// every row a tier, or none (a plan in bytes).
class LossEstimator {
 public:
  virtual ~LossEstimator() = default;
  virtual Status Estimate(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
                          RowLosses* losses) const = 0;
  virtual Scope scope() const = 0;
  // First tokens of the sequence, whose rows stay exact.
  virtual int sinks() const = 0;
  // Last rows of the prompt, which always stay, in a tier that is fine enough.
  virtual int window() const = 0;
};

// How the budget came to be met, for reports.
struct LayerDecision {
  KeepSet keep;
  bool scored = false;
  std::string note;  // empty, or e.g. "budget not reached: 200 of 512 rows"
};

// A budget in bytes: a size, or a share of what a plain f16 cache would hold. Evict knows no bytes;
// whoever owns the stores finds the rows that fit (Evictor::Rank).
struct ByteBudget {
  std::int64_t bytes = 0;  // when factor is 0
  double factor = 0;       // kept_bytes <= full_bytes / factor

  std::int64_t LimitOf(std::int64_t full_bytes) const;
  std::string ToString() const;  // "64MiB", "8x"
};

// How many of the rows that stay go to a colder tier.
struct ColdRows {
  std::int64_t rows = 0;
  std::optional<Ratio> share;  // instead: of the tokens that came, rounded up

  static Result<ColdRows> Parse(std::string_view text);  // "512", "35%"
  std::int64_t RowsOf(std::int64_t tokens) const;
  std::string ToString() const;
};

// Fixed tiers: the rows that stay, lowest first in the order of selection, fill the coldest tier,
// then the one before it; all others are in tier 0. Protected rows are never cold, nor do rows that
// are stored exact take a place in a tier.
struct TierRule {
  std::vector<ColdRows> cold;   // of tiers 1, 2, ...: from warm to coldest
  std::int64_t exact_tail = 0;  // last rows of a head that are stored exact
};

// The rows of some layers, scored once, from which any budget can be chosen. Holds on to the
// observations it was made from, which must outlive it.
class Ranking {
 public:
  virtual ~Ranking() = default;
  // KV heads of the ranked layers; sliding-window layers are not ranked.
  virtual std::int64_t heads() const = 0;
  // Rows of the largest head.
  virtual std::int64_t most_rows() const = 0;

  // What stays when `total` / heads() rows of each head do, and one more of the first
  // total % heads() heads in (layer, head) order, divided as the evictor's split says. A pure
  // function of its input: the same for any number of workers.
  virtual Result<std::vector<LayerDecision>> Select(std::int64_t total,
                                                    Parallel& parallel) const = 0;
};

// A decision still to come: how many rows, and which of them without a look at scores.
struct ForecastCall {
  std::span<const LayerSpec> layers;
  std::int64_t tokens = 0;      // of the prompt, at positions 0, 1, ...
  std::int64_t total_rows = 0;  // of a budget in bytes: what Ranking::Select would be given
  enum class Decisions : std::uint8_t { kOnce, kEachChunk };
  Decisions decisions = Decisions::kOnce;
};
// Positions [begin, end).
struct PositionRange {
  TokenPos begin = 0;
  TokenPos end = 0;
};
struct RowBounds {
  std::int64_t least = 0;
  std::int64_t most = 0;

  RowBounds& operator+=(const RowBounds& other) {
    least += other.least;
    most += other.most;
    return *this;
  }
};
struct HeadForecast {
  RowBounds rows;
  std::vector<PositionRange> certain;     // stay whatever their score; ascending, disjoint
  std::vector<PositionRange> never_cold;  // protected: go to no colder tier, if they stay
};
struct LayerForecast {
  std::vector<HeadForecast> heads;  // empty: a sliding-window layer, not ranked
  RowBounds rows;                   // of all heads: an adaptive split shares a number of rows
};
struct Forecast {
  std::vector<LayerForecast> layers;
  RowBounds rows;  // of all layers
};

// A scorer with its selection: budget, protection, order. Immutable, shared freely.
class Evictor {
 public:
  virtual ~Evictor() = default;
  // Of a preset: the evict stage that it stands for, written out.
  virtual std::string Canonical() const = 0;
  // The preset that it was built from, of PresetInfos(); empty: none.
  virtual std::string_view preset() const = 0;
  virtual ScorerNeeds needs() const = 0;
  // Budget, split and select in words.
  virtual std::string Explanation() const = 0;

  // Whether rows may go although the budget holds all of them (select=threshold, top_p).
  virtual bool budget_is_cap() const = 0;
  // Rows of a unit of select=block:n, n; 1 where rows are not kept and dropped in such units.
  virtual std::int64_t block_rows() const = 0;
  // Whether Decide may be asked again and again over one layer, while rows still come: the budget
  // must be a number of rows, and no rule may look at other layers. Otherwise the reason.
  virtual Status CheckRepeatable() const = 0;

  // Null when the budget is in rows.
  virtual const ByteBudget* byte_budget() const = 0;
  // Null when the stage ranks rows. Otherwise its budget is in bytes, and Foresee, Rank and Decide
  // are errors.
  virtual const LossEstimator* loss_estimator() const { return nullptr; }
  // What Decide, or a Ranking, will keep of a prompt: a number where it does not depend on scores,
  // bounds where it does. Takes 4 bytes a token.
  virtual Result<Forecast> Foresee(const ForecastCall& call) const = 0;

  // Scores all rows of the layers given together, whatever the budget. Every selection from them
  // has its rows in tiers by the rule.
  virtual Result<std::unique_ptr<const Ranking>> Rank(std::span<const Observation> layers,
                                                      const TierRule& tiers, Parallel& parallel,
                                                      ScoreScratch* scratch) const = 0;

  // One decision for the layers given together (scope=model ranks over all of them). A pure
  // function of its input: the same for any number of workers. Errors name layer and option; a
  // budget in bytes is one.
  virtual Result<std::vector<LayerDecision>> Decide(std::span<const Observation> layers,
                                                    const TierRule& tiers, Parallel& parallel,
                                                    ScoreScratch* scratch) const = 0;
  // The same with all rows in tier 0.
  Result<std::vector<LayerDecision>> Decide(std::span<const Observation> layers, Parallel& parallel,
                                            ScoreScratch* scratch) const {
    return Decide(layers, TierRule(), parallel, scratch);
  }
};

// Builds an evictor from its call. Unknown names suggest the nearest one.
Result<std::shared_ptr<const Evictor>> MakeEvictor(const SpecCall& call);

// What `kvsieve list` and `kvsieve explain` say of each evict stage: those that rank rows, and
// those that plan (Evictor::loss_estimator).
std::span<const StageInfo> EvictorInfos();
std::span<const StageInfo> PlannerInfos();

// Other systems' eviction under its own name: evict stages with other defaults.
std::span<const StageInfo> PresetInfos();

}  // namespace kvsieve

#endif  // KVSIEVE_EVICT_H_
