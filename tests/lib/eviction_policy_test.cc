#include "kvsieve/eviction_policy.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

using Outcome = RequestPlan::Outcome;
using Settings = std::vector<PolicySetting>;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

Result<EvictionPolicy> PolicyOf(const Settings& flags, const ServerLimits& limits = {}) {
  return EvictionPolicy::FromFlags(flags, limits);
}

Result<RequestPlan> PlanOf(const EvictionPolicy& policy, const Settings& overrides,
                           std::int64_t tokens, std::int64_t cached_tokens = 0) {
  return policy.ForRequest(overrides, {tokens, cached_tokens});
}

// What a request for 100 000 tokens gets, or the error.
std::string SpecOf(const Settings& flags, const Settings& overrides = {},
                   const ServerLimits& limits = {}) {
  const auto policy = PolicyOf(flags, limits);
  if (!policy.ok()) return policy.message();
  const auto plan = PlanOf(*policy, overrides, 100'000);
  return plan.ok() ? plan->pipeline->Typed() : plan.message();
}

Outcome OutcomeOf(const Settings& flags, const Settings& overrides, std::int64_t tokens,
                  std::int64_t cached_tokens = 0) {
  const auto policy = PolicyOf(flags);
  EXPECT_TRUE(policy.ok()) << policy.message();
  const auto plan = PlanOf(*policy, overrides, tokens, cached_tokens);
  EXPECT_TRUE(plan.ok()) << plan.message();
  EXPECT_EQ(plan->evicts(), plan->pipeline->evictor() != nullptr);
  EXPECT_EQ(plan->note.find('\n'), std::string::npos);
  EXPECT_FALSE(plan->note.empty());
  return plan->outcome;
}

TEST(EvictionPolicy, IsOffByDefault) {
  EXPECT_EQ(OutcomeOf({}, {}, 100'000), Outcome::kOff);
  EXPECT_EQ(OutcomeOf({{"--kv-eviction", "none"}}, {}, 100'000), Outcome::kOff);
  EXPECT_EQ(SpecOf({}), "none");
  EXPECT_EQ(SpecOf({{"--kv-store", "k=int8, v=int4"}}), "none | k=int8, v=int4");
}

TEST(EvictionPolicy, TurnsFlagsIntoAPipeline) {
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}}), "snapkv(budget=512)");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"},
                    {"--kv-budget", "25%"},
                    {"--kv-window", "24"},
                    {"--kv-sink-tokens", "8"},
                    {"--kv-min-tokens", "256"},
                    {"--kv-store", "k=int8, v=int4 | tail=64"}}),
            "snapkv(budget=25%,window=24,sinks=8,min_tokens=256) | k=int8, v=int4 | tail=64");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "mix(0.9*snapkv(window=16),0.1*key_norm)"},
                    {"--kv-budget", "64MiB"}}),
            "mix(0.9*snapkv(window=16),0.1*key_norm,budget=64MiB)");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv(pool=avg:5)"}, {"--kv-budget", "8x"}}),
            "snapkv(pool=avg:5,budget=8x)");
}

TEST(EvictionPolicy, PresetsKeepTheirOwnDefaults) {
  const std::string canonical =
      PlanOf(*PolicyOf({{"--kv-eviction", "snapkv_d"}}), {}, 1000)->pipeline->Canonical();
  EXPECT_EQ(canonical, Pipeline::Parse("snapkv_d(budget=512,window=24)")->Canonical());
}

TEST(EvictionPolicy, LeavesWindowAndSinksToTheEvictStage) {
  const std::string canonical =
      PlanOf(*PolicyOf({{"--kv-eviction", "snapkv"}}), {}, 1000)->pipeline->Canonical();
  EXPECT_EQ(canonical, Pipeline::Parse("snapkv(budget=512,window=32,sinks=4)")->Canonical());
}

