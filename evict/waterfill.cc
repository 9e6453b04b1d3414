// waterfill: what every row is worth, for a plan that gives bytes to the rows that need them most
// (reverse water-filling; Cover and Thomas, Elements of Information Theory, 10.3.3).
//
// Over the window's queries q of all heads of a group, p the softmax weight of row j and o the
// output,
//   key   = F(mean(p^2 |v - o|^2) / mean|o|^2) |k - mean k|^2 mean|q|^2 scale^2 / key_dim
//   value = F(mean(p^2) |v|^2 / mean|o|^2)
//   drop  = drop_weight F(mean((p / (1 - p))^2 |v - o|^2) / mean|o|^2)
// where a row that has all of the weight (kMaxWeight) moves the output by |v| when it goes.
// An error of k that has no direction moves the logit by scale |q| |k - k'| / sqrt(key_dim) on
// average, and the output by p |v - o| times that. The mean is over rows that are at most 8 times
// as long as the median one. Rows of a sliding window count by how long they will be seen. F
// flattens what the last queries say, for queries still to come:
//   F(x) = y + floor mean(y),   y = max(pool(x), ahead)^power mean(x)^level
// the means over rows of the head that are neither sinks nor in the window. `follow` rows ahead of
// where attention goes on from query to query count follow_weight of it: in copying each query
// looks one row further (induction heads, Olsson et al., arXiv:2209.11895).
//   ahead = follow_weight * max over the last `follow` rows e of
//           mean over the group of (mean over queries of p |v - o| on the diagonal to e)^2 /
//           mean|o|^2
#include "evict/waterfill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "evict/check_observation.h"
#include "evict/head_pass.h"
#include "evict/row_blocks.h"
#include "evict/row_kernels.h"
#include "evict/selection.h"
#include "evict/smoothing.h"
#include "evict/window_scores.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/typical_length.h"

namespace kvsieve::evict {
namespace {

// Losses stay below, also where rows are so large that their squares pass f32.
constexpr float kMostLoss = 1e30F;

struct WaterfillOptions {
  Budget budget;
  Scope scope = Scope::kModel;
  double power = 0.5;
  Pool pool{.kind = PoolKind::kMax, .width = 15};
  double drop_weight = 4;
  int window = 32;
  int sinks = 4;
  double level = 0;
  double floor = 0;
  int follow = 0;
  double follow_weight = 0.1;
};

class Waterfill final : public Evictor, public LossEstimator {
 public:
  explicit Waterfill(const WaterfillOptions& options) : options_(options) {}

  std::string Canonical() const override {
    return StrCat(kWaterfill, "(budget=", options_.budget.ToString(),
                  ",scope=", ScopeName(options_.scope), ",power=", RealText(options_.power), ",",
                  options_.pool.Canonical(), ",drop_weight=", RealText(options_.drop_weight),
                  ",window=", options_.window, ",sinks=", options_.sinks,
                  ",level=", RealText(options_.level), ",floor=", RealText(options_.floor),
                  FollowText(), ")");
  }
  std::string_view preset() const override { return {}; }
  ScorerNeeds needs() const override { return {.window_queries = options_.window, .values = true}; }
  std::string Explanation() const override {
    return StrCat("gives every row the tier, or none, that loses least for its bytes; ",
                  options_.budget.Explanation());
  }
  bool budget_is_cap() const override { return false; }
  std::int64_t block_rows() const override { return 1; }
  Status CheckRepeatable() const override {
    return Status::Invalid("waterfill plans the whole prompt at once");
  }
  const ByteBudget* byte_budget() const override { return &options_.budget.bytes; }
  const LossEstimator* loss_estimator() const override { return this; }

  Result<Forecast> Foresee(const ForecastCall&) const override {
    return Status::Unsupported("which rows waterfill keeps depends on their losses");
  }
  Result<std::unique_ptr<const Ranking>> Rank(std::span<const Observation>, const TierRule&,
                                              Parallel&, ScoreScratch*) const override {
    return PlansOnly();
  }
  using Evictor::Decide;
  Result<std::vector<LayerDecision>> Decide(std::span<const Observation>, const TierRule&,
                                            Parallel&, ScoreScratch*) const override {
    return PlansOnly();
  }

  Status Estimate(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
                  RowLosses* losses) const override;
  Scope scope() const override { return options_.scope; }
  int sinks() const override { return options_.sinks; }
  int window() const override { return options_.window; }

