// Every scorer with every split and selector over rows of a real model: totals, protection, order,
// and independence of workers and of how the prompt was cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/eval/thread_pool.h"
#include "kvsieve/eval/trace.h"
#include "kvsieve/str_cat.h"
#include "tests/eval/prompt_life.h"

namespace kvsieve::eval {
namespace {

// The last rows of the prompt: enough for every rule, and quick.
constexpr std::int64_t kRows = 260;
constexpr int kLayers = 2;
constexpr std::int64_t kBudget = 91;
constexpr std::int64_t kSinks = 4;
constexpr std::int64_t kRecent = 13;
constexpr std::int64_t kEvery = 16;

class SelectionProperty : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto trace = Trace::Open(KVS_DATA_DIR "/smollm2-135m-small.safetensors");
    ASSERT_TRUE(trace.ok()) << trace.message();
    trace_ = new Trace(*std::move(trace));
    life_ = new PromptLife(*trace_, kRows, kLayers);
  }
  static void TearDownTestSuite() {
    delete life_;
    delete trace_;
    life_ = nullptr;
    trace_ = nullptr;
  }

  static Result<Kept> Run(const std::shared_ptr<const Pipeline>& pipeline, std::int64_t chunk,
                          Parallel* parallel, const PromptLife::Check& check = nullptr) {
    KVS_ASSIGN_OR_RETURN(const Cache cache, life_->Run(pipeline, chunk, parallel, check));
    return KeptBy(cache);
  }

  static Trace* trace_;
  static PromptLife* life_;
};

Trace* SelectionProperty::trace_ = nullptr;
PromptLife* SelectionProperty::life_ = nullptr;

struct Rules {
  std::int64_t newest = 0;
  bool uniform = false;      // the same number of rows in every head
  bool over_layers = false;  // layers may differ
  bool cap = false;          // fewer rows than the budget are right
};

void ExpectLegal(const Rules& rules, const Kept& kept, std::span<const TokenPos> seen) {
  const auto rows_seen = static_cast<std::int64_t>(seen.size());
  const std::int64_t budget = std::min(kBudget, rows_seen);
  const auto sinks = seen.first(static_cast<std::size_t>(std::min(kSinks, rows_seen)));
  const auto newest = seen.last(static_cast<std::size_t>(std::min(rules.newest, rows_seen)));
  const std::size_t heads = kept.size() / kLayers;
  std::vector<std::int64_t> rows_of_layer(kLayers, 0);
  for (std::size_t n = 0; n < kept.size(); ++n) {
    const std::vector<TokenPos>& head = kept[n];
    rows_of_layer[n / heads] += static_cast<std::int64_t>(head.size());
    if (rules.uniform && !rules.cap) {
      EXPECT_EQ(static_cast<std::int64_t>(head.size()), budget);
    }
    EXPECT_TRUE(std::adjacent_find(head.begin(), head.end(), std::greater_equal<>()) == head.end());
    EXPECT_TRUE(std::includes(seen.begin(), seen.end(), head.begin(), head.end()));
    EXPECT_TRUE(std::includes(head.begin(), head.end(), sinks.begin(), sinks.end()));
    EXPECT_TRUE(std::includes(head.begin(), head.end(), newest.begin(), newest.end()));
  }
  const auto per_layer = budget * static_cast<std::int64_t>(heads);
  std::int64_t total = 0;
  for (const std::int64_t rows : rows_of_layer) {
    total += rows;
    if (!rules.over_layers && !rules.cap) {
      EXPECT_EQ(rows, per_layer);
    }
  }
  EXPECT_LE(total, per_layer * kLayers);
  if (!rules.cap) {
    EXPECT_EQ(total, per_layer * kLayers);
  }
}

struct Combination {
  std::string_view stage;
  std::string_view split;
  std::string_view select;
  std::string schedule;

  std::string Spec() const {
    const std::string_view own = stage == "mix"   ? "0.9*window_attention,0.1*key_norm,"
                                 : stage == "lag" ? "lag=16,"
                                                  : "";
    return StrCat(stage, "(", own, "budget=", kBudget, ",sinks=", kSinks, ",recent=", kRecent,
                  ",split=", split, ",select=", select, ") | schedule=", schedule);
  }
};