TEST(EvictionPolicy, RequestsOverrideFlags) {
  const Settings flags = {
      {"--kv-eviction", "snapkv"}, {"--kv-budget", "1024"}, {"--kv-store", "kv=int8"}};
  EXPECT_EQ(SpecOf(flags, {{"kv_budget", "256"}, {"kv_window", "16"}}),
            "snapkv(budget=256,window=16) | kv=int8");
  EXPECT_EQ(SpecOf(flags, {{"kv_sink_tokens", "0"}, {"kv_min_tokens", "9"}}),
            "snapkv(budget=1024,sinks=0,min_tokens=9) | kv=int8");
  EXPECT_EQ(SpecOf(flags, {{"kv_eviction", "none"}}), "none | kv=int8");
  EXPECT_EQ(SpecOf({}, {{"kv_eviction", "recency"}}), "recency(budget=512)");
}

TEST(EvictionPolicy, WindowAndSinksGoWithTheEvictionTheyWereGivenFor) {
  const Settings flags = {{"--kv-eviction", "snapkv"},
                          {"--kv-budget", "1024"},
                          {"--kv-window", "24"},
                          {"--kv-sink-tokens", "8"}};
  EXPECT_EQ(SpecOf(flags, {{"kv_eviction", "recency"}}), "recency(budget=1024)");
  EXPECT_EQ(SpecOf(flags, {{"kv_eviction", "snapkv"}}), "snapkv(budget=1024,window=24,sinks=8)");
  EXPECT_EQ(SpecOf(flags, {{"kv_eviction", "key_proxy"}, {"kv_window", "16"}}),
            "key_proxy(budget=1024,window=16)");
}

TEST(EvictionPolicy, LetsThroughWhatItMustNotTouch) {
  const Settings flags = {{"--kv-eviction", "snapkv"}, {"--kv-budget", "25%"}};
  EXPECT_EQ(OutcomeOf(flags, {}, 129), Outcome::kEvict);
  EXPECT_EQ(OutcomeOf(flags, {}, 128), Outcome::kShortPrompt);
  EXPECT_EQ(OutcomeOf(flags, {}, 0), Outcome::kShortPrompt);
  EXPECT_EQ(OutcomeOf(flags, {{"kv_min_tokens", "0"}}, 1), Outcome::kEvict);
  EXPECT_EQ(OutcomeOf(flags, {{"kv_min_tokens", "500"}}, 500), Outcome::kShortPrompt);
  EXPECT_EQ(OutcomeOf(flags, {}, 5000, 1), Outcome::kCachedPrefix);
  EXPECT_EQ(OutcomeOf(flags, {}, 5000, 5000), Outcome::kCachedPrefix);
}

TEST(EvictionPolicy, LetsThroughPromptsThatTheBudgetHolds) {
  const Settings flags = {{"--kv-eviction", "snapkv"}};
  EXPECT_EQ(OutcomeOf(flags, {}, 512), Outcome::kBudgetHoldsPrompt);
  EXPECT_EQ(OutcomeOf(flags, {}, 513), Outcome::kEvict);
  EXPECT_EQ(OutcomeOf(flags, {{"kv_budget", "600"}}, 513), Outcome::kBudgetHoldsPrompt);
  // There the budget is a cap, and rows go from any prompt.
  EXPECT_EQ(OutcomeOf({{"--kv-eviction", "snapkv(select=top_p:0.9)"}}, {}, 400), Outcome::kEvict);
}

TEST(EvictionPolicy, AutomaticBudgetFollowsTheServersContext) {
  struct Case {
    std::int64_t max_tokens;
    const char* spec;
  };
  // clamp(n / 4, min(1024, n), 4096); all of a context of 1024 tokens would stay.
  for (const Case& c : {Case{256, "none"}, Case{1024, "none"}, Case{1025, "snapkv(budget=1024)"},
                        Case{4096, "snapkv(budget=1024)"}, Case{8192, "snapkv(budget=2048)"},
                        Case{16384, "snapkv(budget=4096)"}, Case{131072, "snapkv(budget=4096)"}}) {
    const Settings flags = {{"--kv-eviction", "snapkv"}, {"--kv-budget", "auto"}};
    EXPECT_EQ(SpecOf(flags, {}, {c.max_tokens, 0}), c.spec) << c.max_tokens;
    EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}}, {{"kv_budget", "auto"}}, {c.max_tokens, 0}),
              c.spec)
        << c.max_tokens;
  }
}

