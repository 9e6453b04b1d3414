#include "kvsieve/eviction_policy.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "evict/budget.h"
#include "evict/window_scores.h"
#include "kvsieve/evict.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "lib/policy_settings.h"
#include "lib/spec_call_parser.h"

namespace kvsieve {
namespace {

using policy::Key;
using policy::Settings;
using policy::Source;

// Below it SharpInference's automatic budget leaves a cache alone.
constexpr std::int64_t kSmallCacheBytes = std::int64_t{256} << 20;

// Columns of arguments that stand for settings: past those of any text. The key's, then the
// value's.
constexpr int kFirstColumn = 1 << 20;
constexpr int KeyColumn(Key key) { return kFirstColumn + 2 * key; }
constexpr int ValueColumn(Key key) { return KeyColumn(key) + 1; }

// What some settings come to.
struct Variant {
  std::shared_ptr<const Pipeline> pipeline;  // null: nothing goes
  std::string note;                          // what is evicted, or why nothing is
  std::int64_t min_tokens = 0;
  std::string min_tokens_label;
  std::int64_t budget_rows = 0;  // shorter prompts lose nothing; 0: not known before the prompt is
  std::string budget_label;
};

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

  Status CheckNothingElse() const;
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
    variant_.note = StrCat("eviction is off (", settings_.Label(policy::kEviction), ")");
    return std::move(variant_);
  }
  KVS_RETURN_IF_ERROR(ReadBudget());
  if (!off_) KVS_RETURN_IF_ERROR(BuildPipeline());
  return std::move(variant_);
}

Status VariantBuilder::ReadCounts() {
  std::int64_t unused = 0;
  KVS_RETURN_IF_ERROR(ReadRows(policy::kWindow, 1, evict::kMaxWindow, &unused));
  KVS_RETURN_IF_ERROR(ReadRows(policy::kSinks, 0, evict::kMaxRows, &unused));
  variant_.min_tokens_label = settings_.Label(policy::kMinTokens);
  return ReadRows(policy::kMinTokens, 0, evict::kMaxRows, &variant_.min_tokens);
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
  Result<SpecCall> call = ParseCall(settings_[policy::kEviction].text);
  if (!call.ok()) return Invalid(policy::kEviction, call.message());
  call_ = *std::move(call);
  off_ = call_.name == "none";
  if (off_ && !call_.args.empty()) return Invalid(policy::kEviction, "none takes no arguments");
  for (const Key key : {policy::kBudget, policy::kWindow, policy::kSinks, policy::kMinTokens}) {
    const auto same = [&](const SpecArg& arg) { return arg.key == policy::ArgumentOf(key); };
    if (std::none_of(call_.args.begin(), call_.args.end(), same)) continue;
    const PolicyOption& option = PolicyOptions()[key];
    const bool is_flag = settings_[policy::kEviction].source == Source::kFlag;
    return Invalid(policy::kEviction, StrCat(policy::ArgumentOf(key), " has a setting of its own: ",
                                             is_flag ? option.flag : option.field));
  }
  return Status::Ok();
}

// A setting that says how to evict, beside one as late that says not to, is a mistake.
Status VariantBuilder::CheckNothingElse() const {
  for (const Key key : {policy::kBudget, policy::kWindow, policy::kSinks, policy::kMinTokens}) {
    if (!settings_.given(key) || settings_[key].source < settings_[policy::kEviction].source) {
      continue;
    }
    const bool by_request = settings_[key].source == Source::kRequest;
    const PolicyOption& eviction = PolicyOptions()[policy::kEviction];
    return Invalid(
        key, StrCat("means nothing while eviction is off (", settings_.Label(policy::kEviction),
                    "); choose one with ", by_request ? eviction.field : eviction.flag,
                    ", for example snapkv"));
  }
  return Status::Ok();
}

void VariantBuilder::AddArgument(Key key, std::string value) {
  call_.args.push_back({std::string(policy::ArgumentOf(key)),
                        std::move(value),
                        KeyColumn(key),
                        ValueColumn(key),
                        {}});
}

Status VariantBuilder::ReadBudget() {
  const std::string& text = settings_[policy::kBudget].text;
  const SpecCall alone{"", 1, {{"budget", text, 1, 1, {}}}};
  ArgReader args(alone);
  evict::ReadBudget(args, &budget_);
  const Status read = args.Finish();
  if (!read.ok()) {
    return Invalid(policy::kBudget,
                   WithoutPrefix(SpecMessage(read.message()).text, "option budget: "));
  }
  if (budget_.kind == evict::BudgetKind::kAuto) KVS_RETURN_IF_ERROR(ResolveAuto());
  variant_.budget_label = settings_.Label(policy::kBudget);
  if (settings_[policy::kBudget].text == "auto") {
    variant_.budget_label += StrCat(" (", budget_.rows, " rows)");
  }
  return Status::Ok();
}

