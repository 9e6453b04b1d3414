// Layers whose V is the first elements of K (multi-head latent attention): one store for both, from
// Append to Gather, that holds the same rows and attends like a layer that was given V apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::Attended;
using cache_test::KeyPrefixes;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAppend;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::Prompt;
using cache_test::UniformRows;

LayerSpec MlaLayer(int query_heads, int key_dim, int value_dim, int kv_heads = 1) {
  LayerSpec layer = MakeLayer(query_heads, kv_heads, key_dim, value_dim);
  layer.value_is_key_prefix = true;
  return layer;
}

// The same layer and rows with V handed in.
LayerSpec Apart(LayerSpec layer) {
  layer.value_is_key_prefix = false;
  return layer;
}
Prompt Apart(Prompt prompt) {
  prompt.layer = Apart(prompt.layer);
  return prompt;
}

void AppendObserved(Cache& cache, Phase phase, const Prompt& prompt, std::int64_t first,
                    std::int64_t count) {
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, phase, prompt, first, count).ok());
  const LayerSpec& layer = prompt.layer;
  const std::vector<float> queries =
      UniformRows(layer.query_heads * count * layer.key_dim, static_cast<std::uint64_t>(first));
  const Status observed =
      cache.Observe(0, prompt.PositionView(first, count),
                    HeadsView::HeadMajor(queries.data(), layer.query_heads, count, layer.key_dim));
  ASSERT_TRUE(observed.ok()) << observed.message();
}

Cache Filled(std::string_view spec, const Prompt& prompt, const CacheOptions& options = {}) {
  Cache cache = MustCreate(spec, {prompt.layer}, options);
  MustAppend(cache, 0, prompt);
  const Status finished = cache.FinishPrefill();
  EXPECT_TRUE(finished.ok()) << finished.message();
  return cache;
}

// Blocks are decoded to f32 and attended in f32, so what is left is f32 arithmetic over at most
// 1000 rows, as in attention_grid_test.cc: logits of |q k| <= 3 over 576 dims are off by at most
// (576 / 4 + 6) * 2^-24 * 576 / 24 * 0.75, below 2e-4.
constexpr double kRelative = 1e-3;
constexpr double kLseBound = 5e-4;

// Attention equals exact attention over the rows as they decode, on every target.
void ExpectDecodedOracle(const Cache& cache, const std::vector<TokenPos>& positions) {
  const LayerSpec& layer = cache.layer(0);
  const std::vector<float> queries =
      UniformRows(std::int64_t{layer.query_heads} * std::ssize(positions) * layer.key_dim, 31);
  const oracle::Attention exact =
      oracle::Attend(layer, cache_test::GatherLayer(cache, 0), queries, positions);
  cache_test::OnEveryTarget([&] {
    cache_test::ExpectAttentionNear(MustAttend(cache, 0, queries, positions), exact,
                                    layer.value_dim, kRelative, kLseBound);
  });
}

// Rows and keys as those of a cache that was given V apart; V is the prefix of the decoded key.
void ExpectSameKeys(const Cache& cache, const Cache& apart) {
  const LayerSpec& layer = cache.layer(0);
  for (int head = 0; head < layer.kv_heads; ++head) {
    const oracle::HeadRows rows = cache_test::GatherHead(cache, 0, head);
    const oracle::HeadRows expected = cache_test::GatherHead(apart, 0, head);
    ASSERT_EQ(rows.positions, expected.positions);
    ASSERT_EQ(rows.keys, expected.keys);
    ASSERT_EQ(rows.values, KeyPrefixes(expected.keys, layer.key_dim, layer.value_dim));
  }
}

constexpr const char* kStores[] = {"f16",           "bf16",
                                   "int8",          "fp8",
                                   "int4",          "turbo4",
                                   "q8_0",          "center+int8",
                                   "hadamard+int8", "channel_scale+int8",
                                   "center+turbo3", "channel(bits=4,group=32)"};

// With every chain of K: decoded keys as in a plain layer, and attention over them and their
// prefixes; sinks, tier, tail and an open block.
TEST(Mla, EqualsAPlainLayerWhoseValuesAreThePrefix) {
  for (const std::string store : kStores) {
    for (const auto& [key_dim, value_dim] : {std::pair{576, 512}, std::pair{64, 64}}) {
      SCOPED_TRACE(store + ", dims " + std::to_string(key_dim));
      const Prompt prompt = MakePrompt(MlaLayer(16, key_dim, value_dim), 333, 3);
      const Cache cache = Filled("none | kv=" + store + " | exact_sinks=4, tail=40", prompt);
      ExpectSameKeys(
          cache, Filled("none | k=" + store + ", v=bf16 | exact_sinks=4, tail=40", Apart(prompt)));
      ExpectDecodedOracle(cache, {333, 100});
    }
  }
}