TEST(EvictionPolicy, AutomaticBudgetLeavesSmallCachesAlone) {
  const Settings flags = {{"--kv-eviction", "snapkv"}, {"--kv-budget", "auto"}};
  EXPECT_EQ(SpecOf(flags, {}, {8192, 256 * kMiB}), "snapkv(budget=2048)");
  EXPECT_EQ(SpecOf(flags, {}, {8192, 256 * kMiB - 1}), "none");
  EXPECT_EQ(SpecOf(flags, {}, {8192, 1}), "none");
  // Any other budget is the operator's word.
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}}, {}, {8192, 1}), "snapkv(budget=512)");
}

TEST(EvictionPolicy, ErrorsNameTheFlagItsValueAndWhatIsAllowed) {
  const auto error = [](const Settings& given) {
    Settings flags = given;
    if (flags.front().name != "--kv-eviction") flags.push_back({"--kv-eviction", "snapkv"});
    const auto policy = PolicyOf(flags);
    EXPECT_FALSE(policy.ok());
    return policy.ok() ? "" : policy.message();
  };
  EXPECT_EQ(error({{"--kv-budgte", "512"}}),
            "unknown flag '--kv-budgte' (did you mean --kv-budget?)");
  EXPECT_EQ(error({{"--kv-budget", "512"}, {"--kv-budget", "256"}}),
            "--kv-budget is given twice: '512' and '256'");
  EXPECT_EQ(error({{"--kv-budget", "5l2"}}),
            "--kv-budget 5l2: '5l2' is neither rows (512) nor a percentage (25%), a size (64MiB), "
            "a factor (8x) or auto");
  EXPECT_EQ(error({{"--kv-budget", "0"}}), "--kv-budget 0: 0 rows is outside [1, 2147483647]");
  EXPECT_EQ(error({{"--kv-budget", "120%"}}),
            "--kv-budget 120%: percentage 120% is outside (0, 100]");
  EXPECT_EQ(error({{"--kv-window", "0"}}), "--kv-window 0: not a whole number in [1, 65536]");
  EXPECT_EQ(error({{"--kv-sink-tokens", "four"}}),
            "--kv-sink-tokens four: not a whole number in [0, 2147483647]");
  EXPECT_EQ(error({{"--kv-min-tokens", "-1"}}),
            "--kv-min-tokens -1: not a whole number in [0, 2147483647]");
  EXPECT_EQ(error({{"--kv-min-tokens", ""}}), "--kv-min-tokens has no value");
  EXPECT_EQ(error({{"--kv-eviction", "snapkw"}}),
            "--kv-eviction snapkw: column 1: unknown evict stage 'snapkw' (did you mean snapkv?); "
            "none turns eviction off");
  EXPECT_EQ(error({{"--kv-eviction", "snapkv(pool=max:4)"}}).substr(0, 46),
            "--kv-eviction snapkv(pool=max:4): column 13: o");
  EXPECT_EQ(error({{"--kv-eviction", "none(budget=5)"}}),
            "--kv-eviction none(budget=5): none takes no arguments");
  EXPECT_EQ(error({{"--kv-eviction", "snapkv(budget=5)"}}),
            "--kv-eviction snapkv(budget=5): budget has a setting of its own: --kv-budget");
  EXPECT_EQ(error({{"--kv-store", "k=int8, v=imt4"}}),
            "--kv-store k=int8, v=imt4: column 11: unknown codec or transform 'imt4' (did you mean "
            "int4?)");
}

