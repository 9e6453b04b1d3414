#include "evict/budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve {

std::int64_t ByteBudget::LimitOf(std::int64_t full_bytes) const {
  if (factor <= 0) return bytes;
  return static_cast<std::int64_t>(std::floor(static_cast<double>(full_bytes) / factor));
}

std::string ByteBudget::ToString() const {
  if (factor > 0) {
    char digits[32];
    const auto [end, ec] = std::to_chars(digits, digits + sizeof digits, factor);
    return std::string(digits, ec == std::errc() ? end : digits) + 'x';
  }
  struct Unit {
    std::string_view name;
    int shift;
  };
  for (const Unit& unit : {Unit{"GiB", 30}, Unit{"MiB", 20}, Unit{"KiB", 10}}) {
    if (bytes % (std::int64_t{1} << unit.shift) == 0) {
      return StrCat(bytes >> unit.shift, unit.name);
    }
  }
  return StrCat(bytes, "B");
}

namespace evict {
namespace {

// "64MiB", "8x"
Result<ByteBudget> ParseBytes(std::string_view text) {
  ByteBudget budget;
  if (text.ends_with('x')) {
    const Result<double> factor = ParseReal(text.substr(0, text.size() - 1));
    if (!factor.ok() || *factor <= 0) {
      return Status::Invalid(StrCat("'", text, "' is not a positive factor such as 8x"));
    }
    budget.factor = *factor;
    return budget;
  }
  if (!text.ends_with('B')) {
    return Status::Invalid(
        StrCat("'", text, "' is neither rows (512) nor a percentage (25%), a size (64MiB), a ",
               "factor (8x) or auto"));
  }
  KVS_ASSIGN_OR_RETURN(budget.bytes, ParseByteSize(text));
  return budget;
}

constexpr std::string_view kRoundingNames[] = {"up", "kvpress"};

std::int64_t KvpressRows(const Ratio& share, std::int64_t tokens) {
  // What a user writes as compression_ratio: the double nearest to 1 - share.
  const double ratio = static_cast<double>(share.denominator - share.numerator) /
                       static_cast<double>(share.denominator);
  const double rows = static_cast<double>(tokens) * (1.0 - ratio);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(rows));
}

}  // namespace

std::string_view RoundingName(Rounding rounding) {
  return kRoundingNames[static_cast<int>(rounding)];
}

std::string PercentText(const Ratio& share) {
  // numerator / denominator in percent with at most 9 decimals, which is what ParsePercent takes.
  constexpr std::int64_t kBillion = 1'000'000'000;
  const auto scaled = static_cast<std::int64_t>(static_cast<__int128>(share.numerator) * 100 *
                                                kBillion / share.denominator);
  std::string text = StrCat(scaled / kBillion);
  if (scaled % kBillion != 0) {
    const std::string decimals = StrCat(kBillion + scaled % kBillion).substr(1);  // leading zeros
    text += StrCat('.', decimals.substr(0, decimals.find_last_not_of('0') + 1));
  }
  return text + '%';
}

std::int64_t AutoRowsOfContext(std::int64_t max_tokens) {
  return std::clamp(max_tokens / 4, std::min(kAutoLeast, max_tokens), kAutoMost);
}

std::int64_t Budget::RowsOf(std::int64_t tokens) const {
  KVS_DCHECK(kind != BudgetKind::kBytes);
  switch (kind) {
    case BudgetKind::kShare:
      return rounding == Rounding::kUp ? share.CeilOf(tokens) : KvpressRows(share, tokens);
    case BudgetKind::kAuto:
      return std::clamp((tokens + 3) / 4, kAutoLeast, kAutoMost);
    case BudgetKind::kRows:
    case BudgetKind::kBytes:
      break;
  }
  return rows;
}

std::string Budget::ToString() const {
  switch (kind) {
    case BudgetKind::kShare:
      return PercentText(share);
    case BudgetKind::kAuto:
      return "auto";
    case BudgetKind::kBytes:
      return bytes.ToString();
    case BudgetKind::kRows:
      break;
  }
  return StrCat(rows);
}

