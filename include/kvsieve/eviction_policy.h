// What a server's flags, and what each request overrides of them, mean as a pipeline.
//
//   auto policy = EvictionPolicy::FromFlags(flags, {.max_tokens = 32768});  // once
//   auto plan = policy->ForRequest(overrides, {.tokens = 9000});            // per request
//   auto cache = Cache::Create(plan->pipeline, layers, {});
//
// Eviction is off unless a flag or a request names an evict stage. Text that cannot be read is an
// error, never a default. Decides before a prompt is read; what goes is decided by the pipeline.
// docs/server-policy.md explains every setting.
#ifndef KVSIEVE_EVICTION_POLICY_H_
#define KVSIEVE_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"

namespace kvsieve {

// One flag as typed, {"--kv-budget", "25%"}, or one field of a request, {"kv_budget", "512"}
// (numbers of a JSON request as their text). The text is the caller's, read during the call only.
struct PolicySetting {
  std::string_view name;
  std::string_view value;
};

// A setting as a server's --help lists it. The views live forever.
struct PolicyOption {
  std::string_view flag;
  std::string_view field;     // of a request; empty: flag only
  std::string_view takes;     // "a number of rows, 25%, 64MiB, 8x or auto"
  std::string_view fallback;  // when it is not given: "512"
  std::string_view meaning;   // one phrase
};
std::span<const PolicyOption> PolicyOptions();

// What budget=auto goes by.
struct ServerLimits {
  std::int64_t max_tokens = 0;        // longest context, prompt and answer; 0: unknown
  std::int64_t full_cache_bytes = 0;  // of K and V of such a context, nothing evicted; 0: unknown
};

struct PromptInfo {
  std::int64_t tokens = 0;
  std::int64_t cached_tokens = 0;  // first ones that come from a cache of earlier requests
};

struct RequestPlan {
  enum class Outcome : std::uint8_t {
    kEvict,
    // Nothing goes; the pipeline is `none` with the policy's store, because
    kOff,               // eviction is off
    kCachedPrefix,      // part of the prompt is not scored again: its queries are gone
    kShortPrompt,       // it is not longer than min tokens
    kBudgetHoldsPrompt  // it has no more rows than the budget
  };
  Outcome outcome = Outcome::kOff;
  // Never null. The same object for all requests with the same settings: comparing pointers tells
  // whether two requests can share a batch.
  std::shared_ptr<const Pipeline> pipeline;
  std::string note;  // one line for the log: what is evicted, or why nothing is

  bool evicts() const { return outcome == Outcome::kEvict; }
};

// Immutable and cheap to copy; copies share the pipelines they made. Any number of threads may call
// ForRequest. Without overrides it takes no lock and parses nothing. With overrides it takes a lock
// for one look-up; settings that are new to it are parsed outside the lock and remembered, up to
// kMaxPolicyVariants of them, then it forgets them and starts over. Pipelines live on in plans.
class EvictionPolicy {
 public:
  // Errors, one line each, name the flag, its value and what is allowed: an unknown or repeated
  // flag, a value that cannot be read, a flag without meaning for the chosen eviction (or while it
  // is off), a budget in rows too small for sinks and window, auto without a context length.
  static Result<EvictionPolicy> FromFlags(std::span<const PolicySetting> flags,
                                          const ServerLimits& limits = {});

  // Each override replaces the flag of its name, under the same checks; they hold for short
  // prompts too. A request that names another eviction takes window and sinks from itself, or
  // leaves them to that evict stage: those of the flags belong to the flags' eviction. A failed
  // call changes nothing.
  Result<RequestPlan> ForRequest(std::span<const PolicySetting> overrides,
                                 const PromptInfo& prompt) const;

 private:
  class State;
  explicit EvictionPolicy(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

inline constexpr int kMaxPolicyVariants = 256;

}  // namespace kvsieve

#endif  // KVSIEVE_EVICTION_POLICY_H_
