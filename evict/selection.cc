#include "evict/selection.h"

#include <algorithm>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr std::int64_t kMaxRows = INT32_MAX;

void DeferUnsupported(Status* deferred, int column, std::string_view what) {
  if (!deferred->ok()) return;
  *deferred = Status::Unsupported(StrCat("column ", column, ": ", what));
}

bool IsByteSize(std::string_view text) { return text.ends_with('B'); }
bool IsFactor(std::string_view text) { return text.ends_with('x'); }

// Budgets of the grammar that need the codecs: 64MiB, 8x, auto.
void ReadOtherBudget(ArgReader& args, const SpecArg& arg, Status* deferred) {
  const std::string_view text = arg.value;
  Status wrong;
  if (IsByteSize(text)) {
    wrong = ParseByteSize(text).TakeStatus();
  } else if (IsFactor(text)) {
    const auto factor = ParseReal(text.substr(0, text.size() - 1));
    if (!factor.ok() || *factor <= 0) {
      wrong = Status::Invalid(StrCat("'", text, "' is not a positive factor such as 8x"));
    }
  } else if (text != "auto") {
    wrong = Status::Invalid(StrCat("'", text, "' is neither rows (512) nor a percentage (25%)"));
  }
  if (!wrong.ok()) return args.Fail(arg.value_column, StrCat("option budget: ", wrong.message()));
  DeferUnsupported(deferred, arg.value_column,
                   StrCat("budget=", text, " is not available yet; give rows or a percentage"));
}

void ReadBudget(ArgReader& args, Budget* budget, Status* deferred) {
  const SpecArg* arg = args.Raw("budget");
  if (arg == nullptr) return;  // CheckBudget says so, after unknown keys
  const std::string_view text = arg->value;
  const auto fail = [&](std::string_view what) {
    args.Fail(arg->value_column, StrCat("option budget: ", what));
  };
  if (!arg->call.empty()) return fail(StrCat("'", text, "' takes no arguments"));
  if (text.ends_with('%')) {
    const Result<Ratio> share = ParsePercent(text);
    if (!share.ok()) return fail(share.message());
    budget->share = *share;
    return;
  }
  const Result<std::int64_t> rows = ParseInt(text);
  if (!rows.ok()) return ReadOtherBudget(args, *arg, deferred);
  if (*rows < 1 || *rows > kMaxRows) {
    return fail(StrCat(*rows, " rows is outside [1, ", kMaxRows, "]"));
  }
  budget->rows = *rows;
}

void ReadRows(ArgReader& args, std::string_view key, std::int64_t* rows) {
  int value = static_cast<int>(*rows);
  args.Int(key, &value, 0, kMaxRows);
  *rows = value;
}

void ReadRecent(ArgReader& args, Recent* recent) {
  const SpecArg* arg = args.Raw("recent");
  if (arg == nullptr) return;
  if (arg->value == "budget/8" && arg->call.empty()) {
    recent->eighth_of_budget = true;
    return;
  }
  const Result<std::int64_t> rows = ParseInt(arg->value);
  if (!rows.ok() || !arg->call.empty() || *rows < 0 || *rows > kMaxRows) {
    return args.Fail(arg->value_column, StrCat("option recent: '", arg->value,
                                               "' is neither a number of rows nor budget/8"));
  }
  recent->rows = *rows;
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

// split=pyramid(beta=20), adaptive(floor=0.2): known, checked, not built.
void ReadSplit(ArgReader& args, Status* deferred) {
  const SpecArg* arg = args.Raw("split");
  if (arg == nullptr) return;
  constexpr std::string_view kNames[] = {"uniform", "pyramid", "adaptive"};
  if (std::find(std::begin(kNames), std::end(kNames), arg->value) == std::end(kNames)) {
    return args.Fail(arg->value_column, StrCat("option split: unknown value '", arg->value, "'",
                                               Suggest(arg->value, kNames)));
  }
  if (!arg->call.empty()) {
    ArgReader inner(arg->call.front());
    double value = 0;
    if (arg->value == "pyramid") inner.Real("beta", &value, 1, 1e6);
    if (arg->value == "adaptive") inner.Real("floor", &value, 0, 1);
    Status wrong = inner.Finish();
    if (!wrong.ok() && deferred->ok()) *deferred = std::move(wrong);
  }
  if (arg->value == "uniform") return;
  DeferUnsupported(deferred, arg->value_column,
                   StrCat("split=", arg->value, " is not available yet; leave split at uniform"));
}

// select=chunk:n, block:n, threshold:x, top_p:x: known, checked, not built.
void ReadSelect(ArgReader& args, Status* deferred) {
  const SpecArg* arg = args.Raw("select");
  if (arg == nullptr || (arg->value == "top_k" && arg->call.empty())) return;
  const std::string_view text = arg->value;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view number = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const bool by_rows = name == "chunk" || name == "block";
  const bool by_score = name == "threshold" || name == "top_p";
  if (!arg->call.empty() || (!by_rows && !by_score)) {
    constexpr std::string_view kNames[] = {"top_k", "chunk:n", "block:n", "threshold:x", "top_p:x"};
    return args.Fail(arg->value_column,
                     StrCat("option select: unknown value '", text, "'", Suggest(text, kNames)));
  }
  const Result<std::int64_t> rows = ParseInt(number);
  if (by_rows ? !rows.ok() || *rows < 1 : !ParseReal(number).ok()) {
    return args.Fail(arg->value_column, StrCat("option select: '", text, "' needs a number: ", name,
                                               by_rows ? ":16" : ":0.9"));
  }
  DeferUnsupported(deferred, arg->value_column,
                   StrCat("select=", text, " is not available yet; leave select at top_k"));
}

constexpr std::string_view kOverBudgetNames[] = {"protected", "budget"};
constexpr std::string_view kTiesNames[] = {"low", "high"};

const SpecArg* Find(const SpecCall& call, std::string_view key) {
  const auto found = std::find_if(call.args.begin(), call.args.end(),
                                  [&](const SpecArg& arg) { return arg.key == key; });
  return found == call.args.end() ? nullptr : &*found;
}

}  // namespace

