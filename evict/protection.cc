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

// Ascending and disjoint: rows that several ranges name count once.
std::vector<RowRange> Union(std::vector<RowRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> merged;
  for (const RowRange& range : ranges) {
    if (range.rows() <= 0) continue;
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

RowRange RowsAt(const ProtectedPositions& protect, std::span<const TokenPos> positions) {
  const auto first = std::lower_bound(positions.begin(), positions.end(), protect.first);
  const auto last = std::upper_bound(first, positions.end(), protect.last);
  return {first - positions.begin(), last - positions.begin()};
}

std::vector<RowRange> ProtectedRows(const Selection& selection, std::int64_t budget, int window,
                                    std::span<const TokenPos> positions) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const std::int64_t window_rows = selection.protect_window ? window : 0;
  const std::int64_t newest = std::max(window_rows, selection.recent.RowsOf(budget));
  std::vector<RowRange> ranges = {{0, std::min(selection.sinks, tokens)},
                                  {std::max<std::int64_t>(0, tokens - newest), tokens}};
  for (const ProtectedPositions& protect : selection.protect) {
    ranges.push_back(RowsAt(protect, positions));
  }
  return Union(std::move(ranges));
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
  return Union(std::move(kept));
}

std::string OverBudgetNote(std::int64_t budget, std::int64_t protected_rows, OverBudget rule) {
  const std::string what =
      StrCat("budget ", budget, " is smaller than the ", protected_rows, " protected rows");
  return rule == OverBudget::kProtected
             ? StrCat(what, ": all of them stay (over_budget=protected)")
             : StrCat(what, ": sinks and the newest stay (over_budget=budget)");
}

}  // namespace

HeadPlan PlanHead(const Selection& selection, int window, std::span<const TokenPos> positions) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const std::int64_t budget = selection.budget.RowsOf(tokens);
  HeadPlan plan;
  if (tokens <= selection.min_tokens || budget >= tokens) {
    if (tokens > 0) plan.kept = {{0, tokens}};
    plan.note = budget >= tokens ? StrCat("budget not reached: ", tokens, " of ", budget, " rows")
                                 : StrCat("min_tokens not passed: ", tokens, " of ",
                                          selection.min_tokens, " rows");
    return plan;
  }
  plan.kept = ProtectedRows(selection, budget, window, positions);
  const std::int64_t protected_rows = TotalRows(plan.kept);
  if (protected_rows > budget) {
    plan.note = OverBudgetNote(budget, protected_rows, selection.over_budget);
    if (selection.over_budget == OverBudget::kBudget) {
      plan.kept = Shrink(plan.kept, selection.sinks, budget);
    }
    return plan;
  }
  if (window > tokens) plan.note = StrCat("window clipped: ", tokens, " of ", window, " rows");
  plan.best = budget - protected_rows;
  return plan;
}

}  // namespace kvsieve::evict