// SharpInference's rule: rows by the context, and nothing goes from a cache known to be small.
// Neither where the rows hold all of the context.
Status VariantBuilder::ResolveAuto() {
  const std::int64_t context = limits_.max_tokens;
  if (context == 0) {
    return Invalid(policy::kBudget,
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
  variant_.note = StrCat("eviction is off (", settings_.Label(policy::kBudget), ": ", why, ")");
  return Status::Ok();
}

Status VariantBuilder::BuildPipeline() {
  AddArgument(policy::kBudget, budget_.ToString());
  for (const Key key : {policy::kWindow, policy::kSinks, policy::kMinTokens}) {
    if (settings_.given(key)) AddArgument(key, settings_[key].text);
  }
  const auto evictor = MakeEvictor(call_);
  if (!evictor.ok()) return Explain(evictor.error());

  std::string spec = call_.ToString();
  if (settings_.given(policy::kStore)) spec += StrCat(" | ", settings_[policy::kStore].text);
  Result<Pipeline> pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) {
    return Status(pipeline.error().code,
                  StrCat(settings_.Label(policy::kEviction), " with ",
                         settings_.Label(policy::kStore), ": ", pipeline.message()));
  }
  variant_.pipeline = std::make_shared<const Pipeline>(*std::move(pipeline));
  variant_.note = StrCat(settings_.Label(policy::kEviction), ", ", variant_.budget_label);
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
    return fail(policy::kEviction, StrCat(error.message, off));
  }
  const Key key = static_cast<Key>((message.column - kFirstColumn) / 2);
  if (message.column == KeyColumn(key)) {
    return fail(key, StrCat("means nothing with ", settings_.Label(policy::kEviction)));
  }
  if (key != policy::kBudget) return fail(key, message.text);
  const std::size_t end = message.text.find(" (option budget)");
  if (end == std::string_view::npos) return fail(key, message.text);
  // What it must hold is too much for it.
  const std::string_view what = message.text.substr(0, end);
  std::string remedy = "; raise it";
  std::string_view before = ", or lower ";
  for (const auto& [part, lower] :
       {std::pair("sinks ", policy::kSinks), std::pair("window ", policy::kWindow)}) {
    if (what.find(part) == std::string_view::npos) continue;
    remedy += StrCat(before, settings_.Name(lower));
    before = " or ";
  }
  return fail(key, StrCat(what, remedy));
}

// `none | store`.
Result<Pipeline> PassThrough(const Settings& settings) {
  constexpr std::string_view kNone = "none | ";
  if (!settings.given(policy::kStore)) return Pipeline::Parse("none");
  Result<Pipeline> pipeline = Pipeline::Parse(StrCat(kNone, settings[policy::kStore].text));
  if (pipeline.ok()) return pipeline;
  const SpecMessage message(pipeline.message());
  const int column = message.column - static_cast<int>(kNone.size());
  const std::string where = column > 0 ? StrCat("column ", column, ": ") : "";
  // Even where an evict stage is set: the schedule is not the store's.
  const std::string_view what =
      message.text.starts_with("schedule=")
          ? "a policy evicts once, when the prompt is finished: leave schedule= out"
          : message.text;
  return Status(pipeline.error().code, StrCat(settings.Label(policy::kStore), ": ", where, what));
}

}  // namespace

class EvictionPolicy::State {
 public:
  using VariantPtr = std::shared_ptr<const Variant>;

  State(Settings flags, const ServerLimits& limits) : flags_(std::move(flags)), limits_(limits) {}

  Status Init() {
    KVS_ASSIGN_OR_RETURN(Pipeline pass_through, PassThrough(flags_));
    pass_through_ = std::make_shared<const Pipeline>(std::move(pass_through));
    KVS_ASSIGN_OR_RETURN(Variant variant, VariantBuilder(flags_, limits_).Build());
    of_flags_ = std::make_shared<const Variant>(std::move(variant));
    return Status::Ok();
  }

  Result<VariantPtr> VariantFor(std::span<const PolicySetting> overrides) const {
    if (overrides.empty()) return of_flags_;
    KVS_ASSIGN_OR_RETURN(const Settings settings, Override(overrides));
    const std::string identity = settings.Identity();
    if (VariantPtr known = Find(identity)) return known;
    KVS_ASSIGN_OR_RETURN(Variant variant, VariantBuilder(settings, limits_).Build());
    return Remember(identity, std::move(variant));
  }

