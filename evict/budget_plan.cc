#include "evict/budget_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "evict/selector.h"
#include "evict/split.h"
#include "evict/tiers.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

// One note for the layer; names the head when the heads do not agree.
std::string LayerNote(std::span<const SetPlan> plans) {
  const auto first = std::find_if(plans.begin(), plans.end(),
                                  [](const SetPlan& plan) { return !plan.note.empty(); });
  if (first == plans.end()) return {};
  const bool all = std::all_of(plans.begin(), plans.end(),
                               [&](const SetPlan& plan) { return plan.note == first->note; });
  return all ? first->note : StrCat("head ", first - plans.begin(), ": ", first->note);
}

// kept: per head, or one for all heads.
Result<KeepSet> ToKeepSet(const Observation& observation, std::span<const KeptRows> kept) {
  std::vector<std::int64_t> head_begin = {0};
  std::vector<TokenPos> positions;
  std::vector<std::uint8_t> tiers;
  for (std::size_t head = 0; head < observation.heads.size(); ++head) {
    const KeptRows& of_head = kept[kept.size() == 1 ? 0 : head];
    for (const RowIndex row : of_head.rows) {
      positions.push_back(observation.heads[head].positions[row]);
    }
    tiers.insert(tiers.end(), of_head.tiers.begin(), of_head.tiers.end());
    head_begin.push_back(static_cast<std::int64_t>(positions.size()));
  }
  return KeepSet::Create(std::move(head_begin), std::move(positions), std::move(tiers));
}

// Whether all rows of a set stay: they fit its budget or, with an adaptive split, the rows of all
// sets that share their budgets fit these. (Sets that evicted before may differ in rows.)
std::vector<bool> FitsBudget(const EvictStage& stage, const SetTable& table,
                             std::span<const std::int64_t> budgets) {
  const auto sets = table.sets();
  const auto share = [&](std::size_t a, std::size_t b) {
    return stage.adaptive() &&
           (stage.ranks_over_layers() || sets[a].ranked_layer == sets[b].ranked_layer);
  };
  std::vector<bool> fits;
  while (fits.size() < budgets.size()) {
    std::int64_t left = 0;
    std::size_t end = fits.size();
    do {
      left += budgets[end] - sets[end].positions.rows();
      ++end;
    } while (end < budgets.size() && share(fits.size(), end));
    fits.resize(end, left >= 0);
  }
  return fits;
}

std::vector<std::uint64_t> ProtectedKeys(const RowSet& set, const HeadScores& scores) {
  std::vector<std::uint64_t> keys;
  for (const RowRange& range : set.protected_rows) {
    for (RowIndex row = range.begin; row < range.end; ++row) {
      keys.push_back(OrderKey(scores.smoothed[row], scores.raw[row]));
    }
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  return keys;
}

}  // namespace

std::vector<std::int64_t> RowBudgets(const Budget& budget, const SetTable& table) {
  std::vector<std::int64_t> budgets;
  for (const SetTable::Set& set : table.sets()) {
    budgets.push_back(budget.RowsOf(set.positions.rows()));
  }
  return budgets;
}

std::vector<std::int64_t> SharedBudgets(const SetTable& table, std::int64_t total) {
  const std::int64_t count = table.heads();
  std::vector<std::int64_t> budgets;
  std::int64_t first = 0;
  for (const SetTable::Set& set : table.sets()) {
    const std::int64_t more = std::clamp<std::int64_t>(total % count - first, 0, set.heads);
    budgets.push_back(total / count + more / set.heads);
    first += set.heads;
  }
  return budgets;
}

BudgetPlan::BudgetPlan(const EvictStage& stage, const SetTable& table, const TierRule& tiers,
                       std::span<const std::int64_t> budgets)
    : stage_(stage), table_(table), tiers_(tiers) {
  const int window = stage.scorer->needs().window();
  const std::vector<bool> fits = FitsBudget(stage, table, budgets);
  std::vector<int> layers;
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    sets_.push_back(Protect(stage.selection, budgets[i], window, table.sets()[i], fits[i]));
    rows_.push_back(sets_.back().budget);
    if (!tiers.cold.empty()) {
      never_cold_.push_back(
          ProtectedRows(stage.selection, budgets[i], window, table.sets()[i].positions));
    }
    layers.push_back(table.sets()[i].ranked_layer);
  }
  if (stage.selection.split.kind == SplitKind::kPyramid) {
    rows_ = PyramidRows(stage.selection.split, sets_, layers, table.ranked_layers());
  }
}

bool BudgetPlan::NeedsScores(std::size_t layer) const {
  return ChoosesByScore(layer) || (!tiers_.cold.empty() && table_.sets_of(layer) > 0);
}

bool BudgetPlan::ChoosesByScore(std::size_t layer) const {
  if (table_.slides(layer)) return false;
  const bool any_layer = stage_.ranks_over_layers();
  const std::size_t begin = any_layer ? 0 : table_.first_set(layer);
  const std::size_t end = any_layer ? sets_.size() : begin + table_.sets_of(layer);
  for (std::size_t i = begin; i < end; ++i) {
    if (sets_[i].splits() && rows_[i] > sets_[i].protected_count) return true;
  }
  return false;
}

