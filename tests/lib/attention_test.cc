// What attention sees: masks, windows, softcap, segments of every length, staging, many ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::Attended;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAppend;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::OnEveryTarget;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::UniformRows;

// f32 rows are attended in f32: 64 dims * 2^-24 * sum|q k| scale (below 24) stays under 1e-4.
constexpr double kF32 = 1e-4;

std::vector<float> Queries(const LayerSpec& layer, std::size_t positions, std::uint64_t seed) {
  return cache_test::UniformRows(
      std::int64_t{layer.query_heads} * static_cast<std::int64_t>(positions) * layer.key_dim, seed);
}

Cache Filled(std::string_view spec, const LayerSpec& layer, const Prompt& prompt) {
  Cache cache = MustCreate(spec, {layer});
  cache_test::MustAppend(cache, 0, prompt);
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

// exact_sinks as long as the prompt: nothing is encoded, so the oracle over the source rows holds.
constexpr const char* kExact = "none | kv=f16 | exact_sinks=1000";

void ExpectOracle(const Cache& cache, const LayerSpec& as, const Prompt& prompt,
                  const std::vector<TokenPos>& positions, const AttendParams& params = {}) {
  const std::vector<float> queries = Queries(as, positions.size(), 21);
  const oracle::Attention exact = oracle::Attend(as, prompt.Heads(), queries, positions);
  const Attended attended = MustAttend(cache, 0, queries, positions, params);
  cache_test::ExpectAttentionNear(attended, exact, as.value_dim, kF32, kF32);
}

TEST(Attention, SeveralQueriesSeeOnlyThePast) {
  const LayerSpec layer = MakeLayer(6, 2, 64, 32);
  const Prompt prompt = MakePrompt(layer, 200, 1);
  ExpectOracle(Filled(kExact, layer, prompt), layer, prompt, Positions(0, 200));
}

TEST(Attention, ReadsStagingBeforeThePromptIsFinished) {
  const LayerSpec layer = MakeLayer(6, 2, 64, 32);
  const Prompt prompt = MakePrompt(layer, 600, 2);  // more than one page of staging
  Cache cache = MustCreate("random(budget=8) | kv=int4", {layer});
  for (std::int64_t first = 0; first < 600; first += 150) {
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, first, 150).ok());
    Prompt so_far = MakePrompt(layer, 600, 2);
    ExpectOracle(cache, layer, so_far, Positions(static_cast<TokenPos>(first), 150));
  }
}

TEST(Attention, OverridesOfScaleSoftcapAndWindowReplaceTheLayers) {
  LayerSpec layer = MakeLayer(4, 2, 64, 64);
  layer.softcap = 3.0F;
  const Prompt prompt = MakePrompt(layer, 300, 3);
  const Cache cache = Filled(kExact, layer, prompt);
  ExpectOracle(cache, layer, prompt, {299, 150});
  LayerSpec other = layer;
  AttendParams params;
  params.scale = other.scale = 0.7F;
  params.softcap = other.softcap = 20.0F;
  params.sliding_window = other.sliding_window = 77;
  ExpectOracle(cache, other, prompt, {299, 150, 400}, params);
  params.softcap = other.softcap = 0.0F;
  ExpectOracle(cache, other, prompt, {299, 150, 400}, params);
}

// cap * tanh(x / cap) is x to within x^3 / (3 cap^2): a cap far above the logits changes nothing.
TEST(Attention, AFarSoftcapLeavesLogitsAsTheyAre) {
  const Prompt prompt = MakePrompt(MakeLayer(4, 2, 64, 64), 100, 31);
  const std::vector<float> queries = UniformRows(4 * 64, 32);
  Cache cache = MustCreate("none | kv=f16", {prompt.layer});
  MustAppend(cache, 0, prompt);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const std::vector<TokenPos> position = {100};
  OnEveryTarget([&] {
    const Attended plain = MustAttend(cache, 0, queries, position);
    for (const float cap : {1e5F, 1e8F, 1e20F, 3e38F}) {
      AttendParams params;
      params.softcap = cap;
      const Attended capped = MustAttend(cache, 0, queries, position, params);
      for (std::size_t i = 0; i < plain.out.size(); ++i) {
        // Logits of |x| < 10 move by less than 10^3 / 3e10, and by f32 rounding of a product.
        ASSERT_NEAR(capped.out[i], plain.out[i], 1e-5) << cap;
      }
    }
  });
}