// Where V loses nothing, the two layers are the same layer.
TEST(Mla, AttendsAsAPlainLayerDoesInF16) {
  Prompt prompt = MakePrompt(MlaLayer(16, 576, 512), 500, 4);
  prompt.keys = cache_test::RoundedToF16(std::move(prompt.keys));
  prompt.values = KeyPrefixes(prompt.keys, 576, 512);
  const Cache cache = Filled("none | kv=f16 | tail=33", prompt);
  const Cache apart = Filled("none | kv=f16 | tail=33", Apart(prompt));
  const std::vector<float> queries = UniformRows(16 * 576, 32);
  const std::vector<TokenPos> position = {500};
  const Attended attended = MustAttend(cache, 0, queries, position);
  const Attended expected = MustAttend(apart, 0, queries, position);
  for (std::size_t i = 0; i < attended.out.size(); ++i) {
    // Both within 2e-4 of a logit of exact weights, times |v| <= 1.8.
    ASSERT_NEAR(attended.out[i], expected.out[i], 4 * 2e-4 * 1.8);
  }
}

TEST(Mla, ServesAnyNumberOfQueryHeadsAndKvHeads) {
  for (const auto& [query_heads, kv_heads] :
       {std::pair{1, 1}, std::pair{5, 1}, std::pair{128, 1}, std::pair{14, 2}}) {
    SCOPED_TRACE(query_heads);
    const Prompt prompt = MakePrompt(MlaLayer(query_heads, 96, 80, kv_heads), 200, 5);
    for (const char* store : {"f16", "int8"}) {
      SCOPED_TRACE(store);
      ExpectDecodedOracle(Filled(std::string("none | kv=") + store + " | tail=8", prompt),
                          {200, 199, 63});
    }
  }
}

// Three chunks of prompt, then five steps, evicting where the schedule says so.
void LiveWithEviction(Cache& cache, const Prompt& prompt, bool observes_decode) {
  for (std::int64_t first = 0; first < 300; first += 100) {
    AppendObserved(cache, Phase::kPrefill, prompt, first, 100);
    ASSERT_TRUE(cache.Evict(0).ok());
  }
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t first = 300; first < 400; first += 20) {
    if (observes_decode) {
      AppendObserved(cache, Phase::kDecode, prompt, first, 20);
    } else {
      ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, first, 20).ok());
    }
    ASSERT_TRUE(cache.Evict(0).ok());
  }
}

// A scorer that reads V sees the prefix: what stays is what stays of a layer that was given V, in
// staging, at the end of the prompt and among stored rows.
TEST(Mla, ScorersReadThePrefixAsValues) {
  Prompt prompt = MakePrompt(MlaLayer(4, 96, 64, 2), 400, 6);
  prompt.keys = cache_test::RoundedToF16(std::move(prompt.keys));
  prompt.values = KeyPrefixes(prompt.keys, 96, 64);
  for (const char* evict :
       {"output_perturbation(budget=100,window=8)", "expected_attention(budget=100)",
        "snapkv(budget=100,window=8,scope=layer)", "key_norm(budget=100)"}) {
    for (const std::string schedule : {"once", "per_chunk", "every(30)"}) {
      const std::string spec = std::string(evict) + " | kv=f16 | tail=12 | schedule=" + schedule;
      SCOPED_TRACE(spec);
      Cache cache = MustCreate(spec, {prompt.layer});
      Cache apart = MustCreate(spec, {Apart(prompt.layer)});
      LiveWithEviction(cache, prompt, schedule == "every(30)");
      LiveWithEviction(apart, Apart(prompt), schedule == "every(30)");
      EXPECT_LT(cache.rows(0, 0), schedule == "every(30)" ? 200 : 250);
      ExpectSameKeys(cache, apart);
      ExpectDecodedOracle(cache, {400});
    }
  }
}

TEST(Mla, StagingHoldsAndAttendsTheRowsOnce) {
  const Prompt prompt = MakePrompt(MlaLayer(4, 96, 64, 2), 600, 7);
  cache_test::TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  Cache cache = MustCreate("none | kv=int8", {prompt.layer}, options);
  MustAppend(cache, 0, prompt, 150);
  ExpectDecodedOracle(cache, {599, 300});
  const ByteReport report = cache.Report();
  EXPECT_EQ(report.payload_bytes, 2 * 600 * 96 * 4);  // as they came: f32
  EXPECT_EQ(report.value_kept_bytes, 0);
  EXPECT_EQ(report.resident_bytes(), allocator.live_bytes);
}

