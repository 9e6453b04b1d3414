#include "evict/forecast.h"

#include <algorithm>
#include <vector>

#include "evict/budget_plan.h"
#include "evict/split.h"

namespace kvsieve::evict {
namespace {

// Layers of which only the shape is known.
class Unseen {
 public:
  explicit Unseen(std::span<const LayerSpec> layers) {
    heads_.reserve(layers.size());  // observations point into it
    for (const LayerSpec& layer : layers) {
      heads_.emplace_back(static_cast<std::size_t>(layer.kv_heads));
      Observation observation;
      observation.layer = layer;
      observation.heads = heads_.back();
      observations_.push_back(observation);
    }
  }
  std::span<const Observation> observations() const { return observations_; }

 private:
  std::vector<std::vector<HeadObservation>> heads_;
  std::vector<Observation> observations_;
};

// Of a prompt whose rows are its positions.
std::vector<PositionRange> PositionsOf(std::span<const RowRange> rows) {
  std::vector<PositionRange> positions;
  for (const RowRange& range : rows) {
    positions.push_back({static_cast<TokenPos>(range.begin), static_cast<TokenPos>(range.end)});
  }
  return positions;
}

// When the split gives a set `rows` rows.
HeadForecast Decided(const Selection& selection, const RowSet& set, std::int64_t rows) {
  const SetPlan plan = PlanSet(selection, set, rows);
  HeadForecast head;
  head.rows = {selection.select.caps() ? plan.rows() - plan.best : plan.rows(), plan.rows()};
  head.certain = PositionsOf(plan.kept);
  return head;
}

// Sets that divide the sum of their shares by score: what the others must leave or cannot take.
class Competition {
 public:
  void Add(const Split& split, const RowSet& set) {
    total_ += set.share;
    least_ += AdaptiveLeast(split, set);
    most_ += set.rows;
  }
  std::int64_t rows() const { return std::min(total_, most_); }
  void Bound(const Selection& selection, const RowSet& set, HeadForecast* head) const {
    const std::int64_t least = AdaptiveLeast(selection.split, set);
    head->rows.most = std::min(set.rows, rows() - (least_ - least));
    head->rows.least = selection.select.caps() ? set.protected_count
                                               : std::max(least, rows() - (most_ - set.rows));
  }

 private:
  std::int64_t total_ = 0;
  std::int64_t least_ = 0;
  std::int64_t most_ = 0;
};

class Forecaster {
 public:
  Forecaster(const EvictStage& stage, const SetTable& table, const BudgetPlan& plan,
             std::span<const std::int64_t> budgets)
      : stage_(stage), table_(table), plan_(plan) {
    for (std::size_t i = 0; i < table.sets().size(); ++i) {
      sets_.push_back(Decided(stage.selection, plan.set(i), plan.rows(i)));
      sets_.back().never_cold = PositionsOf(ProtectedRows(
          stage.selection, budgets[i], stage.scorer->needs().window(), table.sets()[i].positions));
    }
  }

  Forecast Run() {
    const std::size_t step = stage_.ranks_over_layers() ? table_.layers() : 1;
    Forecast forecast;
    for (std::size_t first = 0; first < table_.layers(); first += step) {
      const std::vector<std::size_t> competing = Compete(first, first + step);
      RowBounds together;
      for (std::size_t layer = first; layer < first + step; ++layer) {
        forecast.layers.push_back(LayerOf(layer));
        together += forecast.layers.back().rows;
      }
      ShareOut(competing, &together);
      if (step == 1) forecast.layers.back().rows = together;
      forecast.rows += together;
    }
    return forecast;
  }

 private:
  // Bounds the sets of layers [first, last) that compete, and returns them.
  std::vector<std::size_t> Compete(std::size_t first, std::size_t last) {
    std::vector<std::size_t> competing;
    competition_ = Competition();
    for (std::size_t layer = first; stage_.adaptive() && layer < last; ++layer) {
      if (!plan_.NeedsScores(layer)) continue;
      const std::size_t begin = table_.first_set(layer);
      for (std::size_t i = begin; i < begin + table_.sets_of(layer); ++i) {
        if (!plan_.set(i).splits()) continue;
        competing.push_back(i);
        competition_.Add(stage_.selection.split, plan_.set(i));
      }
    }
    for (const std::size_t i : competing) {
      competition_.Bound(stage_.selection, plan_.set(i), &sets_[i]);
    }
    return competing;
  }

  // Heads that compete keep a number of rows together.
  void ShareOut(std::span<const std::size_t> competing, RowBounds* together) const {
    RowBounds alone;
    for (const std::size_t i : competing) alone += sets_[i].rows;
    together->most += competition_.rows() - alone.most;
    if (!stage_.selection.select.caps()) together->least += competition_.rows() - alone.least;
  }

  LayerForecast LayerOf(std::size_t layer) const {
    LayerForecast forecast;
    if (table_.slides(layer)) return forecast;
    for (std::size_t head = 0; head < table_.layer(layer).heads.size(); ++head) {
      const std::size_t own = table_.sets_of(layer) == 1 ? 0 : head;
      forecast.heads.push_back(sets_[table_.first_set(layer) + own]);
      forecast.rows += forecast.heads.back().rows;
    }
    return forecast;
  }

  const EvictStage& stage_;
  const SetTable& table_;
  const BudgetPlan& plan_;
  std::vector<HeadForecast> sets_;
  Competition competition_;  // of the layers bounded last
};

// The rows that every decision of a prompt in chunks protects at least: one that drops any ranks a
// row more than the budget.
EvictStage InChunks(EvictStage stage) {
  Selection& selection = stage.selection;
  if (selection.recent.kind == Recent::Kind::kShare) {
    const std::int64_t budget = selection.budget.rows;
    selection.recent = {Recent::Kind::kRows, selection.recent.RowsOf(budget, budget + 1), {}};
  }
  return stage;
}

}  // namespace

Result<Forecast> Foresee(const EvictStage& stage, const ForecastCall& call) {
  const EvictStage planned =
      call.decisions == ForecastCall::Decisions::kEachChunk ? InChunks(stage) : stage;
  const Unseen unseen(call.layers);
  KVS_ASSIGN_OR_RETURN(const SetTable table,
                       SetTable::CreateUnseen(stage.scope, unseen.observations(), call.tokens));
  const TierRule one_tier;  // how many rows stay does not depend on how they are stored
  const std::vector<std::int64_t> budgets = stage.selection.budget.kind == BudgetKind::kBytes
                                                ? SharedBudgets(table, call.total_rows)
                                                : RowBudgets(stage.selection.budget, table);
  const BudgetPlan plan(planned, table, one_tier, budgets);
  return Forecaster(planned, table, plan, budgets).Run();
}

}  // namespace kvsieve::evict