// Queries share what is read of a block, not their results: one call for many is as many calls,
// whatever the group, what each sees and what others hold.
TEST(Attention, ManyQueriesAtOnceAreWhatEachIsAlone) {
  constexpr int kQueries = 37;
  std::vector<TokenPos> positions(kQueries);
  for (int i = 0; i < kQueries; ++i) positions[static_cast<std::size_t>(i)] = 5 + i * 89 % 420;
  for (const auto& [query_heads, kv_heads] :
       {std::pair{2, 2}, {4, 2}, {3, 1}, {10, 2}, {33, 1}, {40, 1}}) {
    for (const int window : {0, 50}) {
      LayerSpec layer = MakeLayer(query_heads, kv_heads, 32, 48);
      layer.sliding_window = window;
      SCOPED_TRACE(cache_test::Describe(layer));
      Cache cache = MustCreate("none | k=center+int8, v=turbo4 | exact_sinks=4 | tail=10", {layer});
      MustAppend(cache, 0, MakePrompt(layer, 350, 39, 10));
      ASSERT_TRUE(cache.FinishPrefill().ok());
      MustAppend(cache, 0, MakePrompt(layer, 5, 40, 360), 0, Phase::kVerify);
      std::vector<float> queries = Queries(layer, kQueries, 41);
      queries[32 * 7 + 3] = std::numeric_limits<float>::infinity();  // head 0, query 7
      OnEveryTarget([&] {
        const Attended all = MustAttend(cache, 0, queries, positions);
        for (std::size_t i = 0; i < kQueries; ++i) {
          std::vector<float> one;
          for (int h = 0; h < query_heads; ++h) {
            const auto row = queries.begin() + (h * kQueries + static_cast<int>(i)) * 32;
            one.insert(one.end(), row, row + 32);
          }
          const Attended alone = MustAttend(cache, 0, one, std::vector<TokenPos>{positions[i]});
          for (std::size_t h = 0; h < static_cast<std::size_t>(query_heads); ++h) {
            const std::size_t at = h * kQueries + i;
            ASSERT_EQ(std::memcmp(&all.out[at * 48], &alone.out[h * 48], 48 * 4), 0) << at;
            ASSERT_EQ(std::memcmp(&all.lse[at], &alone.lse[h], 4), 0) << at;
          }
        }
      });
    }
  }
}

// A logit beside the rows' that has no value: it lowers what they add up to and raises lse.
TEST(Attention, ASinkLogitTakesItsShareOfTheSoftmax) {
  for (const float cap : {0.0F, 2.0F}) {
    LayerSpec layer = MakeLayer(6, 2, 64, 64);
    layer.softcap = cap;
    // Far below the rows' logits, among them and far above, where little of the rows is left.
    const std::vector<float> sinks = {-200.0F, 0.0F, 3.5F, 6.0F, 12.0F, 200.0F};
    AttendParams params;
    params.sink_logits = sinks;
    for (const char* spec : {"none | kv=f16", "none | k=center+int8, v=turbo4 | tail=20"}) {
      const Cache cache = Filled(spec, layer, MakePrompt(layer, 300, 33));
      const std::vector<float> queries = Queries(layer, 3, 34);
      const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
      const std::vector<TokenPos> positions = {299, 100, 0};
      const oracle::Attention exact = oracle::Attend(layer, heads, queries, positions, sinks);
      OnEveryTarget([&] {
        cache_test::ExpectWithinKernelBound(
            layer, heads, queries, MustAttend(cache, 0, queries, positions, params), exact);
      });
    }
  }
}

