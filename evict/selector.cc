#include "evict/selector.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr std::string_view kNames[] = {"top_k", "chunk", "block", "threshold", "top_p"};

// Rows in units and in all free rows; the last unit may be short.
void CutUnits(const SelectRule& rule, std::span<const RowRange> kept, RowIndex rows,
              std::vector<Unit>* units) {
  units->clear();
  ForEachGap(kept, rows, [&](RowRange gap) {
    for (RowIndex begin = gap.begin; begin < gap.end;) {
      const bool grid = rule.kind == SelectKind::kBlock;
      const RowIndex unit_begin = grid ? begin / rule.unit_rows * rule.unit_rows : begin;
      const RowIndex end = std::min(gap.end, unit_begin + rule.unit_rows);
      if (!units->empty() && units->back().rows.begin >= unit_begin) {
        units->back().rows.end = end;  // a block with protected rows inside
        units->back().free_rows += end - begin;
      } else {
        units->push_back({{begin, end}, end - begin, 0});
      }
      begin = end;
    }
  });
}

void RankUnits(const HeadScores& scores, std::span<const RowRange> kept, std::vector<Unit>* units) {
  auto unit = units->begin();
  double smoothed = 0;
  double raw = 0;
  ForEachGap(kept, static_cast<RowIndex>(scores.smoothed.size()), [&](RowRange gap) {
    for (RowIndex row = gap.begin; row < gap.end; ++row) {
      smoothed += scores.smoothed[row];
      raw += scores.raw[row];
      if (row + 1 < unit->rows.end) continue;
      const auto count = static_cast<double>(unit->free_rows);
      unit->order_key =
          OrderKey(static_cast<float>(smoothed / count), static_cast<float>(raw / count));
      ++unit;
      smoothed = raw = 0;
    }
  });
}

// Whole units while the next one fits, then single rows.
void SelectUnits(const SelectRule& rule, const HeadScores& scores, std::span<const RowRange> kept,
                 std::int64_t best, Ties ties, SelectScratch* scratch,
                 std::vector<RowIndex>* rows) {
  CutUnits(rule, kept, static_cast<RowIndex>(scores.smoothed.size()), &scratch->units);
  RankUnits(scores, kept, &scratch->units);
  std::sort(scratch->units.begin(), scratch->units.end(), [&](const Unit& a, const Unit& b) {
    if (a.order_key != b.order_key) return a.order_key > b.order_key;
    return (a.rows.begin < b.rows.begin) == (ties == Ties::kLowPosition) &&
           a.rows.begin != b.rows.begin;
  });
  scratch->kept.assign(kept.begin(), kept.end());
  for (const Unit& unit : scratch->units) {
    if (unit.free_rows > best) break;
    scratch->kept.push_back(unit.rows);
    best -= unit.free_rows;
  }
  MergeRanges(&scratch->kept);
  SelectRows(scores, scratch->kept, best, ties, &scratch->top_k, rows);
}

std::int64_t RowsAtLeast(double threshold, const HeadScores& scores,
                         std::span<const RowRange> kept) {
  std::int64_t count = 0;
  ForEachGap(kept, static_cast<RowIndex>(scores.smoothed.size()), [&](RowRange gap) {
    for (RowIndex row = gap.begin; row < gap.end; ++row) {
      count += scores.smoothed[row] >= threshold ? 1 : 0;
    }
  });
  return count;
}

// Scores that are not positive hold nothing.
double MassOf(float score) { return score > 0 ? score : 0; }

std::int64_t RowsHolding(double share, const HeadScores& scores, std::span<const RowRange> kept,
                         std::vector<RankedRow>* ranked) {
  ranked->clear();
  double total = 0;
  for (const float score : scores.raw) total += MassOf(score);
  double missing = share * total;
  for (const RowRange& range : kept) {
    for (RowIndex row = range.begin; row < range.end; ++row) missing -= MassOf(scores.raw[row]);
  }
  ForEachGap(kept, static_cast<RowIndex>(scores.raw.size()), [&](RowRange gap) {
    for (RowIndex row = gap.begin; row < gap.end; ++row) {
      ranked->push_back({OrderKey(scores.smoothed[row], scores.raw[row]), scores.raw[row]});
    }
  });
  std::sort(ranked->begin(), ranked->end(),
            [](const RankedRow& a, const RankedRow& b) { return a.order_key > b.order_key; });
  std::int64_t count = 0;
  for (const RankedRow& row : *ranked) {
    if (missing <= 0) break;
    missing -= MassOf(row.raw);
    ++count;
  }
  return count;
}

}  // namespace

