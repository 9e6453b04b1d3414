#include "evict/tiers.h"

#include <algorithm>
#include <string_view>

#include "evict/budget.h"
#include "kvsieve/evict.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {

Result<ColdRows> ColdRows::Parse(std::string_view text) {
  ColdRows cold;
  if (text.ends_with('%')) {
    KVS_ASSIGN_OR_RETURN(cold.share, ParsePercent(text));
    return cold;
  }
  const Result<std::int64_t> rows = ParseInt(text);
  if (!rows.ok()) {
    return Status::Invalid(StrCat("'", text, "' is neither rows (512) nor a percentage (35%)"));
  }
  if (*rows < 1 || *rows > evict::kMaxRows) {
    return Status::Invalid(StrCat(*rows, " rows is outside [1, ", evict::kMaxRows, "]"));
  }
  cold.rows = *rows;
  return cold;
}

std::int64_t ColdRows::RowsOf(std::int64_t tokens) const {
  return share ? share->CeilOf(tokens) : rows;
}

std::string ColdRows::ToString() const { return share ? evict::PercentText(*share) : StrCat(rows); }

namespace evict {
namespace {

// Keeps the elements at `chosen` (ascending) only.
template <class T>
void KeepOnly(std::span<const RowIndex> chosen, std::vector<T>* items) {
  for (std::size_t i = 0; i < chosen.size(); ++i) (*items)[i] = (*items)[chosen[i]];
  items->resize(chosen.size());
}

// The rows outside never_cold, to `scratch`.
void TakeCandidates(const HeadScores& scores, std::span<const RowIndex> rows,
                    std::span<const RowRange> never_cold, TierScratch* scratch) {
  scratch->places.clear();
  scratch->smoothed.clear();
  scratch->raw.clear();
  auto range = never_cold.begin();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    while (range != never_cold.end() && range->end <= rows[i]) ++range;
    if (range != never_cold.end() && range->begin <= rows[i]) continue;
    scratch->places.push_back(i);
    scratch->smoothed.push_back(scores.smoothed[rows[i]]);
    scratch->raw.push_back(scores.raw[rows[i]]);
  }
}

}  // namespace

void AssignTiers(const HeadScores& scores, std::span<const RowIndex> rows,
                 std::span<const RowRange> never_cold, std::span<const std::int64_t> cold_rows,
                 Ties ties, TierScratch* scratch, std::vector<std::uint8_t>* tiers) {
  tiers->assign(rows.size(), 0);
  TakeCandidates(scores, rows, never_cold, scratch);
  for (std::size_t tier = cold_rows.size(); tier > 0; --tier) {
    const auto left = static_cast<std::int64_t>(scratch->places.size());
    const std::int64_t warmer = left - std::min(left, cold_rows[tier - 1]);
    scratch->warmer.clear();
    SelectRows({scratch->smoothed, scratch->raw}, {}, warmer, ties, &scratch->top_k,
               &scratch->warmer);
    // All of them; the warmer ones are placed again, by the next round or after the last one.
    for (const std::size_t place : scratch->places) {
      (*tiers)[place] = static_cast<std::uint8_t>(tier);
    }
    KeepOnly<std::size_t>(scratch->warmer, &scratch->places);
    KeepOnly<float>(scratch->warmer, &scratch->smoothed);
    KeepOnly<float>(scratch->warmer, &scratch->raw);
  }
  for (const std::size_t place : scratch->places) (*tiers)[place] = 0;
}

}  // namespace evict
}  // namespace kvsieve