std::string Budget::Explanation() const {
  switch (kind) {
    case BudgetKind::kShare:
      return StrCat(ToString(), " of each head's rows, ",
                    rounding == Rounding::kUp ? "rounded up" : "rounded down in floating point");
    case BudgetKind::kAuto:
      return StrCat("auto: a quarter of each head's rows, at least ", kAutoLeast, " and at most ",
                    kAutoMost);
    case BudgetKind::kBytes:
      return StrCat(
          ToString(), ": as many rows as keep kept_bytes, right after the prompt, at or ", "below ",
          bytes.factor > 0 ? StrCat("full_bytes / ", ToString().substr(0, ToString().size() - 1))
                           : StrCat(bytes.bytes, " bytes"),
          "; positions, statistics, tail, exact sinks and sliding-window layers count");
    case BudgetKind::kRows:
      break;
  }
  return StrCat(rows, " rows of each head");
}

std::int64_t Recent::RowsOf(std::int64_t budget, std::int64_t tokens) const {
  switch (kind) {
    case Kind::kShare:
      return share.CeilOf(tokens);
    case Kind::kEighthOfBudget:
      return std::max<std::int64_t>(1, budget / 8);
    case Kind::kRows:
      break;
  }
  return rows;
}

std::string Recent::ToString() const {
  if (kind == Kind::kEighthOfBudget) return "budget/8";
  return kind == Kind::kShare ? PercentText(share) : StrCat(rows);
}

void ReadBudget(ArgReader& args, Budget* budget) {
  const SpecArg* arg = args.Raw("budget");
  if (arg == nullptr) return;  // CheckBudget says so, after unknown keys
  const std::string_view text = arg->value;
  const auto fail = [&](std::string_view what) {
    args.Fail(arg->value_column, StrCat("option budget: ", what));
  };
  if (!arg->call.empty()) return fail(StrCat("'", text, "' takes no arguments"));
  if (text == "auto") {
    budget->kind = BudgetKind::kAuto;
    return;
  }
  if (text.ends_with('%')) {
    const Result<Ratio> share = ParsePercent(text);
    if (!share.ok()) return fail(share.message());
    budget->kind = BudgetKind::kShare;
    budget->share = *share;
    return;
  }
  const Result<std::int64_t> rows = ParseInt(text);
  const bool is_number = text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!rows.ok() && is_number) {
    return fail(StrCat(text, " rows is too large, the limit is ", kMaxRows));
  }
  if (!rows.ok()) {
    const Result<ByteBudget> bytes = ParseBytes(text);
    if (!bytes.ok()) return fail(bytes.message());
    budget->kind = BudgetKind::kBytes;
    budget->bytes = *bytes;
    return;
  }
  if (*rows < 1 || *rows > kMaxRows) {
    return fail(StrCat(*rows, " rows is outside [1, ", kMaxRows, "]"));
  }
  budget->kind = BudgetKind::kRows;
  budget->rows = *rows;
}

void ReadRounding(ArgReader& args, Budget* budget) {
  const SpecArg* arg = args.Raw("rounding");
  if (arg != nullptr && budget->kind != BudgetKind::kShare) {
    return args.Fail(arg->key_column, "option rounding means something for a percentage only");
  }
  int index = static_cast<int>(budget->rounding);
  args.Choice("rounding", kRoundingNames, &index);
  budget->rounding = static_cast<Rounding>(index);
}

void ReadRecent(ArgReader& args, Recent* recent) {
  const SpecArg* arg = args.Raw("recent");
  if (arg == nullptr) return;
  const auto fail = [&](std::string_view what) {
    args.Fail(arg->value_column, StrCat("option recent: ", what));
  };
  if (arg->call.empty() && arg->value == "budget/8") {
    recent->kind = Recent::Kind::kEighthOfBudget;
    return;
  }
  if (arg->call.empty() && arg->value.ends_with('%')) {
    const Result<Ratio> share = ParsePercent(arg->value);
    if (!share.ok()) return fail(share.message());
    recent->kind = Recent::Kind::kShare;
    recent->share = *share;
    return;
  }
  const Result<std::int64_t> rows = ParseInt(arg->value);
  if (!rows.ok() || !arg->call.empty() || *rows < 0 || *rows > kMaxRows) {
    return fail(StrCat("'", arg->value, "' is neither a number of rows nor a percentage (10%) nor ",
                       "budget/8"));
  }
  recent->kind = Recent::Kind::kRows;
  recent->rows = *rows;
}

}  // namespace evict
}  // namespace kvsieve