TEST(EvictionPolicy, TakesLongSpecsUpToTheLimitOfTheGrammar) {
  std::string ranges = "0..1";
  while (ranges.size() < 16'000) ranges += ",0..1";
  const std::string eviction = StrCat("snapkv(protect=[", ranges, "])");
  EXPECT_TRUE(PolicyOf({{"--kv-eviction", eviction}}).ok());
  std::string store = "kv=int8";
  for (int layer = 0; layer < 50; ++layer) {
    store += StrCat(" | layers(", layer, "..", layer, ")={kv=f16}");
  }
  EXPECT_TRUE(PolicyOf({{"--kv-store", store}}).ok());
  const auto both = PolicyOf({{"--kv-eviction", eviction}, {"--kv-store", store}});
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.message().find("the limit is 16384"), std::string::npos) << both.message();
  EXPECT_LT(both.message().size(), 400U);
}

TEST(EvictionPolicy, UnreadableTextIsNeverAuto) {
  for (const char* text : {"automatic", "Auto", "AUTO", "", " auto", "unset", "none", "-1", "0x200",
                           "512 ", "1e3", "512,window=4", "512)|kv=int8"}) {
    EXPECT_FALSE(PolicyOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", text}}, {8192, 0}).ok())
        << text;
  }
}

TEST(EvictionPolicy, RefusesFlagsThatMeanNothing) {
  EXPECT_EQ(SpecOf({{"--kv-budget", "512"}}),
            "--kv-budget 512: means nothing while eviction is off (--kv-eviction none (default)); "
            "choose one with --kv-eviction, for example snapkv");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "none"}, {"--kv-window", "24"}}),
            "--kv-window 24: means nothing while eviction is off (--kv-eviction none); choose one "
            "with --kv-eviction, for example snapkv");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "recency"}, {"--kv-window", "24"}}),
            "--kv-window 24: means nothing with --kv-eviction recency");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}}, {{"kv_eviction", "none"}, {"kv_budget", "9"}}),
            "kv_budget 9: means nothing while eviction is off (kv_eviction none); choose one with "
            "kv_eviction, for example snapkv");
  EXPECT_EQ(SpecOf({}, {{"kv_budget", "512"}}),
            "kv_budget 512: means nothing while eviction is off (--kv-eviction none (default)); "
            "choose one with kv_eviction, for example snapkv");
  // Turning eviction off makes nothing of the flags wrong.
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "64"}}, {{"kv_eviction", "none"}}),
            "none");
}

TEST(EvictionPolicy, SmallBudgetsNameWhatTheyMustHold) {
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "16"}}),
            "--kv-budget 16: budget 16 is smaller than sinks 4 + window 32; raise it, or lower "
            "--kv-sink-tokens or --kv-window");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "40"}}, {{"kv_window", "37"}}),
            "--kv-budget 40: budget 40 is smaller than sinks 4 + window 37; raise it, or lower "
            "--kv-sink-tokens or kv_window");
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "40"}, {"--kv-window", "36"}}),
            "snapkv(budget=40,window=36)");
}

TEST(EvictionPolicy, AutoWithoutAContextLengthIsAnError) {
  EXPECT_EQ(SpecOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "auto"}}),
            "--kv-budget auto: the server does not say how long its context is "
            "(ServerLimits::max_tokens); give rows, 25%, 64MiB or 8x");
  EXPECT_FALSE(PolicyOf({}, {-1, 0}).ok());
  EXPECT_FALSE(PolicyOf({}, {0, -1}).ok());
}

