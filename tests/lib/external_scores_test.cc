// Scores handed in: what they decide, when they are forgotten, what is refused.
#include <gtest/gtest.h>

#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

constexpr std::int64_t kTokens = 50;

// Head 0 wants row 20 most, head 1 row 30; then the lower rows.
std::vector<float> Scores() {
  std::vector<float> scores;
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < kTokens; ++row) {
      scores.push_back(row == 20 + 10 * head ? 100.0F : static_cast<float>(-row));
    }
  }
  return scores;
}

TEST(ExternalScores, DecideWhichRowsStay) {
  const LayerSpec layer = MakeLayer(4, 2, 16, 16);
  Cache cache = MustCreate("external(budget=3,sinks=0) | kv=f16", {layer, layer});
  const std::vector<float> scores = Scores();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(cache.SetExternalScores(i, scores).ok());  // before or after the rows
    MustAppend(cache, i, MakePrompt(layer, kTokens, 7), 11);
  }
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(GatherHead(cache, i, 0).positions, (std::vector<TokenPos>{0, 1, 20}));
    EXPECT_EQ(GatherHead(cache, i, 1).positions, (std::vector<TokenPos>{0, 1, 30}));
  }
}

TEST(ExternalScores, MissingOnesAreAnErrorThatChangesNothing) {
  const LayerSpec layer = MakeLayer(4, 2, 16, 16);
  Cache cache = MustCreate("external(budget=3,sinks=0) | kv=f16", {layer});
  MustAppend(cache, 0, MakePrompt(layer, kTokens, 7));
  const std::string before = StateOf(cache);
  EXPECT_EQ(cache.FinishPrefill().message(),
            "layer 0: no external scores were handed in (scorer external)");
  std::vector<float> scores = Scores();
  scores.pop_back();
  ASSERT_TRUE(cache.SetExternalScores(0, scores).ok());
  EXPECT_EQ(cache.FinishPrefill().message(),
            "layer 0: 99 external scores were handed in, its KV heads have 100 rows (scorer "
            "external)");
  EXPECT_EQ(StateOf(cache), before);
  scores = Scores();
  ASSERT_TRUE(cache.SetExternalScores(0, scores).ok());
  EXPECT_TRUE(cache.FinishPrefill().ok());
}

// During decode they rank the rows that are stored, and an eviction uses them up.
TEST(ExternalScores, RankStoredRowsDuringDecode) {
  const LayerSpec layer = MakeLayer(4, 2, 16, 16);
  Cache cache = MustCreate("external(budget=4,sinks=0) | kv=f16 | schedule=every(3)", {layer});
  const std::vector<float> scores = Scores();
  ASSERT_TRUE(cache.SetExternalScores(0, scores).ok());
  const Prompt prompt = MakePrompt(layer, kTokens + 3, 7);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, kTokens).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (int n = 0; n < 3; ++n) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, kTokens + n, 1).ok());
  }
  EXPECT_EQ(cache.Evict(0).message(),
            "layer 0: no external scores were handed in (scorer external)");
  // Per head 7 rows: 4 of the prompt, then 50, 51, 52.
  const std::vector<float> later = {1, 9, 1, 9, 9, 1, 9, 9, 9, 9, 9, 1, 1, 1};
  ASSERT_TRUE(cache.SetExternalScores(0, later).ok());
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(GatherHead(cache, 0, 0).positions, (std::vector<TokenPos>{1, 20, 50, 52}));
  EXPECT_EQ(GatherHead(cache, 0, 1).positions, (std::vector<TokenPos>{0, 1, 2, 30}));
}

TEST(ExternalScores, AreForgottenWhenTheCacheIsCleared) {
  const LayerSpec layer = MakeLayer(4, 2, 16, 16);
  Cache cache = MustCreate("external(budget=3,sinks=0) | kv=f16", {layer});
  const std::vector<float> scores = Scores();
  ASSERT_TRUE(cache.SetExternalScores(0, scores).ok());
  cache.Clear();
  MustAppend(cache, 0, MakePrompt(layer, kTokens, 7));
  EXPECT_FALSE(cache.FinishPrefill().ok());
}

TEST(ExternalScores, NobodyAskedForAreAnError) {
  const LayerSpec layer = MakeLayer(4, 2, 16, 16);
  const std::vector<float> scores = Scores();
  for (const char* spec : {"none | kv=f16", "key_norm(budget=3,sinks=0) | kv=f16"}) {
    Cache cache = MustCreate(spec, {layer});
    EXPECT_EQ(cache.SetExternalScores(0, scores).message(),
              "layer 0: the pipeline does not rank rows by external scores");
  }
  Cache cache = MustCreate("mix(1*external,1*key_norm,budget=9) | kv=f16", {layer});
  EXPECT_TRUE(cache.SetExternalScores(0, scores).ok());
  EXPECT_FALSE(cache.SetExternalScores(1, scores).ok());
}

}  // namespace
}  // namespace kvsieve::cache_test