// A prompt, steps, tokens taken back, other tokens.
void LiveWithTrim(Cache& cache, const Prompt& prompt) {
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 200).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t first = 200; first < 390; first += 19) {
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, first, 19).ok());
  }
  ASSERT_TRUE(cache.TrimToPosition(250).ok());
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 300, 100).ok());
}

TEST(Mla, LivesThroughDecodeTrimCloneAndClear) {
  const Prompt prompt = MakePrompt(MlaLayer(4, 96, 64, 2), 400, 8);
  for (const std::string store : {"f16", "int8", "center+turbo4", "channel(bits=4,group=32)"}) {
    const std::string options = " | exact_sinks=4, tail=40";
    SCOPED_TRACE(store);
    Cache cache = MustCreate("none | kv=" + store + options, {prompt.layer});
    Cache apart = MustCreate("none | k=" + store + ", v=bf16" + options, {Apart(prompt.layer)});
    LiveWithTrim(cache, prompt);
    LiveWithTrim(apart, Apart(prompt));
    ExpectSameKeys(cache, apart);
    ExpectDecodedOracle(cache, {400});
    const std::string state = cache_test::StateOf(cache);
    Result<Cache> copy = cache.Fork();
    ASSERT_TRUE(copy.ok()) << copy.message();
    EXPECT_EQ(cache_test::StateOf(*copy), state);
    cache.Clear();
    MustAppend(cache, 0, prompt);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    ExpectDecodedOracle(cache, {400});
    EXPECT_EQ(cache_test::StateOf(*copy), state);
    ExpectDecodedOracle(*copy, {400});
  }
}

// Rows of two precisions, each with one store.
TEST(Mla, HasColdRowsToo) {
  const Prompt prompt = MakePrompt(MlaLayer(10, 96, 64, 2), 400, 16);
  const std::string evict = "random(budget=80%) | ";
  const std::string tail = " | exact_sinks=4, tail=20";
  const Cache cache = Filled(evict + "kv=center+int8 | cold(30%)={kv=turbo3}" + tail, prompt);
  ExpectSameKeys(
      cache,
      Filled(evict + "k=center+int8, v=bf16 | cold(30%)={k=turbo3, v=bf16}" + tail, Apart(prompt)));
  ExpectDecodedOracle(cache, {400, 200});
  EXPECT_EQ(cache.Report().value_kept_bytes, 0);
  const Result<Cache> refused = Cache::Create(
      cache_test::MustParse("random(budget=80%) | kv=int8 | cold(30%)={k=int4, v=turbo3}"),
      {prompt.layer}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("value_is_key_prefix"), std::string::npos);
}

// A budget in bytes counts rows of K alone, in the limit and in what is kept.
TEST(Mla, ByteBudgetsCountTheRowsOnce) {
  const Prompt prompt = MakePrompt(MlaLayer(4, 576, 512), 400, 9);
  const Cache cache = Filled("random(budget=8x) | kv=int8", prompt);
  const ByteReport report = cache.Report();
  const std::int64_t full = 400 * 576 * 2;
  EXPECT_EQ(report.full_bytes(), full);
  EXPECT_LE(report.kept_bytes(), full / 8);
  // One more row, of 576 codes, its scale and at most 4 bytes of position, would not fit.
  EXPECT_GT(report.kept_bytes() + 576 + 2 + 4 + 8, full / 8);
}

// Rows that are far longer than others behind the prefix, where only K has them: what a plan
// measures of K and of V is of the same rows, whatever lies in memory behind them.
TEST(Mla, PlansMeasureTheRowsOnce) {
  Prompt prompt = MakePrompt(MlaLayer(2, 576, 512), 200, 11);
  for (int row = 10; row < 190; row += 3) {
    for (int d = 512; d < 576; ++d) prompt.keys[row * 576 + d] *= 200;
  }
  const std::string_view spec = "waterfill(budget=4x,window=8) | tiers=[kv=int8; kv=int4; kv=int2]";
  std::vector<std::string> states;
  for (const int fill : {0, 0xFF, 0x3F}) {
    const std::vector<float> queries = UniformRows(2 * 200 * 576, 5);
    Cache cache = MustCreate(spec, {prompt.layer});
    MustAppend(cache, 0, prompt);
    ASSERT_TRUE(
        cache.Observe(0, prompt.positions, HeadsView::HeadMajor(queries.data(), 2, 200, 576)).ok());
    {
      const std::vector<std::uint8_t> before(std::size_t{1} << 20, static_cast<std::uint8_t>(fill));
    }
    ASSERT_TRUE(cache.FinishPrefill().ok());
    states.push_back(cache_test::StateOf(cache));
    const std::int64_t limit = 200 * 576 * 2 / 4;
    EXPECT_LE(cache.Report().kept_bytes(), limit);
    EXPECT_GT(cache.Report().kept_bytes(), limit * 98 / 100);  // all rows want more than int2
  }
  EXPECT_TRUE(states[0] == states[1]);
  EXPECT_TRUE(states[0] == states[2]);
}