TEST(EvictionPolicy, RequestErrorsNameTheFieldAndHoldForShortPromptsToo) {
  const auto policy = PolicyOf({{"--kv-eviction", "snapkv"}});
  ASSERT_TRUE(policy.ok());
  const auto error = [&](const PolicySetting& field) {
    const auto plan = PlanOf(*policy, {field}, 10);
    return plan.ok() ? std::string() : plan.message();
  };
  EXPECT_EQ(error({"kv_budget", "lots"}).substr(0, 25), "kv_budget lots: 'lots' is");
  EXPECT_EQ(error({"kv-budget", "512"}),
            "unknown request field 'kv-budget' (did you mean kv_budget?)");
  EXPECT_EQ(error({"kv_store", "k=int8"}),
            "unknown request field 'kv_store' (known: kv_eviction, kv_budget, kv_window, "
            "kv_sink_tokens, kv_min_tokens)");
  EXPECT_EQ(error({"", "x"}).substr(0, 24), "unknown request field ''");
  EXPECT_EQ(error({"kv_eviction", "snapkv(window=16)"}),
            "kv_eviction snapkv(window=16): window has a setting of its own: kv_window");
  // Text of a request goes into logs.
  EXPECT_EQ(error({"kv_budget", "5\n12"}), "kv_budget 5?12: the value must be printable ASCII");
  const std::string endless(100, '1');
  EXPECT_EQ(error({"kv_budget", endless}),
            StrCat("kv_budget ", endless.substr(0, 64),
                   "...: the value has 100 characters, the limit is 64"));
}

TEST(EvictionPolicy, RefusesImpossiblePrompts) {
  const auto policy = PolicyOf({});
  ASSERT_TRUE(policy.ok());
  EXPECT_FALSE(PlanOf(*policy, {}, -1).ok());
  EXPECT_FALSE(PlanOf(*policy, {}, 10, -1).ok());
  const auto plan = PlanOf(*policy, {}, 10, 11);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.message(), "PromptInfo: cached_tokens 11 is outside [0, tokens 10]");
}

TEST(EvictionPolicy, SameSettingsShareOnePipeline) {
  const auto policy = PolicyOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "25%"}});
  ASSERT_TRUE(policy.ok());
  const EvictionPolicy copy = *policy;
  const auto pipeline = [&](const EvictionPolicy& of, const Settings& overrides) {
    return PlanOf(of, overrides, 1000)->pipeline.get();
  };
  const Pipeline* flags = pipeline(*policy, {});
  EXPECT_EQ(pipeline(*policy, {}), flags);
  EXPECT_EQ(pipeline(copy, {{"kv_budget", "25%"}}), flags);
  // Other words, same pipeline.
  EXPECT_EQ(pipeline(*policy, {{"kv_budget", "25.0%"}}), flags);
  EXPECT_EQ(pipeline(*policy, {{"kv_sink_tokens", "4"}, {"kv_window", "32"}}), flags);
  const Pipeline* rows = pipeline(*policy, {{"kv_budget", "300"}});
  EXPECT_NE(rows, flags);
  EXPECT_EQ(pipeline(copy, {{"kv_budget", "300"}}), rows);
  // All that evict nothing.
  EXPECT_EQ(pipeline(*policy, {{"kv_eviction", "none"}}), PlanOf(*policy, {}, 10)->pipeline.get());
}

TEST(EvictionPolicy, NotesNameWhereEachSettingCameFrom) {
  const auto policy = PolicyOf({{"--kv-eviction", "snapkv"}, {"--kv-budget", "25%"}});
  ASSERT_TRUE(policy.ok());
  const auto note = [&](const Settings& overrides, std::int64_t tokens) {
    return PlanOf(*policy, overrides, tokens)->note;
  };
  EXPECT_EQ(note({}, 900), "--kv-eviction snapkv, --kv-budget 25%, of 900 prompt tokens");
  EXPECT_EQ(note({{"kv_budget", "25%"}}, 900),
            "--kv-eviction snapkv, kv_budget 25%, of 900 prompt tokens");
  EXPECT_EQ(note({}, 90),
            "nothing is evicted: the prompt has 90 tokens (--kv-min-tokens 128 (default))");
  EXPECT_EQ(note({{"kv_min_tokens", "128"}}, 90),
            "nothing is evicted: the prompt has 90 tokens (kv_min_tokens 128)");
  EXPECT_EQ(note({{"kv_budget", "300"}}, 300),
            "nothing is evicted: the budget holds all 300 prompt tokens (kv_budget 300)");
  EXPECT_EQ(note({{"kv_eviction", "none"}}, 900), "eviction is off (kv_eviction none)");
  EXPECT_EQ(PlanOf(*policy, {}, 900, 300)->note,
            "nothing is evicted: 300 of 900 prompt tokens come from a cached prefix");
}

