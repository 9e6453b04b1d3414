// Plans of a server: `best`, by the factor of its budget.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvsieve/eviction_policy.h"

namespace kvsieve {
namespace {

using Settings = std::vector<PolicySetting>;

// What a request gets, or the error.
std::string SpecOf(const Settings& flags, const Settings& overrides = {},
                   std::int64_t tokens = 9000) {
  const auto policy = EvictionPolicy::FromFlags(flags);
  if (!policy.ok()) return policy.message();
  const auto plan = policy->ForRequest(overrides, {.tokens = tokens});
  return plan.ok() ? plan->pipeline->Typed() : plan.message();
}

TEST(EvictionPolicyPlan, AFactorChoosesThePlanThatBestStandsFor) {
  const Settings flags = {{"--kv-eviction", "best"}, {"--kv-budget", "8x"}};
  EXPECT_EQ(SpecOf(flags), "best(8x)");
  EXPECT_EQ(SpecOf(flags, {{"kv_budget", "4x"}}), "best(4x)");
  EXPECT_EQ(SpecOf(flags, {}, 128), "none");  // min_tokens
  // The store is that of the eviction which the flags chose.
  const Settings stored = {{"--kv-eviction", "snapkv"}, {"--kv-store", "kv=int8"}};
  EXPECT_EQ(SpecOf(stored, {{"kv_eviction", "best"}, {"kv_budget", "8x"}}), "best(8x)");
}

TEST(EvictionPolicyPlan, IsTakenByTheirFactor) {
  EXPECT_EQ(SpecOf({{"--kv-eviction", "best(8x)"}}),
            "--kv-eviction best(8x): the factor has a setting of its own: --kv-budget");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "best"}}),
            "--kv-budget 512 (default): best takes how many times smaller than f16: best(8x), from "
            "2.5x to 32x");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "best"}, {"--kv-budget", "8x"}, {"--kv-window", "16"}}),
            "--kv-window 16: means nothing with --kv-eviction best");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "best"}, {"--kv-budget", "8x"}, {"--kv-store", "kv=int8"}}),
            "--kv-store kv=int8: means nothing with --kv-eviction best");
  EXPECT_EQ(
      SpecOf({{"--kv-eviction", "waterfill"}, {"--kv-budget", "8x"}}),
      "--kv-eviction waterfill: its stores have no setting; take best, or give the server the "
      "pipeline itself");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}, {"--kv-store", "tiers=[kv=int8;kv=int4]"}}),
            "--kv-store tiers=[kv=int8;kv=int4]: column 1: a policy chooses no tiers: take the "
            "eviction best, which has its own");
}

}  // namespace
}  // namespace kvsieve