TEST(Mla, TheReportSaysOneStoreAndThePortablePath) {
  const Cache cache = Filled("none | kv=int8", MakePrompt(MlaLayer(4, 96, 64), 100, 10));
  const LayerReport report = cache.ReportLayer(0);
  EXPECT_EQ(report.requested, "none | kv=int8");
  EXPECT_EQ(report.key_path, "portable");
  EXPECT_EQ(report.value_path, "portable");
}

TEST(Mla, ValuesThatAreGivenAreRefused) {
  const Prompt prompt = MakePrompt(MlaLayer(4, 96, 64), 100, 11);
  Cache cache = MustCreate("none | kv=f16", {prompt.layer});
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Status given =
        cache.Append(0, phase, prompt.KeyView(0, 100),
                     HeadsView::HeadMajor(prompt.values.data(), 1, 100, 64), prompt.positions);
    ASSERT_FALSE(given.ok());
    EXPECT_EQ(given.message(),
              "layer 0: values have 100 rows, but V is the first 64 elements of K "
              "(value_is_key_prefix): give an empty view");
    if (phase == Phase::kPrefill) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
    }
  }
  EXPECT_EQ(cache.rows(0, 0), 0);
}

// Layers of both kinds in one model; a store for each.
TEST(Mla, StandsBesideOtherLayers) {
  const Prompt mla = MakePrompt(MlaLayer(4, 96, 64), 100, 12);
  const Prompt plain = MakePrompt(MakeLayer(4, 2, 64, 64), 100, 13);
  Cache cache =
      MustCreate("none | k=int8, v=int4 | layers(0..0)={kv=int8}", {mla.layer, plain.layer});
  MustAppend(cache, 0, mla);
  MustAppend(cache, 1, plain);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.ReportLayer(0).bytes.payload_bytes, 100 * 96);
  EXPECT_EQ(cache.ReportLayer(1).bytes.payload_bytes, 2 * 100 * (64 + 32));
  ExpectDecodedOracle(cache, {100});
}

// Rows of 576, of which V is 512, are held and counted once; K and V of other widths are two
// stores.
TEST(Cases, U64_KeysAndValuesOfDifferentWidths) {
  cache_test::TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  constexpr std::int64_t kRows = 256;  // whole blocks
  for (const auto& [store, row_codes, row_scales] :
       {std::tuple{"f16", 2, 0}, std::tuple{"int8", 1, 2}}) {
    SCOPED_TRACE(store);
    const std::string spec = std::string("none | kv=") + store;
    const Cache mla = Filled(spec, MakePrompt(MlaLayer(16, 576, 512), kRows, 14), options);
    const ByteReport once = mla.Report();
    EXPECT_EQ(once.payload_bytes, kRows * 576 * row_codes);
    EXPECT_EQ(once.scale_bytes, kRows * row_scales);
    EXPECT_EQ(once.value_kept_bytes, 0);
    EXPECT_EQ(once.full_bytes(), kRows * 576 * 2);
    EXPECT_EQ(once.f16_rows_bytes, kRows * 576 * 2);
    EXPECT_EQ(once.resident_bytes(), allocator.live_bytes);
    EXPECT_LT(allocator.live_bytes, kRows * (576 * row_codes + row_scales) + 4096);
    ExpectDecodedOracle(mla, {kRows});
  }
  ASSERT_EQ(allocator.live_bytes, 0);

  const Prompt prompt = MakePrompt(MakeLayer(4, 2, 192, 128), kRows, 15);
  const Cache unequal = Filled("none | kv=f16", prompt);
  EXPECT_EQ(unequal.Report().payload_bytes, 2 * kRows * (192 + 128) * 2);
  EXPECT_EQ(unequal.Report().full_bytes(), 2 * kRows * (192 + 128) * 2);
  ExpectDecodedOracle(unequal, {kRows});
}

}  // namespace
}  // namespace kvsieve
