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
