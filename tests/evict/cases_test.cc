// Faults that users of other systems reported, and what must happen here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kvsieve/evict.h"
#include "kvsieve/targets.h"
#include "tests/evict/fixtures.h"
#include "tests/evict/oracle.h"

namespace kvsieve {
namespace {

using testing::Decide;
using testing::ErrorOf;
using testing::Kept;
using testing::Observed;
using testing::RandomLayer;

bool Contains(const std::vector<TokenPos>& kept, TokenPos first, TokenPos last) {
  for (TokenPos p = first; p <= last; ++p) {
    if (!std::binary_search(kept.begin(), kept.end(), p)) return false;
  }
  return true;
}

// NVIDIA/kvpress #277: a window of no rows protected everything.
TEST(Cases, U03_AWindowOfNoRowsNeverProtectsEverything) {
  EXPECT_NE(ErrorOf("snapkv(budget=10,window=0)").message.find("option window"), std::string::npos);
  const Observed observed(RandomLayer({2, 1, 16, 16, 40, 40}, 1));
  EXPECT_EQ(Decide("snapkv(budget=10,window=1)", observed.observation()).keep.rows(), 10);
  EXPECT_EQ(Decide("snapkv(budget=10,protect_window=false)", observed.observation()).keep.rows(),
            10);
  EXPECT_EQ(Decide("recency(budget=10,sinks=0,recent=0)", observed.observation()).keep.rows(), 10);
}

// NVIDIA/kvpress #134: window one row shorter than the prompt, half of it to keep.
TEST(Cases, U04_AWindowLargerThanTheBudgetFollowsTheStatedRule) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 16, 16}, 2));
  const LayerDecision protected_wins =
      Decide("snapkv(budget=50%,window=15)", observed.observation());
  EXPECT_EQ(protected_wins.keep.rows(), 16);
  EXPECT_NE(protected_wins.note.find("over_budget=protected"), std::string::npos);
  const LayerDecision budget_wins =
      Decide("snapkv(budget=50%,window=15,over_budget=budget)", observed.observation());
  EXPECT_EQ(Kept(budget_wins, 0), (std::vector<TokenPos>{0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_NE(budget_wins.note.find("over_budget=budget"), std::string::npos);
  const LayerDecision short_prompt =
      Decide("snapkv(budget=50%,window=15,min_tokens=32)", observed.observation());
  EXPECT_EQ(short_prompt.keep.rows(), 16);
  EXPECT_NE(short_prompt.note.find("min_tokens"), std::string::npos);
}

// awslabs/keys_values #140: the end of the prompt must be there whatever the scores.
TEST(Cases, U07_TheNewestRowsAreAlwaysKept) {
  const Observed observed(RandomLayer({4, 2, 16, 16, 2048, 32}, 3));
  const LayerDecision decision = Decide("snapkv(budget=1024)", observed.observation());
  for (int head = 0; head < 2; ++head) {
    EXPECT_TRUE(Contains(Kept(decision, head), 2016, 2047));
    EXPECT_TRUE(Contains(Kept(decision, head), 0, 3));
  }
}

// AnswerDotAI/cold-compress #42: window queries keep what they ask for.
TEST(Cases, U08_RowsTheWindowAsksForAreKept) {
  oracle::Layer layer = RandomLayer({1, 1, 32, 32, 1000, 16}, 4);
  for (float& value : layer.q) value *= 0.1F;
  for (int row = 100; row <= 103; ++row) {
    for (int d = 0; d < 32; ++d) layer.k[row * 32 + d] = d == 0 ? 20.0F : 0.0F;
  }
  for (int w = 0; w < 16; ++w) layer.q[w * 32] = 20.0F;
  const LayerDecision decision =
      Decide("snapkv(budget=64,window=16)", Observed(layer).observation());
  EXPECT_TRUE(Contains(Kept(decision, 0), 100, 103));
}

// FasterDecoding/SnapKV #1: scoring ran out of memory.
TEST(Cases, U09_ScoringScratchIsOneWindowOfLogits) {
  const Observed observed(RandomLayer({1, 1, 128, 128, 32768, 32}, 5));
  const Observation observation = observed.observation();
  const auto evictor = testing::MustMake("snapkv(budget=512)");
  SerialParallel serial;
  ScoreScratch scratch;
  const auto stored = evictor->Decide({&observation, 1}, serial, &scratch);
  ASSERT_TRUE(stored.ok());
  constexpr std::int64_t kLogits = 32LL * 32768 * 4;  // 4 MiB
  EXPECT_FALSE(scratch.recomputed);
  EXPECT_GE(scratch.peak_bytes, kLogits);
  EXPECT_LT(scratch.peak_bytes, kLogits * 5 / 4);  // + block maxima, panels, the scores themselves

  ScoreScratch small{.limit_bytes = kLogits / 4};
  const auto recomputed = evictor->Decide({&observation, 1}, serial, &small);
  ASSERT_TRUE(recomputed.ok());
  EXPECT_TRUE(small.recomputed);
  EXPECT_LT(small.peak_bytes, kLogits / 4);
  EXPECT_EQ(Kept(recomputed->front(), 0), Kept(stored->front(), 0));
}

// FasterDecoding/SnapKV #16, #29: one set per KV head, not per query head.
TEST(Cases, U10_SetsAreKeptPerKvHead) {
  const Observed observed(RandomLayer({32, 8, 16, 16, 600, 32}, 6));
  const LayerDecision decision = Decide("snapkv(budget=512)", observed.observation());
  EXPECT_EQ(decision.keep.kv_heads(), 8);
  EXPECT_EQ(decision.keep.rows(), 8 * 512);
}

// openvinotoolkit/openvino.genai #2067: even pooling kernels; and rows come in position order.
TEST(Cases, U12_EvenPoolingIsRejectedAndTheDefaultHasOneSource) {
  EXPECT_NE(ErrorOf("snapkv(budget=512,pool=max:8)").message.find("odd"), std::string::npos);
  EXPECT_EQ(testing::MustMake("snapkv(budget=512)")->Canonical(),
            testing::MustMake("snapkv(budget=512,pool=max:7)")->Canonical());
}

// node-llama-cpp and cold-compress #39: no compression, and nobody said why.
TEST(Cases, U78_AShortPromptSaysThatNothingWasEvicted) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 200, 32}, 7));
  EXPECT_EQ(Decide("snapkv(budget=512)", observed.observation()).note,
            "budget not reached: 200 of 512 rows");
}