 private:
  static Status PlansOnly() {
    return Status::Invalid("waterfill ranks no rows: it tells what they are worth");
  }
  std::string FollowText() const {
    if (options_.follow == 0) return ",follow=0";
    return StrCat(",follow=", options_.follow, ",follow_weight=", RealText(options_.follow_weight));
  }
  static float Capped(float loss) { return loss < kMostLoss ? loss : kMostLoss; }  // also NaN
  std::int64_t SinkRows(const Observation& observation, std::int64_t rows) const;
  // F for one head.
  struct Flattening {
    float unit = 0;
    std::int64_t sinks = 0;  // first rows that are sinks
    std::vector<float> ahead;
  };
  double MeanOf(std::span<const float> values, std::int64_t first) const;
  void Flatten(const Flattening& flattening, double weight, std::span<float> losses,
               std::vector<float>& raw) const;
  std::vector<float> AheadOf(std::span<const float> diagonals, const WindowSums& sums) const;
  void ScaleHead(const Observation& observation, int h, const WindowSums& sums,
                 std::span<const float> diagonals, RowLosses* losses) const;

  WaterfillOptions options_;
};

// |k - mean k|^2 of every row, the mean over the typical rows from `first` on (LongestTypical).
class KeySpread {
 public:
  KeySpread(const RowSource& keys, RowIndex first) : keys_(keys), first_(first) {
    const auto dim = static_cast<std::size_t>(keys.dim());
    space_.resize(static_cast<std::size_t>(PanelSpace::Floats(keys.dim())) + 3 * kBlockRows +
                  2 * dim);
    weights_ = space_.data() + PanelSpace::Floats(keys.dim());
    norms_ = weights_ + kBlockRows;
    dots_ = norms_ + kBlockRows;
    sum_ = dots_ + kBlockRows;
    mean_ = sum_ + dim;
    LearnMean();
  }

  // Multiplies values[row] by factor |k - mean k|^2.
  void Scale(double factor, std::span<float> values) {
    PanelSpace panel(space_.data(), keys_.dim());
    ForEachBlock(0, keys_.rows(), [&](RowIndex row, int count) {
      const float* columns = panel.Load(keys_, row, count);
      ColumnNorms(columns, keys_.dim(), norms_);
      ColumnDots(columns, keys_.dim(), mean_, dots_);
      for (int i = 0; i < count; ++i) {
        float square = norms_[i] * norms_[i] - 2 * dots_[i] + mean_square_;
        if (square < 0) square = 0;
        // Where squares passed f32 they say nothing (NaN), and the row loses most.
        const double scaled = values[row + i] * factor * square;
        values[row + i] = scaled < kMostLoss ? static_cast<float>(scaled) : kMostLoss;
      }
    });
  }

 private:
  // The sum of the rows that are at most `longest` long; their number. lengths: those of all, or
  // to be filled.
  std::int64_t SumRows(float longest, std::vector<float>& lengths, std::vector<double>& total) {
    PanelSpace panel(space_.data(), keys_.dim());
    std::fill(total.begin(), total.end(), 0.0);
    std::int64_t summed = 0;
    ForEachBlock(first_, keys_.rows(), [&](RowIndex row, int count) {
      const float* columns = panel.Load(keys_, row, count);
      ColumnNorms(columns, keys_.dim(), norms_);
      std::fill_n(weights_, kBlockRows, 0.0F);
      for (int i = 0; i < count; ++i) {
        lengths[row - first_ + i] = norms_[i];
        weights_[i] = norms_[i] <= longest ? 1.0F : 0.0F;
        summed += norms_[i] <= longest ? 1 : 0;
      }
      WeightedRowSum(columns, keys_.dim(), weights_, sum_);
      for (std::size_t d = 0; d < total.size(); ++d) total[d] += sum_[d];
    });
    return summed;
  }