void BudgetPlan::Compete(std::size_t first, std::size_t last, const SetScores& scores) {
  std::vector<RowSet> sets;
  std::vector<std::size_t> places;
  std::vector<std::vector<std::uint64_t>> protected_keys;
  for (std::size_t layer = first; layer < last; ++layer) {
    // A layer without scores has nothing to gain or to give.
    if (!ChoosesByScore(layer)) continue;
    const std::size_t begin = table_.first_set(layer);
    for (std::size_t i = begin; i < begin + table_.sets_of(layer); ++i) {
      sets.push_back(sets_[i]);
      places.push_back(i);
      protected_keys.push_back(ProtectedKeys(sets_[i], scores.Of(i)));
    }
  }
  std::vector<SetKeys> keys;
  for (std::size_t n = 0; n < places.size(); ++n) {
    keys.push_back({scores.SortedKeys(places[n]), protected_keys[n]});
  }
  const std::vector<std::int64_t> rows = AdaptiveRows(stage_.selection.split, sets, keys);
  for (std::size_t n = 0; n < places.size(); ++n) rows_[places[n]] = rows[n];
}

// Tasks find all their memory reserved: they must not fail.
std::vector<KeptRows> BudgetPlan::SelectSets(std::size_t layer, std::span<const SetPlan> plans,
                                             const SetScores& scores, Parallel& parallel) const {
  const std::size_t begin = table_.first_set(layer);
  const Selection& selection = stage_.selection;
  std::vector<KeptRows> kept(plans.size());
  std::size_t most = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    kept[i].rows.reserve(static_cast<std::size_t>(plans[i].rows()));
    most = std::max(most, scores.Of(begin + i).smoothed.size());
  }
  std::vector<SelectScratch> scratch(static_cast<std::size_t>(parallel.workers()));
  for (SelectScratch& worker : scratch) worker.Reserve(selection.select, most);
  ParallelFor(parallel, static_cast<std::int64_t>(plans.size()), [&](std::int64_t i, int worker) {
    SelectSet(selection.select, scores.Of(begin + static_cast<std::size_t>(i)), plans[i].kept,
              plans[i].best, selection.ties, &scratch[worker], &kept[i].rows);
  });
  if (tiers_.cold.empty()) return kept;
  TierScratch tier_scratch;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::size_t set = begin + i;
    AssignTiers(scores.Of(set), kept[i].rows, NeverCold(set, kept[i].rows), ColdRowsOf(set),
                selection.ties, &tier_scratch, &kept[i].tiers);
  }
  return kept;
}

std::vector<std::int64_t> BudgetPlan::ColdRowsOf(std::size_t set) const {
  std::vector<std::int64_t> rows;
  for (const ColdRows& cold : tiers_.cold) rows.push_back(cold.RowsOf(table_.sets()[set].tokens));
  return rows;
}

// Protected rows, and those stored exact at the beginning and the end of what stays.
std::vector<RowRange> BudgetPlan::NeverCold(std::size_t set, std::span<const RowIndex> kept) const {
  std::vector<RowRange> rows = never_cold_[set];
  const RowPositions& positions = table_.sets()[set].positions;
  rows.push_back({0, positions.RowsBefore(table_.sets()[set].exact_before)});
  const std::int64_t tail = std::min(tiers_.exact_tail, static_cast<std::int64_t>(kept.size()));
  if (tail > 0) rows.push_back({kept[kept.size() - tail], positions.rows()});
  MergeRanges(&rows);
  return rows;
}

Result<LayerDecision> BudgetPlan::KeepAll(std::size_t layer) const {
  const Observation& observation = table_.layer(layer);
  std::vector<KeptRows> kept;
  for (const HeadObservation& head : observation.heads) {
    std::vector<RowIndex>& rows = kept.emplace_back().rows;
    rows.resize(head.positions.size());
    std::iota(rows.begin(), rows.end(), RowIndex{0});
  }
  LayerDecision decision;
  KVS_ASSIGN_OR_RETURN(decision.keep, ToKeepSet(observation, kept));
  decision.note = "sliding-window layers are not scored";
  return decision;
}

Result<LayerDecision> BudgetPlan::Select(std::size_t layer, const SetScores& scores,
                                         Parallel& parallel) const {
  if (table_.slides(layer)) return KeepAll(layer);
  const std::size_t begin = table_.first_set(layer);
  std::vector<SetPlan> plans;
  LayerDecision decision;
  decision.scored = !tiers_.cold.empty();
  for (std::size_t i = begin; i < begin + table_.sets_of(layer); ++i) {
    plans.push_back(PlanSet(stage_.selection, sets_[i], rows_[i]));
    decision.scored |= plans.back().best > 0;
  }
  decision.note = LayerNote(plans);
  KVS_ASSIGN_OR_RETURN(decision.keep,
                       ToKeepSet(table_.layer(layer), SelectSets(layer, plans, scores, parallel)));
  return decision;
}

}  // namespace kvsieve::evict
