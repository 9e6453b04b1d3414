#include "evict/selection.h"

#include <algorithm>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

void ReadRows(ArgReader& args, std::string_view key, std::int64_t* rows) {
  int value = static_cast<int>(*rows);
  args.Int(key, &value, 0, kMaxRows);
  *rows = value;
}

// "4..9"
Result<ProtectedPositions> ParseRange(std::string_view text) {
  const auto wrong = [&] {
    return Status::Invalid(StrCat("option protect: '", text, "' is not a range such as 4..9"));
  };
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return wrong();
  const Result<std::int64_t> first = ParseInt(text.substr(0, dots));
  const Result<std::int64_t> last = ParseInt(text.substr(dots + 2));
  if (!first.ok() || !last.ok()) return wrong();
  if (*first < 0 || *last < *first || *last > kMaxRows) {
    return Status::Invalid(
        StrCat("option protect: ", text, " must satisfy 0 <= a <= b <= ", kMaxRows));
  }
  return ProtectedPositions{static_cast<TokenPos>(*first), static_cast<TokenPos>(*last)};
}

// "[4..9]" or "[4..9,20..30]"
void ReadProtect(ArgReader& args, std::vector<ProtectedPositions>* protect) {
  const SpecArg* arg = args.Raw("protect");
  if (arg == nullptr) return;
  std::string_view text = arg->value;
  if (text.size() < 2 || text.front() != '[' || text.back() != ']' || !arg->call.empty()) {
    return args.Fail(arg->value_column,
                     StrCat("option protect: '", text, "' is not a range such as [4..9]"));
  }
  text = text.substr(1, text.size() - 2);
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const Result<ProtectedPositions> range = ParseRange(text.substr(0, comma));
    if (!range.ok()) return args.Fail(arg->value_column, range.message());
    protect->push_back(*range);
    more = comma != std::string_view::npos;
    if (more) text = text.substr(comma + 1);
  }
}

constexpr std::string_view kOverBudgetNames[] = {"protected", "budget"};
constexpr std::string_view kTiesNames[] = {"low", "high"};

const SpecArg* Find(const SpecCall& call, std::string_view key) {
  const auto found = std::find_if(call.args.begin(), call.args.end(),
                                  [&](const SpecArg& arg) { return arg.key == key; });
  return found == call.args.end() ? nullptr : &*found;
}

}  // namespace

std::string Selection::Canonical() const {
  std::string out = StrCat("budget=", budget.ToString());
  if (budget.rounding != Rounding::kUp) out += StrCat(",rounding=", RoundingName(budget.rounding));
  out += StrCat(",split=", split.Canonical(), ",sinks=", sinks, ",recent=", recent.ToString());
  for (std::size_t i = 0; i < protect.size(); ++i) {
    out += StrCat(i == 0 ? ",protect=[" : ",", protect[i].first, "..", protect[i].last);
  }
  if (!protect.empty()) out += ']';
  out += StrCat(",protect_window=", protect_window ? "true" : "false", ",min_tokens=", min_tokens,
                ",over_budget=", kOverBudgetNames[static_cast<int>(over_budget)],
                ",ties=", kTiesNames[static_cast<int>(ties)], ",select=", select.Canonical());
  return out;
}

std::string Selection::Explanation() const {
  std::string out = budget.Explanation();
  for (const std::string& rule : {split.Explanation(), select.Explanation()}) {
    if (!rule.empty()) out += StrCat("; ", rule);
  }
  return out;
}

void ReadSelection(ArgReader& args, Selection* selection) {
  ReadBudget(args, &selection->budget);
  ReadRounding(args, &selection->budget);
  ReadSplit(args, &selection->split);
  ReadRows(args, "sinks", &selection->sinks);
  ReadRecent(args, &selection->recent);
  ReadProtect(args, &selection->protect);
  args.Bool("protect_window", &selection->protect_window);
  ReadRows(args, "min_tokens", &selection->min_tokens);
  int index = static_cast<int>(selection->over_budget);
  args.Choice("over_budget", kOverBudgetNames, &index);
  selection->over_budget = static_cast<OverBudget>(index);
  index = static_cast<int>(selection->ties);
  args.Choice("ties", kTiesNames, &index);
  selection->ties = static_cast<Ties>(index);
  ReadSelect(args, &selection->select);
}

Status CheckBudget(const SpecCall& call, const Selection& selection, int window) {
  const SpecArg* budget = Find(call, "budget");
  if (budget == nullptr) {
    return SpecError(call.column,
                     StrCat(call.name, " needs a budget, for example ", call.name, "(budget=25%)"));
  }
  if (selection.budget.kind != BudgetKind::kRows || Find(call, "over_budget") != nullptr) {
    return Status::Ok();
  }
  const std::int64_t rows = selection.budget.rows;
  // A share of rows still unknown counts as none; such heads are dealt with as they come.
  const std::int64_t recent = selection.recent.RowsOf(rows, 0);
  const std::int64_t window_rows = selection.protect_window ? window : 0;
  if (rows >= selection.sinks + std::max(window_rows, recent)) return Status::Ok();
  std::string newest;
  if (std::max(window_rows, recent) > 0) {
    newest =
        window_rows >= recent ? StrCat(" + window ", window_rows) : StrCat(" + recent ", recent);
  }
  const std::string share = rows <= 100 ? StrCat(", or write budget=", rows, "%") : "";
  return SpecError(budget->value_column,
                   StrCat("budget ", rows, " is smaller than sinks ", selection.sinks, newest,
                          " (option budget); raise it", share));
}

}  // namespace kvsieve::evict