  // A row that is not typical says nothing of the others, and its length would reach all of them.
  void LearnMean() {
    const auto dim = static_cast<std::size_t>(keys_.dim());
    std::vector<double> total(dim);
    std::vector<float> lengths(static_cast<std::size_t>(keys_.rows() - first_));
    std::int64_t rows = SumRows(std::numeric_limits<float>::infinity(), lengths, total);
    const float longest = LongestTypical(lengths);
    if (std::any_of(lengths.begin(), lengths.end(), [&](float x) { return x > longest; })) {
      rows = SumRows(longest, lengths, total);
    }
    double square = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      mean_[d] =
          static_cast<float>(total[d] / static_cast<double>(std::max<std::int64_t>(1, rows)));
      square += static_cast<double>(mean_[d]) * mean_[d];
    }
    mean_square_ = static_cast<float>(square);
  }

  const RowSource& keys_;
  const RowIndex first_;
  std::vector<float> space_;
  float* weights_;  // [kBlockRows]
  float* norms_;    // [kBlockRows]
  float* dots_;     // [kBlockRows]
  float* sum_;      // [dim]
  float* mean_;     // [dim]
  float mean_square_ = 0;
};

// Rows of the sequence's first tokens: where a sliding window let tokens go, fewer or none.
std::int64_t Waterfill::SinkRows(const Observation& observation, std::int64_t rows) const {
  const std::int64_t gone = std::max<std::int64_t>(0, observation.tokens_seen - rows);
  return std::clamp<std::int64_t>(options_.sinks - gone, 0, rows);
}

double Waterfill::MeanOf(std::span<const float> values, std::int64_t first) const {
  const auto rows = std::ssize(values);
  const auto last = std::max<std::int64_t>(first, rows - options_.window);
  const double sum = std::accumulate(values.begin() + first, values.begin() + last, 0.0);
  return last > first ? sum / static_cast<double>(last - first) : 0;
}

// losses = weight * F(unit * losses).
void Waterfill::Flatten(const Flattening& flattening, double weight, std::span<float> losses,
                        std::vector<float>& raw) const {
  raw.resize(losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) raw[i] = Capped(losses[i] * flattening.unit);
  SmoothRows(options_.pool, options_.window, raw, losses);
  const std::span<const float> ahead = flattening.ahead;
  for (std::size_t i = 0; i < ahead.size(); ++i) losses[i] = std::max(losses[i], ahead[i]);
  const double level =
      options_.level == 0 ? 1 : std::pow(MeanOf(raw, flattening.sinks), options_.level);
  const bool root = options_.power == 0.5;  // a tenth of the time of pow
  for (float& loss : losses) {
    const double flat = root ? std::sqrt(static_cast<double>(loss))
                             : std::pow(static_cast<double>(loss), options_.power);
    loss = Capped(static_cast<float>(weight * level * flat));
  }
  if (options_.floor == 0) return;
  const auto floor = static_cast<float>(options_.floor * MeanOf(losses, flattening.sinks));
  for (float& loss : losses) loss = Capped(loss + floor);
}

// A row of a sliding window serves only the queries that still see it: its share of a whole window.
void WeighByLifetime(int window, std::span<const TokenPos> positions, std::span<float> losses) {
  const std::int64_t next = std::int64_t{positions.back()} + 1;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto left = static_cast<float>(positions[i] + window - next);
    losses[i] *= std::clamp(left / static_cast<float>(window), 0.0F, 1.0F);
  }
}

std::vector<float> Waterfill::AheadOf(std::span<const float> diagonals,
                                      const WindowSums& sums) const {
  std::vector<float> ahead;
  if (options_.follow == 0) return ahead;
  const double unit = options_.follow_weight / (std::max(sums.output_square, 1e-30) * sums.queries);
  std::vector<float> weighed(diagonals.size());
  for (std::size_t i = 0; i < weighed.size(); ++i) {
    weighed[i] = Capped(static_cast<float>(diagonals[i] * unit));
  }
  ahead.resize(weighed.size());
  TrailingMax(weighed, options_.follow, ahead);
  return ahead;
}