TEST(Attention, ASinkLogitIsAllThatAQueryWithoutRowsHas) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  const Cache cache = Filled("none | kv=int8", layer, MakePrompt(layer, 20, 35, 10));
  const std::vector<float> sinks = {-1.5F, 2.0F};
  AttendParams params;
  params.sink_logits = sinks;
  std::vector<float> queries = Queries(layer, 2, 36);
  queries[2 * 32] = std::numeric_limits<float>::quiet_NaN();  // head 1, position 5
  const Attended attended = MustAttend(cache, 0, queries, std::vector<TokenPos>{5, 9}, params);
  EXPECT_EQ(attended.lse[0], -1.5F);
  EXPECT_EQ(attended.lse[1], -1.5F);
  EXPECT_EQ(attended.lse[3], 2.0F);
  for (std::size_t d = 0; d < 2 * 32; ++d) EXPECT_EQ(attended.out[d], 0.0F);
  EXPECT_TRUE(std::isnan(attended.lse[2]));
  EXPECT_TRUE(std::isnan(attended.out[2 * 32]));
}

TEST(Attention, SinkLogitsThatDoNotFitAreRefused) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  const Cache cache = Filled("none | kv=f16", layer, MakePrompt(layer, 20, 37));
  const std::vector<float> queries = Queries(layer, 1, 38);
  const auto refused = [&](const std::vector<float>& sinks, const std::string& part) {
    AttendParams params;
    params.sink_logits = sinks;
    std::vector<float> out(4 * 32);
    AttendScratch scratch;
    const Status status =
        cache.Attend(0, Positions(20, 1), HeadsView::HeadMajor(queries.data(), 4, 1, 32), params,
                     scratch, out.data(), nullptr);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  refused({0, 0}, "sink_logits are 2, the layer has 4 query heads");
  refused({0, 0, 0, std::numeric_limits<float>::infinity()}, "query head 3: NaN or Inf");
}

TEST(Attention, SoftcapComesAfterTheMeanIsAddedBack) {
  LayerSpec layer = MakeLayer(4, 2, 64, 64);
  layer.softcap = 2.0F;
  Prompt prompt = MakePrompt(layer, 300, 4);
  for (float& k : prompt.keys) k += 1.0F;  // a mean that matters
  const Cache cache = Filled("none | k=center+int8, v=f16 | exact_sinks=4", layer, prompt);
  const std::vector<float> queries = Queries(layer, 2, 22);
  const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
  const std::vector<TokenPos> positions = {300, 200};
  const oracle::Attention exact = oracle::Attend(layer, heads, queries, positions);
  const Attended attended = MustAttend(cache, 0, queries, positions);
  cache_test::ExpectWithinKernelBound(layer, heads, queries, attended, exact);
}

// Masks go by position, whatever the rows are called: engines may skip positions.
TEST(Attention, PositionsMayHaveGaps) {
  LayerSpec layer = MakeLayer(6, 2, 64, 64);
  layer.sliding_window = 400;
  Prompt prompt = MakePrompt(layer, 300, 11);
  for (std::size_t i = 0; i < prompt.positions.size(); ++i) {
    prompt.positions[i] = static_cast<TokenPos>(3 * i + i % 2 + (i > 200 ? 1000 : 0));
  }
  const std::vector<TokenPos> positions = {0, 3, 4, 300, 601, 602, 1700, 1900, 5000};
  Cache cache = MustCreate("none | kv=int8 | tail=40", {layer});
  cache_test::MustAppend(cache, 0, prompt);
  ExpectOracle(cache, layer, prompt, positions);  // staged
  ASSERT_TRUE(cache.FinishPrefill().ok());
  AttendParams params;  // a window shorter than the layer's, so that blocks are cut
  LayerSpec narrow = layer;
  params.sliding_window = narrow.sliding_window = 77;
  const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
  const std::vector<float> queries = Queries(layer, positions.size(), 27);
  cache_test::ExpectWithinKernelBound(narrow, heads, queries,
                                      MustAttend(cache, 0, queries, positions, params),
                                      oracle::Attend(narrow, heads, queries, positions));
}

