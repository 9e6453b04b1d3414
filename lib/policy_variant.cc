#include "lib/policy_variant.h"

#include <algorithm>
#include <utility>

#include "evict/budget.h"
#include "evict/window_scores.h"
#include "kvsieve/evict.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "lib/recipes.h"
#include "lib/spec_call_parser.h"
#include "lib/spec_names.h"

namespace kvsieve::policy {
namespace {

// Below it SharpInference's automatic budget leaves a cache alone.
constexpr std::int64_t kSmallCacheBytes = std::int64_t{256} << 20;

// Columns of arguments that stand for settings: past those of any text. The key's, then the
// value's.
constexpr int kFirstColumn = 1 << 20;
constexpr int KeyColumn(Key key) { return kFirstColumn + 2 * key; }
constexpr int ValueColumn(Key key) { return KeyColumn(key) + 1; }

// "column 14: text" -> 14 and "text"; column 0 when there is none.
struct SpecMessage {
  explicit SpecMessage(std::string_view message) : text(message) {
    constexpr std::string_view kColumn = "column ";
    const std::size_t colon = message.find(": ");
    if (!message.starts_with(kColumn) || colon == std::string_view::npos) return;
    const auto number = ParseInt(message.substr(kColumn.size(), colon - kColumn.size()));
    if (!number.ok()) return;
    column = static_cast<int>(*number);
    text = message.substr(colon + 2);
  }