std::vector<Combination> AllCombinations() {
  std::vector<Combination> all;
  for (const StageInfo& info : EvictorInfos()) {
    for (const char* split : {"uniform", "pyramid", "adaptive", "adaptive(scope=model)"}) {
      for (const char* select : {"top_k", "chunk:8", "block:16", "threshold:0.001", "top_p:0.9"}) {
        for (const std::string& schedule :
             {std::string("once"), std::string("per_chunk"), StrCat("every(", kEvery, ")")}) {
          all.push_back({info.name, split, select, schedule});
        }
      }
    }
  }
  return all;
}

Rules RulesOf(const Combination& one, const Evictor& evictor) {
  Rules rules;
  rules.newest = std::max<std::int64_t>(evictor.needs().window(), kRecent);
  rules.uniform = one.split == "uniform";
  rules.over_layers = one.split == "pyramid" || one.split == "adaptive(scope=model)";
  rules.cap = evictor.budget_is_cap();
  return rules;
}

// Every scorer x split x selector x schedule is either refused when it is built, with the reason,
// or keeps its rules after each eviction, whatever the workers, and (once) whatever the chunks.
TEST_F(SelectionProperty, EveryCombinationKeepsItsRules) {
  ThreadPool two(2);
  ThreadPool five(5);
  int legal = 0;
  for (const Combination& one : AllCombinations()) {
    SCOPED_TRACE(one.Spec());
    Result<Pipeline> parsed = Pipeline::Parse(one.Spec());
    if (!parsed.ok()) {
      EXPECT_NE(parsed.message().find("column "), std::string::npos) << parsed.message();
      const bool names_it = parsed.message().find("option split: ") != std::string::npos ||
                            parsed.message().find("option select: ") != std::string::npos ||
                            parsed.message().find("schedule=") != std::string::npos;
      EXPECT_TRUE(names_it) << parsed.message();
      continue;
    }
    ++legal;
    const auto pipeline = std::make_shared<const Pipeline>(*std::move(parsed));
    const Rules rules = RulesOf(one, *pipeline->evictor());
    const PromptLife::Check check = [&](const Cache& cache, std::span<const TokenPos> seen) {
      ExpectLegal(rules, KeptBy(cache), seen);
    };
    const bool per_chunk = one.schedule == "per_chunk";
    const auto kept = Run(pipeline, kRows, nullptr, check);
    ASSERT_TRUE(kept.ok()) << kept.message();
    for (const std::int64_t chunk : {1, 7, 64, 1000}) {
      if (per_chunk && chunk == 1) continue;  // 260 evictions, each like those of 7
      SCOPED_TRACE(StrCat("chunks of ", chunk));
      const auto serial = Run(pipeline, chunk, nullptr, check);
      ASSERT_TRUE(serial.ok()) << serial.message();
      if (!per_chunk || chunk >= kRows) {
        EXPECT_EQ(*serial, *kept);
      }
      if (chunk != 64) continue;
      for (Parallel* parallel : {static_cast<Parallel*>(&two), static_cast<Parallel*>(&five)}) {
        const auto again = Run(pipeline, chunk, parallel);
        ASSERT_TRUE(again.ok()) << again.message();
        EXPECT_EQ(*again, *serial);
      }
    }
  }
  // once: 4 splits; the other schedules see one layer: 2 each. 12 stages with 4 selectors, and
  // top_p where scores are shares of a whole: window_attention, its alias, output_perturbation,
  // key_proxy, expected_attention.
  EXPECT_EQ(legal, (4 + 2 + 2) * (12 * 4 + 5));
}

TEST_F(SelectionProperty, LargerUniformBudgetsKeepMore) {
  for (const StageInfo& info : EvictorInfos()) {
    std::vector<std::vector<TokenPos>> smaller;
    for (const int budget : {40, 41, 90, 200, 259}) {
      const std::string spec = StrCat(info.name, "(budget=", budget, ")");
      SCOPED_TRACE(spec);
      Result<Pipeline> parsed = Pipeline::Parse(spec);
      if (!parsed.ok()) break;
      const auto pipeline = std::make_shared<const Pipeline>(*std::move(parsed));
      const auto kept = Run(pipeline, kRows, nullptr);
      ASSERT_TRUE(kept.ok()) << kept.message();
      for (std::size_t head = 0; head < smaller.size(); ++head) {
        EXPECT_TRUE(std::includes((*kept)[head].begin(), (*kept)[head].end(), smaller[head].begin(),
                                  smaller[head].end()));
      }
      smaller = *kept;
    }
  }
}

}  // namespace
}  // namespace kvsieve::eval