std::string SelectRule::Canonical() const {
  const std::string_view name = kNames[static_cast<int>(kind)];
  if (kind == SelectKind::kTopK) return std::string(name);
  if (!caps()) return StrCat(name, ":", unit_rows);
  char digits[32];
  const auto [end, ec] = std::to_chars(digits, digits + sizeof digits, limit);
  return StrCat(name, ":", std::string_view(digits, ec == std::errc() ? end - digits : 0));
}

std::string SelectRule::Explanation() const {
  switch (kind) {
    case SelectKind::kTopK:
      break;
    case SelectKind::kChunk:
      return StrCat("runs of ", unit_rows, " rows by mean score while they fit, then single rows");
    case SelectKind::kBlock:
      return StrCat("blocks of ", unit_rows,
                    " rows, as a paged cache cuts them, by mean score while they fit, then single "
                    "rows");
    case SelectKind::kThreshold:
      return "rows whose smoothed score reaches the threshold; the budget is the cap";
    case SelectKind::kTopP:
      return "the fewest best rows that hold this share of all scores; the budget is the cap";
  }
  return {};
}

void ReadSelect(ArgReader& args, SelectRule* rule) {
  const SpecArg* arg = args.Raw("select");
  if (arg == nullptr) return;
  const std::string_view text = arg->value;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view number = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto fail = [&](const auto&... what) {
    args.Fail(arg->value_column, StrCat("option select: ", what...));
  };
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  const bool takes_number = name != "top_k";
  if (!arg->call.empty() || found == std::end(kNames) || (!takes_number && name != text)) {
    constexpr std::string_view kForms[] = {"top_k", "chunk:n", "block:n", "threshold:x", "top_p:x"};
    return fail("unknown value '", text, "'", Suggest(text, kForms));
  }
  rule->kind = static_cast<SelectKind>(found - std::begin(kNames));
  if (!takes_number) return;
  if (!rule->caps()) {
    const Result<std::int64_t> rows = ParseInt(number);
    if (!rows.ok()) return fail("'", text, "' needs a number: ", name, ":16");
    if (*rows < 1 || *rows > INT32_MAX) return fail(*rows, " rows is outside [1, 2147483647]");
    rule->unit_rows = *rows;
    return;
  }
  const Result<double> limit = ParseReal(number);
  if (!limit.ok()) return fail("'", text, "' needs a number: ", name, ":0.9");
  if (rule->kind == SelectKind::kTopP && !(*limit > 0 && *limit <= 1)) {
    return fail("top_p ", number, " is outside (0, 1]");
  }
  rule->limit = *limit;
}

void SelectScratch::Reserve(const SelectRule& rule, std::size_t rows) {
  top_k.keys.reserve(rows);
  top_k.survivors.reserve(rows + 1);
  top_k.contested.reserve(rows);
  const bool in_units = rule.kind == SelectKind::kChunk || rule.kind == SelectKind::kBlock;
  if (in_units) units.reserve(rows);
  if (in_units) kept.reserve(2 * rows + 2);
  if (rule.kind == SelectKind::kTopP) ranked.reserve(rows);
}

void SelectSet(const SelectRule& rule, const HeadScores& scores, std::span<const RowRange> kept,
               std::int64_t best, Ties ties, SelectScratch* scratch, std::vector<RowIndex>* rows) {
  if (best > 0) {
    switch (rule.kind) {
      case SelectKind::kTopK:
        break;
      case SelectKind::kChunk:
      case SelectKind::kBlock:
        return SelectUnits(rule, scores, kept, best, ties, scratch, rows);
      case SelectKind::kThreshold:
        best = std::min(best, RowsAtLeast(rule.limit, scores, kept));
        break;
      case SelectKind::kTopP:
        best = std::min(best, RowsHolding(rule.limit, scores, kept, &scratch->ranked));
        break;
    }
  }
  SelectRows(scores, kept, best, ties, &scratch->top_k, rows);
}

}  // namespace kvsieve::evict