  int column = 0;
  std::string_view text;
};

std::string_view WithoutPrefix(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

class VariantBuilder {
 public:
  VariantBuilder(const Settings& settings, const ServerLimits& limits)
      : settings_(settings), limits_(limits) {}

  Result<Variant> Build();

 private:
  Status ReadCounts();
  Status ReadRows(Key key, std::int64_t least, std::int64_t most, std::int64_t* rows) const;
  Status ReadEviction();
  Status ReadBudget();
  Status ResolveAuto();
  Status BuildPipeline();
  Status BuildRecipe();

  Status CheckNothingElse() const;
  // Given with the eviction or later, so meant for it.
  bool GivenForIt(Key key) const {
    return settings_.given(key) && settings_[key].source >= settings_[kEviction].source;
  }
  // As it is called where the eviction is set.
  std::string_view NameOf(Key key) const {
    const PolicyOption& option = PolicyOptions()[key];
    return settings_[kEviction].source == Source::kRequest ? option.field : option.flag;
  }
  void AddArgument(Key key, std::string value);
  Status Invalid(Key key, std::string_view what) const {
    return Status::Invalid(StrCat(settings_.Label(key), ": ", what));
  }
  // An error of the evict stage, in terms of the setting that caused it.
  Status Explain(const Error& error) const;

  const Settings& settings_;
  const ServerLimits& limits_;
  SpecCall call_;
  evict::Budget budget_;
  bool off_ = false;
  Variant variant_;
};

Result<Variant> VariantBuilder::Build() {
  KVS_RETURN_IF_ERROR(ReadCounts());
  KVS_RETURN_IF_ERROR(ReadEviction());
  if (off_) {
    KVS_RETURN_IF_ERROR(CheckNothingElse());
    variant_.note = StrCat("eviction is off (", settings_.Label(kEviction), ")");
    return std::move(variant_);
  }
  KVS_RETURN_IF_ERROR(ReadBudget());
  if (!off_) KVS_RETURN_IF_ERROR(BuildPipeline());
  return std::move(variant_);
}

Status VariantBuilder::ReadCounts() {
  std::int64_t unused = 0;
  KVS_RETURN_IF_ERROR(ReadRows(kWindow, 1, evict::kMaxWindow, &unused));
  KVS_RETURN_IF_ERROR(ReadRows(kSinks, 0, evict::kMaxRows, &unused));
  variant_.min_tokens_label = settings_.Label(kMinTokens);
  return ReadRows(kMinTokens, 0, evict::kMaxRows, &variant_.min_tokens);
}

Status VariantBuilder::ReadRows(Key key, std::int64_t least, std::int64_t most,
                                std::int64_t* rows) const {
  const std::string& text = settings_[key].text;
  if (text.empty()) return Status::Ok();
  const Result<std::int64_t> number = ParseInt(text);
  if (!number.ok() || *number < least || *number > most) {
    return Invalid(key, StrCat("not a whole number in [", least, ", ", most, "]"));
  }
  *rows = *number;
  return Status::Ok();
}

Status VariantBuilder::ReadEviction() {
  Result<SpecCall> call = ParseCall(settings_[kEviction].text);
  if (!call.ok()) return Invalid(kEviction, call.message());
  call_ = *std::move(call);
  off_ = call_.name == "none";
  if (off_ && !call_.args.empty()) return Invalid(kEviction, "none takes no arguments");
  if (call_.name == kRecipe && !call_.args.empty()) {
    return Invalid(kEviction, StrCat("the factor has a setting of its own: ", NameOf(kBudget)));
  }
  if (FindStage(PlannerInfos(), call_.name) != nullptr) {
    return Status::Unsupported(StrCat(settings_.Label(kEviction), ": its stores have no setting; ",
                                      "take best, or give the server the pipeline itself"));
  }
  for (const Key key : {kBudget, kWindow, kSinks, kMinTokens}) {
    const auto same = [&](const SpecArg& arg) { return arg.key == ArgumentOf(key); };
    if (std::none_of(call_.args.begin(), call_.args.end(), same)) continue;
    return Invalid(kEviction, StrCat(ArgumentOf(key), " has a setting of its own: ", NameOf(key)));
  }
  return Status::Ok();
}

// A setting that says how to evict, beside one as late that says not to, is a mistake.
Status VariantBuilder::CheckNothingElse() const {
  for (const Key key : {kBudget, kWindow, kSinks, kMinTokens}) {
    if (!GivenForIt(key)) continue;
    const bool by_request = settings_[key].source == Source::kRequest;
    const PolicyOption& eviction = PolicyOptions()[kEviction];
    return Invalid(key, StrCat("means nothing while eviction is off (", settings_.Label(kEviction),
                               "); choose one with ", by_request ? eviction.field : eviction.flag,
                               ", for example snapkv"));
  }
  return Status::Ok();
}

void VariantBuilder::AddArgument(Key key, std::string value) {
  call_.args.push_back(
      {std::string(ArgumentOf(key)), std::move(value), KeyColumn(key), ValueColumn(key), {}});
}

Status VariantBuilder::ReadBudget() {
  const std::string& text = settings_[kBudget].text;
  const SpecCall alone{"", 1, {{"budget", text, 1, 1, {}}}};
  ArgReader args(alone);
  evict::ReadBudget(args, &budget_);
  const Status read = args.Finish();
  if (!read.ok()) {
    return Invalid(kBudget, WithoutPrefix(SpecMessage(read.message()).text, "option budget: "));
  }
  if (budget_.kind == evict::BudgetKind::kAuto) KVS_RETURN_IF_ERROR(ResolveAuto());
  variant_.budget_label = settings_.Label(kBudget);
  if (settings_[kBudget].text == "auto") {
    variant_.budget_label += StrCat(" (", budget_.rows, " rows)");
  }
  return Status::Ok();
}

// SharpInference's rule: rows by the context, and nothing goes from a cache known to be small.
// Neither where the rows hold all of the context.
Status VariantBuilder::ResolveAuto() {
  const std::int64_t context = limits_.max_tokens;
  if (context == 0) {
    return Invalid(kBudget,
                   "the server does not say how long its context is "
                   "(ServerLimits::max_tokens); give rows, 25%, 64MiB or 8x");
  }
  budget_.kind = evict::BudgetKind::kRows;
  budget_.rows = evict::AutoRowsOfContext(context);
  const std::int64_t bytes = limits_.full_cache_bytes;
  std::string why;
  if (bytes > 0 && bytes < kSmallCacheBytes) {
    why = StrCat("the full cache of ", bytes, " bytes is smaller than 256MiB");
  } else if (budget_.rows == context) {
    why = StrCat("it holds all of the context of ", context, " tokens");
  }
  if (why.empty()) return Status::Ok();
  off_ = true;
  variant_.note = StrCat("eviction is off (", settings_.Label(kBudget), ": ", why, ")");
  return Status::Ok();
}

// `best` by the budget's factor. Stores, window and sinks are its own.
Status VariantBuilder::BuildRecipe() {
  for (const Key key : {kStore, kWindow, kSinks}) {
    if (!GivenForIt(key)) continue;
    return Invalid(key, StrCat("means nothing with ", settings_.Label(kEviction)));
  }
  const std::string& factor = settings_[kBudget].text;
  Result<Pipeline> pipeline = Pipeline::Parse(StrCat(kRecipe, "(", factor, ")"));
  if (!pipeline.ok()) return Invalid(kBudget, SpecMessage(pipeline.message()).text);
  variant_.pipeline = std::make_shared<const Pipeline>(*std::move(pipeline));
  variant_.note = StrCat(settings_.Label(kEviction), ", ", variant_.budget_label);
  return Status::Ok();
}

Status VariantBuilder::BuildPipeline() {
  if (call_.name == kRecipe) return BuildRecipe();
  AddArgument(kBudget, budget_.ToString());
  for (const Key key : {kWindow, kSinks, kMinTokens}) {
    if (settings_.given(key)) AddArgument(key, settings_[key].text);
  }
  const auto evictor = MakeEvictor(call_);
  if (!evictor.ok()) return Explain(evictor.error());

  std::string spec = call_.ToString();
  if (settings_.given(kStore)) spec += StrCat(" | ", settings_[kStore].text);
  Result<Pipeline> pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) {
    return Status(pipeline.error().code, StrCat(settings_.Label(kEviction), " with ",
                                                settings_.Label(kStore), ": ", pipeline.message()));
  }
  variant_.pipeline = std::make_shared<const Pipeline>(*std::move(pipeline));
  variant_.note = StrCat(settings_.Label(kEviction), ", ", variant_.budget_label);
  // threshold and top_p drop rows of any prompt.
  const bool holds = budget_.kind == evict::BudgetKind::kRows && !(*evictor)->budget_is_cap();
  variant_.budget_rows = holds ? budget_.rows : 0;
  return Status::Ok();
}

Status VariantBuilder::Explain(const Error& error) const {
  const SpecMessage message(error.message);
  const auto fail = [&](Key key, std::string_view what) {
    return Status(error.code, StrCat(settings_.Label(key), ": ", what));
  };
  if (message.column < kFirstColumn) {
    const std::string_view off = message.column == call_.column ? "; none turns eviction off" : "";
    return fail(kEviction, StrCat(error.message, off));
  }
  const Key key = static_cast<Key>((message.column - kFirstColumn) / 2);
  if (message.column == KeyColumn(key)) {
    return fail(key, StrCat("means nothing with ", settings_.Label(kEviction)));
  }
  if (key != kBudget) return fail(key, message.text);
  const std::size_t end = message.text.find(" (option budget)");
  if (end == std::string_view::npos) return fail(key, message.text);
  // What it must hold is too much for it.
  const std::string_view what = message.text.substr(0, end);
  std::string remedy = "; raise it";
  std::string_view before = ", or lower ";
  for (const auto& [part, lower] : {std::pair("sinks ", kSinks), std::pair("window ", kWindow)}) {
    if (what.find(part) == std::string_view::npos) continue;
    remedy += StrCat(before, settings_.Name(lower));
    before = " or ";
  }
  return fail(key, StrCat(what, remedy));
}

}  // namespace

Result<Variant> BuildVariant(const Settings& settings, const ServerLimits& limits) {
  return VariantBuilder(settings, limits).Build();
}

// `none | store`.
Result<Pipeline> PassThrough(const Settings& settings) {
  constexpr std::string_view kNone = "none | ";
  if (!settings.given(kStore)) return Pipeline::Parse("none");
  Result<Pipeline> pipeline = Pipeline::Parse(StrCat(kNone, settings[kStore].text));
  if (pipeline.ok()) return pipeline;
  const SpecMessage message(pipeline.message());
  const int column = message.column - static_cast<int>(kNone.size());
  const std::string where = column > 0 ? StrCat("column ", column, ": ") : "";
  // Even where an evict stage is set: neither is the store's.
  std::string_view what = message.text;
  if (what.starts_with("schedule=")) {
    what = "a policy evicts once, when the prompt is finished: leave schedule= out";
  } else if (what.starts_with("tiers=")) {
    what = "a policy chooses no tiers: take the eviction best, which has its own";
  }
  return Status(pipeline.error().code, StrCat(settings.Label(kStore), ": ", where, what));
}

}  // namespace kvsieve::policy