// From what the window pass summed to losses.
void Waterfill::ScaleHead(const Observation& observation, int h, const WindowSums& sums,
                          std::span<const float> diagonals, RowLosses* losses) const {
  const HeadObservation& head = observation.heads[h];
  const auto begin = static_cast<std::size_t>(losses->head_begin[h]);
  const auto of_head = [&](std::vector<float>& loss) {
    return std::span(loss).subspan(begin, head.positions.size());
  };
  const auto first =
      std::lower_bound(head.positions.begin(), head.positions.end(), observation.exact_before) -
      head.positions.begin();
  // Sums over sums: both are over the same queries.
  const auto unit = static_cast<float>(1 / std::max(sums.output_square, 1e-30));
  if (!diagonals.empty()) diagonals = diagonals.subspan(begin, head.positions.size());
  const Flattening flattening{unit, SinkRows(observation, std::ssize(head.positions)),
                              AheadOf(diagonals, sums)};
  std::vector<float> raw;
  Flatten(flattening, 1, of_head(losses->key), raw);
  Flatten(flattening, 1, of_head(losses->value), raw);
  Flatten(flattening, options_.drop_weight, of_head(losses->drop), raw);
  const double query_square = sums.query_square / sums.count();
  KeySpread(*head.keys, first)
      .Scale(query_square / observation.layer.key_dim, of_head(losses->key));
  if (observation.layer.sliding_window == 0) return;
  for (std::vector<float>* loss : {&losses->key, &losses->value, &losses->drop}) {
    WeighByLifetime(observation.layer.sliding_window, head.positions, of_head(*loss));
  }
}

Status Waterfill::Estimate(const Observation& observation, Parallel& parallel,
                           ScoreScratch* scratch, RowLosses* losses) const {
  KVS_RETURN_IF_ERROR(CheckObservation(observation, true));
  losses->head_begin.assign(1, 0);
  for (const HeadObservation& head : observation.heads) {
    losses->head_begin.push_back(losses->head_begin.back() + std::ssize(head.positions));
  }
  const auto total = static_cast<std::size_t>(losses->head_begin.back());
  for (std::vector<float>* loss : {&losses->key, &losses->value, &losses->drop}) {
    loss->assign(total, 0.0F);
  }
  WindowPass pass{.observation = observation,
                  .weight = RowWeight::kLosses,
                  .window = options_.window,
                  .head_begin = losses->head_begin};
  pass.figures[kLogitLoss] = losses->key.data();
  pass.figures[kValueLoss] = losses->value.data();
  pass.figures[kDropLoss] = losses->drop.data();
  std::vector<float> diagonals(options_.follow > 0 ? total : 0);
  if (options_.follow > 0) pass.diagonals = diagonals.data();
  const std::int64_t rows = losses->head_begin[1] - losses->head_begin[0];
  pass.first_followed = static_cast<RowIndex>(SinkRows(observation, rows));
  KVS_ASSIGN_OR_RETURN(const std::vector<WindowSums> sums, RunWindow(pass, parallel, scratch));

  std::vector<Status> scaled(observation.heads.size());  // tasks must not throw
  ParallelFor(parallel, observation.layer.kv_heads, [&](std::int64_t h, int) {
    if (observation.heads[h].positions.empty()) return;
    scaled[h] = NoThrow([&] {
      ScaleHead(observation, static_cast<int>(h), sums[h], diagonals, losses);
      return Status::Ok();
    });
  });
  for (Status& status : scaled) KVS_RETURN_IF_ERROR(std::move(status));
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<const Evictor>> MakeWaterfill(const SpecCall& call) {
  WaterfillOptions options;
  ArgReader args(call);
  ReadBudget(args, &options.budget);
  ReadScope(args, &options.scope);
  args.Real("power", &options.power, 0, 2);
  ReadPool(args, &options.pool);
  args.Real("drop_weight", &options.drop_weight, 0, 1e6);
  args.Int("window", &options.window, 1, kMaxWindow);
  args.Int("sinks", &options.sinks, 0, kMaxRows);
  args.Real("level", &options.level, 0, 2);
  args.Real("floor", &options.floor, 0, 10);
  args.Int("follow", &options.follow, 0, kMaxRows);
  const SpecArg* follow_weight = args.Raw("follow_weight");
  args.Real("follow_weight", &options.follow_weight, 0, 1);
  if (follow_weight != nullptr && options.follow == 0) {
    args.Fail(follow_weight->key_column, "option follow_weight means nothing with follow=0");
  }
  KVS_RETURN_IF_ERROR(args.Finish());
  if (options.budget.kind != BudgetKind::kBytes) {
    const SpecArg* budget = args.Raw("budget");
    return SpecError(
        budget == nullptr ? call.column : budget->value_column,
        "option budget: waterfill shares out bytes: 64MiB, or 8x for an eighth of f16");
  }
  return std::shared_ptr<const Evictor>(std::make_shared<Waterfill>(options));
}

}  // namespace kvsieve::evict
