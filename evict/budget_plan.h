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

#include "evict/protection.h"
#include "evict/row_set.h"
#include "evict/set_table.h"

namespace kvsieve::evict {

class BudgetPlan {
 public:
  // budgets: rows of each set of the table, before the split. Stage and table outlive the plan.
  BudgetPlan(const EvictStage& stage, const SetTable& table, std::span<const std::int64_t> budgets);

  // Whether the rows of a layer must be scored before Compete and Select: some row of it, or of a
  // layer that it is ranked against, is chosen by score.
  bool NeedsScores(std::size_t layer) const;
  // With an adaptive split: divides the budgets of layers [first, last) by score.
  void Compete(std::size_t first, std::size_t last, const SetScores& scores);
  // What stays in one layer.
  Result<LayerDecision> Select(std::size_t layer, const SetScores& scores,
                               Parallel& parallel) const;

 private:
  std::vector<std::vector<RowIndex>> SelectSets(std::size_t layer, std::span<const SetPlan> plans,
                                                const SetScores& scores, Parallel& parallel) const;
  Result<LayerDecision> KeepAll(std::size_t layer) const;

  const EvictStage& stage_;
  const SetTable& table_;
  std::vector<RowSet> sets_;
  std::vector<std::int64_t> rows_;  // of each set, after the split
};

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_BUDGET_PLAN_H_