// jundot/omlx and mlx-lm #965: answers leak between requests. One evictor, many threads.
TEST(Cases, U84_OneEvictorServesManyThreads) {
  const auto evictor = testing::MustMake("output_perturbation(budget=40%)");
  std::vector<Observed> observed;
  std::vector<std::vector<TokenPos>> expected;
  for (int i = 0; i < 8; ++i) {
    observed.emplace_back(RandomLayer({4, 2, 16, 16, 150, 32}, 200 + i));
    expected.push_back(
        Kept(Decide("output_perturbation(budget=40%)", observed.back().observation()), 1));
  }
  testing::ThreadedParallel threads(4);
  std::vector<std::vector<TokenPos>> kept(observed.size());
  ParallelFor(threads, 8, [&](std::int64_t i, int) {
    const Observation observation = observed[i].observation();
    SerialParallel serial;
    auto decided = evictor->Decide({&observation, 1}, serial, nullptr);
    if (decided.ok()) kept[i] = Kept(decided->front(), 1);
  });
  EXPECT_EQ(kept, expected);
}

// The prompt's end is smoothed over the prefix only: a spike in the window must not leak.
TEST(Cases, SmoothingDoesNotLeakFromAProtectedWindow) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 100, 8}, 8);
  for (float& value : layer.q) value *= 0.01F;
  for (int d = 0; d < 16; ++d) {
    layer.k[92 * 16 + d] = 60.0F * (d == 0 ? 1.0F : 0.0F);  // the window's first row
    layer.k[50 * 16 + d] = 10.0F * (d == 0 ? 1.0F : 0.0F);
  }
  for (int w = 0; w < 8; ++w) layer.q[w * 16] = 2.0F;
  const auto kept =
      Kept(Decide("snapkv(budget=19,window=8,sinks=4)", Observed(layer).observation()), 0);
  EXPECT_TRUE(Contains(kept, 47, 53));  // 7 rows around 50, and not 89..91
  EXPECT_TRUE(Contains(kept, 92, 99));
}

// An adversary that scores every middle row high cannot push sinks or the newest row out.
TEST(Cases, SinksAndTheNewestRowSurviveAnyScores) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 100, 8}, 9);
  for (int row = 4; row < 92; ++row) {
    for (int d = 0; d < 16; ++d) layer.k[row * 16 + d] = 1e4F;
  }
  for (float& value : layer.q) value = 1.0F;
  const auto kept =
      Kept(Decide("snapkv(budget=16,window=1,recent=1)", Observed(layer).observation()), 0);
  EXPECT_EQ(kept.size(), 16U);
  EXPECT_TRUE(Contains(kept, 0, 3));
  EXPECT_TRUE(Contains(kept, 99, 99));
}

// All keys equal: every score ties, and the order rule decides, the same on every target.
TEST(Cases, EqualScoresFollowTheTieRuleOnEveryTarget) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 100, 32}, 10);
  std::fill(layer.k.begin(), layer.k.end(), 0.5F);
  const Observed observed(layer);
  for (const std::string_view target : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(target).ok());
    const auto low = Kept(Decide("snapkv(budget=46)", observed.observation()), 0);
    EXPECT_TRUE(Contains(low, 0, 13) && Contains(low, 68, 99)) << target;
    const auto high = Kept(Decide("snapkv(budget=46,ties=high)", observed.observation()), 0);
    EXPECT_TRUE(Contains(high, 0, 3) && Contains(high, 58, 99)) << target;
  }
  ASSERT_TRUE(SelectTarget({}).ok());
}

}  // namespace
}  // namespace kvsieve
