#include "kvsieve/eviction_policy.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/policy_settings.h"
#include "lib/policy_variant.h"

namespace kvsieve {
namespace {

using policy::Key;
using policy::Settings;
using policy::Source;
using policy::Variant;

}  // namespace

class EvictionPolicy::State {
 public:
  using VariantPtr = std::shared_ptr<const Variant>;

  State(Settings flags, const ServerLimits& limits) : flags_(std::move(flags)), limits_(limits) {}

  Status Init() {
    KVS_ASSIGN_OR_RETURN(Pipeline pass_through, policy::PassThrough(flags_));
    pass_through_ = std::make_shared<const Pipeline>(std::move(pass_through));
    KVS_ASSIGN_OR_RETURN(Variant variant, policy::BuildVariant(flags_, limits_));
    of_flags_ = std::make_shared<const Variant>(std::move(variant));
    return Status::Ok();
  }

  Result<VariantPtr> VariantFor(std::span<const PolicySetting> overrides) const {
    if (overrides.empty()) return of_flags_;
    KVS_ASSIGN_OR_RETURN(const Settings settings, Override(overrides));
    const std::string identity = settings.Identity();
    if (VariantPtr known = Find(identity)) return known;
    KVS_ASSIGN_OR_RETURN(Variant variant, policy::BuildVariant(settings, limits_));
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