std::string Budget::ToString() const {
  if (!share) return StrCat(rows);
  // numerator / denominator in percent with at most 9 decimals, which is what ParsePercent takes.
  constexpr std::int64_t kBillion = 1'000'000'000;
  const auto scaled = static_cast<std::int64_t>(static_cast<__int128>(share->numerator) * 100 *
                                                kBillion / share->denominator);
  std::string text = StrCat(scaled / kBillion);
  if (scaled % kBillion != 0) {
    const std::string decimals = StrCat(kBillion + scaled % kBillion).substr(1);  // leading zeros
    text += StrCat('.', decimals.substr(0, decimals.find_last_not_of('0') + 1));
  }
  return text + '%';
}

std::int64_t Recent::RowsOf(std::int64_t budget) const {
  return eighth_of_budget ? std::max<std::int64_t>(1, budget / 8) : rows;
}

std::string Selection::Canonical() const {
  std::string out =
      StrCat("budget=", budget.ToString(), ",split=uniform,sinks=", sinks, ",recent=");
  out += recent.eighth_of_budget ? "budget/8" : StrCat(recent.rows);
  for (std::size_t i = 0; i < protect.size(); ++i) {
    out += StrCat(i == 0 ? ",protect=[" : ",", protect[i].first, "..", protect[i].last);
  }
  if (!protect.empty()) out += ']';
  out += StrCat(",protect_window=", protect_window ? "true" : "false", ",min_tokens=", min_tokens,
                ",over_budget=", kOverBudgetNames[static_cast<int>(over_budget)],
                ",ties=", kTiesNames[static_cast<int>(ties)], ",select=top_k");
  return out;
}

void ReadSelection(ArgReader& args, Selection* selection, Status* deferred) {
  ReadBudget(args, &selection->budget, deferred);
  ReadSplit(args, deferred);
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
  ReadSelect(args, deferred);
}

Status CheckBudget(const SpecCall& call, const Selection& selection, int window) {
  const SpecArg* budget = Find(call, "budget");
  if (budget == nullptr) {
    return SpecError(call.column,
                     StrCat(call.name, " needs a budget, for example ", call.name, "(budget=25%)"));
  }
  if (selection.budget.share || Find(call, "over_budget") != nullptr) return Status::Ok();
  const std::int64_t rows = selection.budget.rows;
  const std::int64_t recent = selection.recent.RowsOf(rows);
  const std::int64_t window_rows = selection.protect_window ? window : 0;
  if (rows >= selection.sinks + std::max(window_rows, recent)) return Status::Ok();
  std::string newest;
  if (std::max(window_rows, recent) > 0) {
    newest =
        window_rows >= recent ? StrCat(" + window ", window_rows) : StrCat(" + recent ", recent);
  }
  return SpecError(budget->value_column, StrCat("budget ", rows, " is smaller than sinks ",
                                                selection.sinks, newest, " (option budget)"));
}

}  // namespace kvsieve::evict