TEST(EvictionPolicy, AFailedRequestChangesNothing) {
  const auto policy = PolicyOf({{"--kv-eviction", "snapkv"}});
  ASSERT_TRUE(policy.ok());
  const auto before = PlanOf(*policy, {{"kv_budget", "100"}}, 1000);
  ASSERT_FALSE(PlanOf(*policy, {{"kv_budget", "100"}, {"kv_window", "100"}}, 1000).ok());
  ASSERT_FALSE(PlanOf(*policy, {{"kv_window", "16"}, {"kv_budget", "?"}}, 1000).ok());
  const auto after = PlanOf(*policy, {{"kv_budget", "100"}}, 1000);
  EXPECT_EQ(after->pipeline, before->pipeline);
  EXPECT_EQ(after->note, before->note);
  EXPECT_EQ(PlanOf(*policy, {}, 1000)->pipeline->Typed(), "snapkv(budget=512)");
}

TEST(EvictionPolicy, ForgetsVariantsWhenThereAreTooMany) {
  const auto policy = PolicyOf({{"--kv-eviction", "snapkv"}});
  ASSERT_TRUE(policy.ok());
  const std::weak_ptr<const Pipeline> first =
      PlanOf(*policy, {{"kv_budget", "100"}}, 1000)->pipeline;
  EXPECT_FALSE(first.expired());
  for (int rows = 101; rows <= 100 + kMaxPolicyVariants; ++rows) {
    const std::string text = StrCat(rows);
    ASSERT_TRUE(PlanOf(*policy, {{"kv_budget", text}}, 1000).ok());
  }
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(PlanOf(*policy, {{"kv_budget", "100"}}, 1000)->pipeline->Typed(), "snapkv(budget=100)");
}

TEST(EvictionPolicy, AnswersManyThreadsAlike) {
  const auto policy = PolicyOf({{"--kv-eviction", "snapkv"}});
  ASSERT_TRUE(policy.ok());
  constexpr int kThreads = 4;
  constexpr int kBudgets = 50;
  std::vector<std::vector<std::shared_ptr<const Pipeline>>> seen(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine, &policy] {
      for (int rows = 100; rows < 100 + kBudgets; ++rows) {
        const std::string text = StrCat(rows);
        mine.push_back(PlanOf(*policy, {{"kv_budget", text}}, 1000)->pipeline);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen.front());
}

TEST(EvictionPolicy, ListsItsSettings) {
  for (const PolicyOption& option : PolicyOptions()) {
    EXPECT_TRUE(option.flag.starts_with("--kv-")) << option.flag;
    std::string field(option.flag.substr(2));
    for (char& c : field) c = c == '-' ? '_' : c;
    EXPECT_TRUE(option.field.empty() || option.field == field) << option.field;
    EXPECT_FALSE(option.takes.empty() || option.meaning.empty()) << option.flag;
  }
}

// The example of docs/server-policy.md.
TEST(EvictionPolicy, ExampleOfTheDocuments) {
  const std::vector<PolicySetting> flags = {
      {"--kv-eviction", "snapkv"}, {"--kv-budget", "25%"}, {"--kv-store", "k=int8, v=int4"}};
  const Result<EvictionPolicy> policy =
      EvictionPolicy::FromFlags(flags, {.max_tokens = 32768, .full_cache_bytes = 4096 * kMiB});
  ASSERT_TRUE(policy.ok()) << policy.message();

  const std::vector<PolicySetting> overrides = {{"kv_budget", "1024"}};
  const Result<RequestPlan> plan = policy->ForRequest(overrides, {.tokens = 9000});
  ASSERT_TRUE(plan.ok()) << plan.message();
  EXPECT_EQ(plan->note, "--kv-eviction snapkv, kv_budget 1024, of 9000 prompt tokens");
  EXPECT_EQ(plan->pipeline->Typed(), "snapkv(budget=1024) | k=int8, v=int4");
}

}  // namespace
}  // namespace kvsieve
