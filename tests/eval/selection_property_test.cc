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

namespace kvsieve::eval {
namespace {

// The last rows of the prompt: enough for every rule, and quick.
constexpr std::int64_t kRows = 260;
constexpr int kLayers = 2;

HeadsView LastRows(const HeadsView& all, std::int64_t first, std::int64_t count) {
  HeadsView view = all;
  view.data = all.row(0, all.rows - kRows + first);
  view.rows = count;
  return view;
}

class SelectionProperty : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto trace = Trace::Open(KVS_DATA_DIR "/smollm2-135m-small.safetensors");
    ASSERT_TRUE(trace.ok()) << trace.message();
    trace_ = new Trace(*std::move(trace));
  }
  static void TearDownTestSuite() {
    delete trace_;
    trace_ = nullptr;
  }

  static std::span<const TokenPos> positions() { return trace_->positions().last(kRows); }

  // Rows kept, per layer and head.
  using Kept = std::vector<std::vector<TokenPos>>;

  static Result<Kept> Run(const std::shared_ptr<const Pipeline>& pipeline, std::int64_t chunk,
                          Parallel* parallel) {
    std::vector<LayerSpec> layers = trace_->LayerSpecs();
    layers.resize(kLayers);
    CacheOptions options;
    options.parallel = parallel;
    KVS_ASSIGN_OR_RETURN(Cache cache, Cache::Create(pipeline, layers, options));
    for (int i = 0; i < kLayers; ++i) {
      const TraceLayer& layer = trace_->layers()[static_cast<std::size_t>(i)];
      for (std::int64_t first = 0; first < kRows; first += chunk) {
        const std::int64_t count = std::min(chunk, kRows - first);
        KVS_RETURN_IF_ERROR(cache.Append(
            i, Phase::kPrefill, LastRows(layer.keys, first, count),
            LastRows(layer.values, first, count),
            positions().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
      }
      KVS_RETURN_IF_ERROR(cache.Observe(i, trace_->window_positions(), layer.window_queries));
    }
    KVS_RETURN_IF_ERROR(cache.FinishPrefill());
    Kept kept;
    for (int i = 0; i < kLayers; ++i) {
      for (int head = 0; head < layers[static_cast<std::size_t>(i)].kv_heads; ++head) {
        std::vector<TokenPos>& rows =
            kept.emplace_back(static_cast<std::size_t>(cache.rows(i, head)));
        KVS_RETURN_IF_ERROR(cache.Gather(i, head, rows, {}, {}));
      }
    }
    return kept;
  }

  static Trace* trace_;
};

Trace* SelectionProperty::trace_ = nullptr;

struct Rules {
  std::string spec;
  std::int64_t budget = 0;  // rows per head
  std::int64_t sinks = 4;
  std::int64_t newest = 0;
  bool uniform = false;
  bool cap = false;  // fewer rows than the budget are right
};

void ExpectLegal(const Rules& rules, const std::vector<std::vector<TokenPos>>& kept,
                 std::span<const TokenPos> positions) {
  std::int64_t total = 0;
  for (const std::vector<TokenPos>& head : kept) {
    const auto rows = static_cast<std::int64_t>(head.size());
    total += rows;
    if (rules.uniform && !rules.cap) {
      EXPECT_EQ(rows, rules.budget);
    }
    EXPECT_TRUE(std::adjacent_find(head.begin(), head.end(), std::greater_equal<>()) == head.end());
    EXPECT_TRUE(std::includes(positions.begin(), positions.end(), head.begin(), head.end()));
    const auto first = positions.first(static_cast<std::size_t>(rules.sinks));
    const auto last = positions.last(static_cast<std::size_t>(rules.newest));
    EXPECT_TRUE(std::includes(head.begin(), head.end(), first.begin(), first.end()));
    EXPECT_TRUE(std::includes(head.begin(), head.end(), last.begin(), last.end()));
  }
  const std::int64_t expected = rules.budget * static_cast<std::int64_t>(kept.size());
  if (rules.cap) {
    EXPECT_LE(total, expected);
  } else {
    EXPECT_EQ(total, expected);
  }
}

TEST_F(SelectionProperty, EveryScorerSplitAndSelectorKeepsItsRules) {
  ThreadPool two(2);
  ThreadPool five(5);
  int legal = 0;
  for (const StageInfo& info : EvictorInfos()) {
    for (const char* split : {"uniform", "pyramid", "adaptive", "adaptive(scope=model)"}) {
      for (const char* select : {"top_k", "chunk:8", "block:16", "threshold:0.001", "top_p:0.9"}) {
        Rules rules;
        const std::string_view terms =
            info.name == "mix" ? "0.9*window_attention,0.1*key_norm," : "";
        rules.spec = StrCat(info.name, "(", terms, "budget=35%,recent=5%,split=", split,
                            ",select=", select, ")");
        SCOPED_TRACE(rules.spec);
        Result<Pipeline> parsed = Pipeline::Parse(rules.spec);
        if (!parsed.ok()) {  // says which option, and why
          EXPECT_NE(parsed.message().find("option "), std::string::npos) << parsed.message();
          continue;
        }
        const auto pipeline = std::make_shared<const Pipeline>(*std::move(parsed));
        const ScorerNeeds needs = pipeline->evictor()->needs();
        if (needs.external_scores) continue;
        ++legal;
        rules.budget = 91;                                          // 35 % of 260
        rules.newest = std::max<std::int64_t>(needs.window(), 13);  // 5 % of 260
        rules.uniform = std::string_view(split) == "uniform";
        rules.cap = pipeline->evictor()->budget_is_cap();
        const auto kept = Run(pipeline, kRows, nullptr);
        ASSERT_TRUE(kept.ok()) << kept.message();
        ExpectLegal(rules, *kept, positions());
        for (Parallel* parallel : {static_cast<Parallel*>(&two), static_cast<Parallel*>(&five)}) {
          const auto again = Run(pipeline, kRows, parallel);
          ASSERT_TRUE(again.ok());
          EXPECT_EQ(*again, *kept);
        }
        for (const std::int64_t chunk : {1, 7, 64, 1000}) {
          const auto again = Run(pipeline, chunk, nullptr);
          ASSERT_TRUE(again.ok());
          EXPECT_EQ(*again, *kept) << "chunks of " << chunk;
        }
      }
    }
  }
  EXPECT_GE(legal, 80);
}

TEST_F(SelectionProperty, LargerUniformBudgetsKeepMore) {
  for (const StageInfo& info : EvictorInfos()) {
    std::vector<std::vector<TokenPos>> smaller;
    for (const int budget : {40, 41, 90, 200, 259}) {
      const std::string spec = StrCat(info.name, "(budget=", budget, ")");
      SCOPED_TRACE(spec);
      Result<Pipeline> parsed = Pipeline::Parse(spec);
      if (!parsed.ok() || parsed->evictor()->needs().external_scores) break;
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
