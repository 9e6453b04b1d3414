#include "evict/evictor.h"

#include <algorithm>
#include <utility>

#include "evict/budget_plan.h"
#include "evict/check_observation.h"
#include "evict/forecast.h"
#include "evict/set_table.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

// All scores, and the steps that follow them for any budget.
class ScoredRanking final : public Ranking {
 public:
  ScoredRanking(std::shared_ptr<const EvictStage> stage, SetTable table, TierRule tiers)
      : stage_(std::move(stage)),
        table_(std::move(table)),
        tiers_(std::move(tiers)),
        scores_(table_) {}

  Status Score(Parallel& parallel, ScoreScratch* scratch) {
    for (std::size_t layer = 0; layer < table_.layers(); ++layer) {
      KVS_RETURN_IF_ERROR(scores_.Score(*stage_, table_, layer, parallel, scratch));
    }
    return Status::Ok();
  }

  std::int64_t heads() const override { return table_.heads(); }
  std::int64_t most_rows() const override {
    std::int64_t most = 0;
    for (const SetTable::Set& set : table_.sets()) most = std::max(most, set.positions.rows());
    return most;
  }

  Result<std::vector<LayerDecision>> Select(std::int64_t total, Parallel& parallel) const override {
    BudgetPlan plan(*stage_, table_, tiers_, SharedBudgets(table_, total));
    if (stage_->adaptive()) {
      const bool together = stage_->ranks_over_layers();
      const std::size_t step = together ? table_.layers() : 1;
      for (std::size_t layer = 0; layer < table_.layers(); layer += step) {
        plan.Compete(layer, layer + step, scores_);
      }
    }
    std::vector<LayerDecision> decisions;
    for (std::size_t layer = 0; layer < table_.layers(); ++layer) {
      KVS_ASSIGN_OR_RETURN(LayerDecision one, plan.Select(layer, scores_, parallel));
      decisions.push_back(std::move(one));
    }
    return decisions;
  }

 private:
  std::shared_ptr<const EvictStage> stage_;
  SetTable table_;
  TierRule tiers_;
  SetScores scores_;
};

class ScoringEvictor final : public Evictor {
 public:
  explicit ScoringEvictor(EvictStage stage)
      : stage_(std::make_shared<const EvictStage>(std::move(stage))) {}

  std::string Canonical() const override {
    std::string out = stage_->scorer->Canonical();
    const bool has_keys = out.back() == ')';
    if (has_keys) out.pop_back();
    return StrCat(out, has_keys ? "," : "(", stage_->selection.Canonical(), ")");
  }

  std::string_view preset() const override { return stage_->preset; }
  ScorerNeeds needs() const override { return stage_->scorer->needs(); }
  std::string Explanation() const override { return stage_->selection.Explanation(); }

  Status CheckRepeatable() const override {
    const Selection& selection = stage_->selection;
    if (selection.budget.kind != BudgetKind::kRows) {
      return Status::Invalid("the budget must be a number of rows");
    }
    if (stage_->scope == Scope::kModel) {
      return Status::Invalid("scope=model needs all layers at once");
    }
    if (selection.split.over_layers()) {
      return Status::Invalid(
          StrCat("split=", selection.split.Canonical(), " needs all layers at once"));
    }
    return Status::Ok();
  }

  std::int64_t block_rows() const override {
    const SelectRule& select = stage_->selection.select;
    return select.kind == SelectKind::kBlock ? select.unit_rows : 1;
  }

  bool budget_is_cap() const override { return stage_->selection.select.caps(); }

  const ByteBudget* byte_budget() const override {
    const Budget& budget = stage_->selection.budget;
    return budget.kind == BudgetKind::kBytes ? &budget.bytes : nullptr;
  }

  Result<Forecast> Foresee(const ForecastCall& call) const override {
    return evict::Foresee(*stage_, call);
  }

  Result<std::unique_ptr<const Ranking>> Rank(std::span<const Observation> layers,
                                              const TierRule& tiers, Parallel& parallel,
                                              ScoreScratch* scratch) const override {
    ScoreScratch own;
    if (scratch == nullptr) scratch = &own;
    KVS_ASSIGN_OR_RETURN(SetTable table, Prepare(layers, scratch));
    auto ranking = std::make_unique<ScoredRanking>(stage_, std::move(table), tiers);
    KVS_RETURN_IF_ERROR(ranking->Score(parallel, scratch));
    return std::unique_ptr<const Ranking>(std::move(ranking));
  }

  using Evictor::Decide;
  Result<std::vector<LayerDecision>> Decide(std::span<const Observation> layers,
                                            const TierRule& tiers, Parallel& parallel,
                                            ScoreScratch* scratch) const override {
    if (byte_budget() != nullptr) {
      return Status::Invalid(StrCat("budget ", byte_budget()->ToString(),
                                    " is in bytes: rank first, then select the rows that fit "
                                    "(option budget)"));
    }
    ScoreScratch own;
    if (scratch == nullptr) scratch = &own;
    KVS_ASSIGN_OR_RETURN(const SetTable table, Prepare(layers, scratch));
    BudgetPlan plan(*stage_, table, tiers, RowBudgets(stage_->selection.budget, table));
    SetScores scores(table);
    std::vector<LayerDecision> decisions;
    const std::size_t step = stage_->ranks_over_layers() ? layers.size() : 1;
    for (std::size_t first = 0; first < layers.size(); first += step) {
      const std::size_t last = first + step;
      for (std::size_t layer = first; layer < last; ++layer) {
        if (!plan.NeedsScores(layer)) continue;
        KVS_RETURN_IF_ERROR(scores.Score(*stage_, table, layer, parallel, scratch));
      }
      if (stage_->adaptive()) plan.Compete(first, last, scores);
      for (std::size_t layer = first; layer < last; ++layer) {
        KVS_ASSIGN_OR_RETURN(LayerDecision one, plan.Select(layer, scores, parallel));
        decisions.push_back(std::move(one));
        if (stage_->scope != Scope::kModel) scores.Drop(table, layer);
      }
    }
    return decisions;
  }

 private:
  Result<SetTable> Prepare(std::span<const Observation> layers, ScoreScratch* scratch) const {
    scratch->peak_bytes = 0;
    scratch->recomputed = false;
    for (const Observation& layer : layers) {
      KVS_RETURN_IF_ERROR(CheckObservation(layer, needs().values));
    }
    return SetTable::Create(stage_->scope, layers);
  }

  std::shared_ptr<const EvictStage> stage_;
};

}  // namespace

void ResetScores(const Observation& observation, Scores* scores) {
  scores->head_begin.assign(1, 0);
  for (const HeadObservation& head : observation.heads) {
    scores->head_begin.push_back(scores->head_begin.back() +
                                 static_cast<std::int64_t>(head.positions.size()));
  }
  const auto total = static_cast<std::size_t>(scores->head_begin.back());
  scores->raw.assign(total, 0.0F);
  scores->smoothed.assign(total, 0.0F);
}

std::shared_ptr<const Evictor> ComposeEvictor(ScorerParts parts, Selection selection,
                                              std::string_view preset) {
  return std::make_shared<ScoringEvictor>(
      EvictStage{std::move(parts.scorer), parts.scope, std::move(selection), preset});
}

}  // namespace kvsieve::evict