// Every query of one step sees its whole window, and rows that none of them sees go.
TEST(Attention, QueriesOfOneDecodeStepEachSeeTheirWindow) {
  LayerSpec layer = MakeLayer(2, 1, 64, 64);
  layer.sliding_window = 16;
  for (const char* spec : {"none | kv=f16 | exact_sinks=1000", "none | kv=f16 | tail=1000"}) {
    SCOPED_TRACE(spec);
    const Prompt all = MakePrompt(layer, 114, 5);
    Cache cache = MustCreate(spec, {layer});
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, all, 0, 14).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    for (std::int64_t first = 14; first < 114; first += 4) {
      SCOPED_TRACE(first);
      ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, all, first, 4).ok());
      EXPECT_LE(cache.rows(0, 0), 16 + 4 - 1);
      ExpectOracle(cache, layer, all, Positions(static_cast<TokenPos>(first), 4));
    }
  }
}

TEST(Attention, AHeadWithoutVisibleRowsGivesZeroAndMinusInfinity) {
  const LayerSpec layer = MakeLayer(4, 2, 33, 20);
  const std::vector<float> queries = Queries(layer, 1, 23);
  const auto expect_nothing = [&](const Cache& cache, TokenPos position) {
    const Attended attended = MustAttend(cache, 0, queries, std::vector<TokenPos>{position});
    for (const float x : attended.out) ASSERT_EQ(x, 0.0F);
    for (const float x : attended.lse) ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
  };
  for (const char* spec : {"none | kv=f16", "none | k=center+turbo4, v=turbo4 | tail=3"}) {
    SCOPED_TRACE(spec);
    Cache cache = MustCreate(spec, {MakeLayer(4, 2, 64, 64)});
    cache = MustCreate("none | kv=f16", {layer});
    expect_nothing(cache, 5);  // nothing seen
    ASSERT_TRUE(cache.FinishPrefill().ok());
    expect_nothing(cache, 5);  // an empty prompt
    const Prompt later = MakePrompt(layer, 100, 6, 1000);
    cache_test::MustAppend(cache, 0, later, 0, Phase::kDecode);
    expect_nothing(cache, 999);  // all rows lie in the future
  }
}

// NaN and Inf in one query stay there, whatever shares its tile of heads.
TEST(Attention, ABadQueryHarmsNoOther) {
  const LayerSpec layer = MakeLayer(8, 2, 64, 64);
  const Prompt prompt = MakePrompt(layer, 100, 7);
  for (const char* store : {"kv=f16", "kv=int8", "kv=int4", "kv=turbo4", "kv=turbo3"}) {
    SCOPED_TRACE(store);
    const Cache cache =
        Filled(std::string("none | ") + store + " | exact_sinks=4, tail=8", layer, prompt);
    const std::vector<TokenPos> positions = {99, 100};
    cache_test::OnEveryTarget([&] {
      std::vector<float> queries = Queries(layer, 2, 24);
      const Attended good = MustAttend(cache, 0, queries, positions);
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        const std::size_t bad_query = 2 * 2 + 1;  // head 2, the second position
        queries[bad_query * 64 + 10] = bad;
        const Attended attended = MustAttend(cache, 0, queries, positions);
        for (std::size_t i = 0; i < attended.out.size(); ++i) {
          if (i / 64 != bad_query) {
            ASSERT_EQ(attended.out[i], good.out[i]);
          }
        }
        for (std::size_t i = 0; i < attended.lse.size(); ++i) {
          if (i != bad_query) {
            ASSERT_EQ(attended.lse[i], good.lse[i]);
          }
        }
        // Not a plausible answer: the engine must be able to see it.
        EXPECT_FALSE(std::isfinite(attended.lse[bad_query]));
        EXPECT_TRUE(std::isnan(attended.out[bad_query * 64])) << bad;
      }
    });
  }
}

