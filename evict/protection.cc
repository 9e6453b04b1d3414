#include "evict/protection.h"

#include <algorithm>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

std::int64_t TotalRows(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.rows();
  return rows;
}

RowRange RowsAt(const ProtectedPositions& protect, const RowPositions& positions) {
  return {positions.RowsBefore(protect.first),
          positions.RowsBefore(std::int64_t{protect.last} + 1)};
}

// `budget` rows of `protected_rows`: the sinks, then the newest.
std::vector<RowRange> Shrink(std::span<const RowRange> protected_rows, std::int64_t sinks,
                             std::int64_t budget) {
  std::vector<RowRange> kept = {{0, std::min(sinks, budget)}};
  std::int64_t left = budget - kept.front().rows();
  for (std::size_t i = protected_rows.size(); i-- > 0 && left > 0;) {
    RowRange range = protected_rows[i];
    range.begin = std::max({range.begin, range.end - left, kept.front().end});
    if (range.rows() <= 0) continue;
    left -= range.rows();
    kept.push_back(range);
  }
  MergeRanges(&kept);
  return kept;
}

std::string OverBudgetNote(const Selection& selection, std::int64_t budget,
                           std::int64_t protected_rows) {
  const OverBudget rule = selection.over_budget;
  // Of a budget in bytes the rows are one try of many.
  const std::string what =
      selection.budget.kind == BudgetKind::kBytes
          ? StrCat("the ", protected_rows, " protected rows of a head do not fit")
          : StrCat("budget ", budget, " is smaller than the ", protected_rows, " protected rows");
  return rule == OverBudget::kProtected
             ? StrCat(what, ": all of them stay (over_budget=protected)")
             : StrCat(what, ": sinks and the newest stay (over_budget=budget)");
}

std::string NotReached(std::int64_t rows, std::int64_t budget) {
  if (rows > budget) return "budget not reached by the heads together";
  return StrCat("budget not reached: ", rows, " of ", budget, " rows");
}

}  // namespace

std::vector<RowRange> ProtectedRows(const Selection& selection, std::int64_t budget, int window,
                                    const RowPositions& positions) {
  const std::int64_t tokens = positions.rows();
  const std::int64_t window_rows = selection.protect_window ? window : 0;
  const std::int64_t newest = std::max(window_rows, selection.recent.RowsOf(budget, tokens));
  std::vector<RowRange> ranges = {{0, std::min(selection.sinks, tokens)},
                                  {std::max<std::int64_t>(0, tokens - newest), tokens}};
  for (const ProtectedPositions& protect : selection.protect) {
    ranges.push_back(RowsAt(protect, positions));
  }
  MergeRanges(&ranges);
  return ranges;
}

RowSet Protect(const Selection& selection, std::int64_t budget, int window,
               const SetTable::Set& rows, bool fits) {
  RowSet set;
  set.rows = rows.positions.rows();
  set.budget = std::min(budget, set.rows);
  set.share = budget;
  const bool unlimited = fits && !selection.select.caps();
  if (rows.tokens <= selection.min_tokens || unlimited) {
    set.whole = true;
    set.budget = set.rows;
    set.protected_count = set.rows;
    if (set.rows > 0) set.protected_rows = {{0, set.rows}};
    set.note = unlimited ? NotReached(set.rows, budget)
                         : StrCat("min_tokens not passed: ", rows.tokens, " of ",
                                  selection.min_tokens, " rows");
    return set;
  }
  set.protected_rows = ProtectedRows(selection, budget, window, rows.positions);
  set.protected_count = TotalRows(set.protected_rows);
  if (window > set.rows) {
    set.note = StrCat("window clipped: ", set.rows, " of ", window, " rows");
  }
  return set;
}

std::int64_t SetPlan::rows() const { return TotalRows(kept) + best; }

SetPlan PlanSet(const Selection& selection, const RowSet& set, std::int64_t budget) {
  SetPlan plan{set.protected_rows, 0, set.note};
  if (set.protected_count <= budget) {
    plan.best = budget - set.protected_count;
    return plan;
  }
  plan.note = OverBudgetNote(selection, budget, set.protected_count);
  if (selection.over_budget == OverBudget::kBudget) {
    plan.kept = Shrink(set.protected_rows, selection.sinks, budget);
  }
  return plan;
}

}  // namespace kvsieve::evict
