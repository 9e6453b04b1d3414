// What a policy says of settings that an evict stage or a store refuses: only what helps.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvsieve/eviction_policy.h"

namespace kvsieve {
namespace {

std::string ErrorOf(const std::vector<PolicySetting>& flags) {
  const auto policy = EvictionPolicy::FromFlags(flags);
  return policy.ok() ? std::string() : policy.message();
}

TEST(EvictionPolicyErrors, SuggestOnlySettingsThatMeanSomething) {
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "recency"}, {"--kv-budget", "2"}}),
            "--kv-budget 2: budget 2 is smaller than sinks 4; raise it, or lower --kv-sink-tokens");
  // Not too small: of the wrong kind for an option of the stage.
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "snapkv_d(guarantee_sinks=false)"}, {"--kv-budget", "10%"}}),
            "--kv-eviction snapkv_d(guarantee_sinks=false): column 26: option guarantee_sinks: "
            "false caps "
            "sinks by the budget, which must then be a number of rows, not 10%");
}

TEST(EvictionPolicyErrors, AScheduleIsNotPartOfTheStore) {
  EXPECT_EQ(
      ErrorOf({{"--kv-eviction", "snapkv"}, {"--kv-store", "kv=int8|schedule=every(64)"}}),
      "--kv-store kv=int8|schedule=every(64): column 9: a policy evicts once, when the prompt "
      "is finished: leave schedule= out");
}

TEST(EvictionPolicyErrors, PlansAreTakenByTheirFactor) {
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "best(8x)"}}),
            "--kv-eviction best(8x): the factor has a setting of its own: --kv-budget");
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "best"}}),
            "--kv-budget 512 (default): best takes how many times smaller than f16: best(8x), from "
            "2.5x to 32x");
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "best"}, {"--kv-budget", "8x"}, {"--kv-window", "16"}}),
            "--kv-window 16: means nothing with --kv-eviction best");
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "best"}, {"--kv-budget", "8x"}, {"--kv-store", "kv=int8"}}),
            "--kv-store kv=int8: means nothing with --kv-eviction best");
  EXPECT_EQ(
      ErrorOf({{"--kv-eviction", "waterfill"}, {"--kv-budget", "8x"}}),
      "--kv-eviction waterfill: its stores have no setting; take best, or give the server the "
      "pipeline itself");
  EXPECT_EQ(ErrorOf({{"--kv-eviction", "snapkv"}, {"--kv-store", "tiers=[kv=int8;kv=int4]"}}),
            "--kv-store tiers=[kv=int8;kv=int4]: column 1: a policy chooses no tiers: take the "
            "eviction best, which has its own");
}

TEST(EvictionPolicyErrors, SpacesDoNotMakeAnotherEviction) {
  const auto policy = EvictionPolicy::FromFlags(std::vector<PolicySetting>{
      {"--kv-eviction", "snapkv(pool=avg:5)"}, {"--kv-window", "24"}, {"--kv-sink-tokens", "8"}});
  ASSERT_TRUE(policy.ok()) << policy.message();
  const std::vector<PolicySetting> same = {{"kv_eviction", " snapkv( pool = avg:5 )"}};
  const auto plan = policy->ForRequest(same, {.tokens = 9000});
  ASSERT_TRUE(plan.ok()) << plan.message();
  EXPECT_EQ(plan->pipeline.get(), policy->ForRequest({}, {.tokens = 9000})->pipeline.get());
}

}  // namespace
}  // namespace kvsieve