// 20000 rows are three ranges of 8192; of one KV head that is fewer tasks than the most workers.
void ExpectTheSameWithAnyWorkers(const LayerSpec& layer, const char* spec,
                                 const std::vector<TokenPos>& positions,
                                 std::int64_t rows = 20000) {
  SCOPED_TRACE(cache_test::Describe(layer) + ", " + spec);
  const Cache cache = Filled(spec, layer, MakePrompt(layer, rows, 8));
  const std::vector<float> queries = Queries(layer, positions.size(), 25);
  const Attended serial = MustAttend(cache, 0, queries, positions);
  const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
  cache_test::ExpectWithinKernelBound(layer, heads, queries, serial,
                                      oracle::Attend(layer, heads, queries, positions),
                                      cache_test::RoundingOf(spec, layer));
  for (const int workers : {2, 5, 16}) {
    cache_test::Threads threads(workers);
    AttendParams params;
    params.parallel = &threads;
    const Attended shared = MustAttend(cache, 0, queries, positions, params);
    EXPECT_EQ(std::memcmp(shared.out.data(), serial.out.data(), serial.out.size() * 4), 0);
    EXPECT_EQ(shared.lse, serial.lse);
  }
}

TEST(Attention, TheNumberOfWorkersChangesNoByte) {
  ExpectTheSameWithAnyWorkers(MakeLayer(4, 2, 33, 40),
                              "none | k=int8, v=int4 | exact_sinks=4, tail=100", {20000, 9000, 8});
  // One query: ranges that follow each other share its prepared form.
  for (const auto& [query_heads, kv_heads] : {std::pair{1, 1}, std::pair{6, 1}, std::pair{6, 2}}) {
    ExpectTheSameWithAnyWorkers(MakeLayer(query_heads, kv_heads, 64, 64),
                                "none | k=center+turbo4, v=center+turbo4 | tail=10", {20000});
  }
  LayerSpec mla = MakeLayer(6, 1, 48, 32);
  mla.value_is_key_prefix = true;
  ExpectTheSameWithAnyWorkers(mla, "none | kv=int8", {20000, 9000});
}

// 16384 rows are 256 blocks, in two tiers 257: two ranges in both, the last with the odd block.
TEST(Attention, AnOpenBlockOfEachTierMakesNoRangeOfItsOwn) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  const char* tiers = "random(budget=100%) | kv=int8 | cold(10%)={k=int8, v=int4}";
  const Prompt prompt = MakePrompt(layer, 16384, 8);
  const Cache cache = Filled(tiers, layer, prompt);
  EXPECT_EQ(*cache.AttendScratchBytes(0, 1, 1),
            *Filled("none | kv=int8", layer, prompt).AttendScratchBytes(0, 1, 1));
  // A query of zeros counts the rows: 256 sums of 64 ones, in f32.
  const std::vector<float> zeros(2 * 64);
  const std::vector<TokenPos> behind = {16384};
  EXPECT_NEAR(MustAttend(cache, 0, zeros, behind).lse[0], std::log(16384.0), 1e-6);
  ExpectTheSameWithAnyWorkers(layer, tiers, {16384, 9000}, prompt.rows());
}

TEST(Attention, OneScratchServesCallsOfAnyShapeInTurn) {
  const LayerSpec small = MakeLayer(1, 1, 33, 33);
  const LayerSpec large = MakeLayer(32, 2, 256, 192);
  Cache cache = MustCreate("none | kv=f16", {small, large});
  cache_test::MustAppend(cache, 0, MakePrompt(small, 70, 9));
  cache_test::MustAppend(cache, 1, MakePrompt(large, 70, 10));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  AttendScratch scratch;
  for (const int i : {0, 1, 0, 1}) {
    const LayerSpec& layer = cache.layer(i);
    const std::vector<float> queries = Queries(layer, 1, 26);
    const std::vector<TokenPos> position = {70};
    std::vector<float> out(static_cast<std::size_t>(layer.query_heads * layer.value_dim), NAN);
    ASSERT_TRUE(
        cache
            .Attend(i, position,
                    HeadsView::HeadMajor(queries.data(), layer.query_heads, 1, layer.key_dim), {},
                    scratch, out.data(), nullptr)
            .ok());
    EXPECT_EQ(out, MustAttend(cache, i, queries, position).out);
    EXPECT_GT(scratch.bytes(), 0);
  }
}

}  // namespace
}  // namespace kvsieve