  RequestPlan Plan(const Variant& variant, const PromptInfo& prompt) const {
    using Outcome = RequestPlan::Outcome;
    const auto pass = [&](Outcome why, std::string note) {
      return RequestPlan{why, pass_through_, std::move(note)};
    };
    if (variant.pipeline == nullptr) return pass(Outcome::kOff, variant.note);
    if (prompt.cached_tokens > 0) {
      return pass(Outcome::kCachedPrefix,
                  StrCat("nothing is evicted: ", prompt.cached_tokens, " of ", prompt.tokens,
                         " prompt tokens come from a cached prefix"));
    }
    if (prompt.tokens <= variant.min_tokens) {
      return pass(Outcome::kShortPrompt,
                  StrCat("nothing is evicted: the prompt has ", prompt.tokens, " tokens (",
                         variant.min_tokens_label, ")"));
    }
    if (prompt.tokens <= variant.budget_rows) {
      return pass(Outcome::kBudgetHoldsPrompt,
                  StrCat("nothing is evicted: the budget holds all ", prompt.tokens,
                         " prompt tokens (", variant.budget_label, ")"));
    }
    return {Outcome::kEvict, variant.pipeline,
            StrCat(variant.note, ", of ", prompt.tokens, " prompt tokens")};
  }

 private:
  Result<Settings> Override(std::span<const PolicySetting> overrides) const {
    Settings settings = flags_;
    KVS_RETURN_IF_ERROR(settings.Override(overrides, Source::kRequest));
    if (policy::SameEviction(settings[policy::kEviction].text, flags_[policy::kEviction].text)) {
      return settings;
    }
    for (const Key key : {policy::kWindow, policy::kSinks}) {
      if (settings[key].source == Source::kFlag) settings.Reset(key);
    }
    return settings;
  }

  VariantPtr Find(const std::string& identity) const {
    const std::lock_guard lock(mutex_);
    const auto found = of_requests_.find(identity);
    return found == of_requests_.end() ? nullptr : found->second;
  }

  // Settings may differ in words and mean the same pipeline: that is shared too.
  VariantPtr Remember(const std::string& identity, Variant variant) const {
    const std::lock_guard lock(mutex_);
    const auto share = [&](const Variant& known) {
      if (variant.pipeline == nullptr || known.pipeline == nullptr) return;
      if (known.pipeline->Canonical() != variant.pipeline->Canonical()) return;
      variant.pipeline = known.pipeline;
    };
    share(*of_flags_);
    for (const auto& [text, known] : of_requests_) share(*known);
    if (of_requests_.size() == kMaxPolicyVariants) of_requests_.clear();
    const auto made = std::make_shared<const Variant>(std::move(variant));
    return of_requests_.emplace(identity, made).first->second;
  }

  const Settings flags_;
  const ServerLimits limits_;
  std::shared_ptr<const Pipeline> pass_through_;
  VariantPtr of_flags_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, VariantPtr> of_requests_;
};

Result<EvictionPolicy> EvictionPolicy::FromFlags(std::span<const PolicySetting> flags,
                                                 const ServerLimits& limits) {
  return NoThrow([&]() -> Result<EvictionPolicy> {
    if (limits.max_tokens < 0 || limits.full_cache_bytes < 0) {
      return Status::Invalid(StrCat("ServerLimits: max_tokens ", limits.max_tokens,
                                    " and full_cache_bytes ", limits.full_cache_bytes,
                                    " must not be negative"));
    }
    Settings settings;
    KVS_RETURN_IF_ERROR(settings.Override(flags, Source::kFlag));
    auto state = std::make_shared<State>(std::move(settings), limits);
    KVS_RETURN_IF_ERROR(state->Init());
    return EvictionPolicy(std::move(state));
  });
}

Result<RequestPlan> EvictionPolicy::ForRequest(std::span<const PolicySetting> overrides,
                                               const PromptInfo& prompt) const {
  return NoThrow([&]() -> Result<RequestPlan> {
    if (prompt.cached_tokens < 0 || prompt.cached_tokens > prompt.tokens) {
      return Status::Invalid(StrCat("PromptInfo: cached_tokens ", prompt.cached_tokens,
                                    " is outside [0, tokens ", prompt.tokens, "]"));
    }
    KVS_ASSIGN_OR_RETURN(const State::VariantPtr variant, state_->VariantFor(overrides));
    return state_->Plan(*variant, prompt);
  });
}

}  // namespace kvsieve
