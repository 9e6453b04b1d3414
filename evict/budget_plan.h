// One decision in steps:
//
//   protect -> split (uniform, pyramid) -> [score] -> split (adaptive) -> select
//
// An evictor runs them layer by layer where it can, so that the scores of one layer are held at a
// time; a Ranking keeps all scores and repeats the other steps for one budget after the other.
#ifndef KVSIEVE_EVICT_BUDGET_PLAN_H_
#define KVSIEVE_EVICT_BUDGET_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "evict/budget.h"
#include "evict/protection.h"
#include "evict/row_set.h"
#include "evict/set_table.h"

namespace kvsieve::evict {

// Rows of each set before the split: what a budget in rows gives it, or its part of `total` rows of
// all heads: as many for each head, and one more for the first ones. Heads that share a set share
// what they have together.
std::vector<std::int64_t> RowBudgets(const Budget& budget, const SetTable& table);
std::vector<std::int64_t> SharedBudgets(const SetTable& table, std::int64_t total);

// What stays of a set, ascending, and the tier of each row (empty: all in tier 0).
struct KeptRows {
  std::vector<RowIndex> rows;
  std::vector<std::uint8_t> tiers;
};

class BudgetPlan {
 public:
  // budgets: RowBudgets or SharedBudgets. Stage, table and tiers outlive the plan.
  BudgetPlan(const EvictStage& stage, const SetTable& table, const TierRule& tiers,
             std::span<const std::int64_t> budgets);

  const RowSet& set(std::size_t i) const { return sets_[i]; }
  // What the split gives a set; of an adaptive one, after Compete.
  std::int64_t rows(std::size_t i) const { return rows_[i]; }

  // Whether the rows of a layer must be scored before Compete and Select: some row of it, or of a
  // layer that it is ranked against, is chosen by score, or rows go to tiers.
  bool NeedsScores(std::size_t layer) const;
  // With an adaptive split: divides the budgets of layers [first, last) by score.
  void Compete(std::size_t first, std::size_t last, const SetScores& scores);
  // What stays in one layer.
  Result<LayerDecision> Select(std::size_t layer, const SetScores& scores,
                               Parallel& parallel) const;

 private:
  bool ChoosesByScore(std::size_t layer) const;
  std::vector<KeptRows> SelectSets(std::size_t layer, std::span<const SetPlan> plans,
                                   const SetScores& scores, Parallel& parallel) const;
  std::vector<std::int64_t> ColdRowsOf(std::size_t set) const;
  std::vector<RowRange> NeverCold(std::size_t set, std::span<const RowIndex> kept) const;
  Result<LayerDecision> KeepAll(std::size_t layer) const;

  const EvictStage& stage_;
  const SetTable& table_;
  const TierRule& tiers_;
  std::vector<RowSet> sets_;
  std::vector<std::vector<RowRange>>
      never_cold_;                  // of each set: protected rows; without tiers none
  std::vector<std::int64_t> rows_;  // of each set, after the split
};

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_BUDGET_PLAN_H_
