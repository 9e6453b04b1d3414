// Cases from the field that concern attention over stored rows: faults of other systems, restated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lib/attention.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::Attended;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;

constexpr const char* kStores[] = {"kv=f16",    "kv=bf16",    "kv=fp8",  "kv=int8",
                                   "kv=int4",   "kv=int3",    "kv=int2", "kv=turbo4",
                                   "kv=turbo3", "kv=channel", "kv=q8_0", "kv=q4_0"};

Cache Finished(std::string_view spec, const Prompt& prompt) {
  Cache cache = MustCreate(spec, {prompt.layer});
  cache_test::MustAppend(cache, 0, prompt);
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

// Attention over what is stored equals the oracle over the same rows decoded.
void ExpectDecodedOracle(
    const Cache& cache, const std::vector<TokenPos>& positions,
    cache_test::QueryRounding rounding = cache_test::QueryRounding::kSixteenBits) {
  const LayerSpec& layer = cache.layer(0);
  const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
  const std::vector<float> queries = cache_test::UniformRows(
      std::int64_t{layer.query_heads} * std::ssize(positions) * layer.key_dim, 41);
  cache_test::ExpectWithinKernelBound(layer, heads, queries,
                                      MustAttend(cache, 0, queries, positions),
                                      oracle::Attend(layer, heads, queries, positions), rounding);
}

// Rows that the window still shows are there; blocks behind it are given back.
TEST(Cases, U11_AWindowFreesOnlyWhatIsBehindIt) {
  LayerSpec layer = MakeLayer(2, 1, 64, 64);
  layer.sliding_window = 100;
  const Prompt prompt = MakePrompt(layer, 2001, 1);
  Cache cache = Finished("none | kv=int8", prompt);
  EXPECT_EQ(cache_test::GatherHead(cache, 0, 0).positions, Positions(1901, 100));
  ExpectDecodedOracle(cache, {2000});
  const Prompt more = MakePrompt(layer, 300, 2, 2001);
  for (std::int64_t step = 0; step < 300; ++step) {
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, more, step, 1).ok());
    const TokenPos now = more.positions[step];
    const oracle::HeadRows rows = cache_test::GatherHead(cache, 0, 0);
    ASSERT_LE(rows.positions.front(), now - 99);
    ASSERT_LT(rows.rows(), 100 + kBlockRows);
    ASSERT_EQ(rows.positions, Positions(rows.positions.front(), rows.rows()));
    if (step % 25 == 0) ExpectDecodedOracle(cache, {now});
  }
}

// Eviction takes effect after the step's attention, and masks go by position.
TEST(Cases, U14_EvictionComesAfterAttention) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const Prompt prompt = MakePrompt(layer, 64, 3);
  Cache cache = MustCreate("random(budget=16) | kv=f16", {layer});
  cache_test::MustAppend(cache, 0, prompt);
  const std::vector<TokenPos> all = Positions(0, 64);
  const std::vector<float> queries = cache_test::UniformRows(4 * 64 * 64, 4);
  cache_test::ExpectAttentionNear(MustAttend(cache, 0, queries, all),
                                  oracle::Attend(layer, prompt.Heads(), queries, all), 64, 1e-4,
                                  1e-4);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 8, 5, 64), 0, Phase::kDecode);
  EXPECT_EQ(cache.rows(0, 0), 16 + 8);
  ExpectDecodedOracle(cache, Positions(64, 8));
}

// Scores have the length of what is stored, on the fused and on the portable path.
TEST(Cases, U17_DecodeAfterEviction) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  for (const char* store : kStores) {
    SCOPED_TRACE(store);
    Cache cache = Finished(std::string("random(budget=33) | ") + store, MakePrompt(layer, 101, 6));
    cache_test::MustAppend(cache, 0, MakePrompt(layer, 1, 7, 101), 0, Phase::kDecode);
    EXPECT_EQ(cache.rows(0, 0), 34);
    EXPECT_EQ(cache.next_position(), 102);
    const Attended attended = MustAttend(cache, 0, std::vector<float>(4 * 64), Positions(101, 1));
    for (const float lse : attended.lse) EXPECT_NEAR(lse, std::log(34.0), 1e-5);
    // turbo4's kernel takes an 8-bit codebook, which this bound does not know.
    if (store == std::string_view("kv=turbo4")) continue;
    ExpectDecodedOracle(cache, Positions(101, 1),
                        cache_test::RoundingOf(StrCat("none | ", store), layer));
  }
}

// V of one head never reaches its neighbour.
TEST(Cases, U39_HeadsDoNotMix) {
  for (const int dim : {64, 96}) {
    const LayerSpec layer = MakeLayer(2, 2, dim, dim);
    Prompt prompt = MakePrompt(layer, 100, 8);
    std::fill_n(prompt.values.begin(), 100 * dim, 1.0F);
    std::fill_n(prompt.values.begin() + 100 * dim, 100 * dim, -1.0F);
    for (const char* store : {"kv=f16", "kv=int8", "kv=int4", "k=hadamard+int8, v=int8", "kv=fp8",
                              "kv=int3", "kv=int2(sym)", "kv=q8_0", "kv=q4_0", "kv=channel"}) {
      SCOPED_TRACE(store);
      const Cache cache = Finished(std::string("none | ") + store, prompt);
      cache_test::OnEveryTarget([&] {
        const std::vector<float> uniform(static_cast<std::size_t>(2 * dim));
        const Attended attended = MustAttend(cache, 0, uniform, Positions(100, 1));
        for (int d = 0; d < dim; ++d) {
          ASSERT_NEAR(attended.out[d], 1.0F, 1.0F / 127);
          ASSERT_NEAR(attended.out[dim + d], -1.0F, 1.0F / 127);
        }
      });
    }
  }
}

// 512 appends of one row: no step is off, and the last is no worse than the first.
TEST(Cases, U51_ManyDecodeStepsStayRight) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  for (const char* store : {"kv=int8", "kv=int4", "kv=q8_0", "kv=q4_0"}) {
    SCOPED_TRACE(store);
    double early = 0;
    double late = 0;
    const std::string spec = StrCat("none | ", store);
    const cache_test::QueryRounding rounding = cache_test::RoundingOf(spec, layer);
    Cache cache = MustCreate(spec, {layer});
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const Prompt prompt = MakePrompt(layer, 512, 9);
    for (std::int64_t step = 0; step < 512; ++step) {
      SCOPED_TRACE(step);
      ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, step, 1).ok());
      const std::vector<float> queries =
          cache_test::UniformRows(2 * 64, static_cast<std::uint64_t>(step));
      const std::vector<TokenPos> position = {prompt.positions[step]};
      const std::vector<oracle::HeadRows> rows = cache_test::GatherLayer(cache, 0);
      const oracle::Attention exact = oracle::Attend(layer, rows, queries, position);
      const Attended attended = MustAttend(cache, 0, queries, position);
      cache_test::ExpectWithinKernelBound(layer, rows, queries, attended, exact, rounding);
      if (rounding == cache_test::QueryRounding::kSixteenBits) {
        cache_test::ExpectAttentionNear(attended, exact, 64, 1e-3, 1e-3);
      }
      if (HasFatalFailure()) return;
      for (const cache_test::OutputError& error : cache_test::OutputErrors(attended, exact, 64)) {
        if (step >= 128) (step < 320 ? early : late) += error.relative();
      }
    }
    // Errors fall with the number of rows as outputs do, so relative ones stay. 384 of each half,
    // independent, of norms over 64 elements: their means have deviations below 3 %.
    EXPECT_LT(late, 1.2 * early);
  }
}

// Where the encoded rows end and the exact ones begin.
TEST(Cases, U56_TheBorderOfEncodedAndExactRows) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  for (const char* store : {"kv=int4", "kv=int8", "kv=turbo3"}) {
    for (const int tail : {0, 1, 14, 31, 32, 33, 63, 64}) {
      SCOPED_TRACE(std::string(store) + " tail " + std::to_string(tail));
      const std::string spec = std::string("none | ") + store + " | tail=" + std::to_string(tail);
      ExpectDecodedOracle(Finished(spec, MakePrompt(layer, 64, 10)), {64, 50, 31},
                          cache_test::RoundingOf(spec, layer));
    }
  }
}

struct HeadCounts {
  int query, kv;
};

TEST(Cases, U57_AnyGroupOfQueryHeads) {
  for (const HeadCounts heads :
       {HeadCounts{8, 8}, HeadCounts{8, 1}, HeadCounts{24, 4}, HeadCounts{28, 4}, HeadCounts{16, 2},
        HeadCounts{32, 8}, HeadCounts{14, 2}, HeadCounts{71, 1}}) {
    const LayerSpec layer = MakeLayer(heads.query, heads.kv, 256, 256);
    SCOPED_TRACE(cache_test::Describe(layer));
    for (const char* store : {"kv=int8", "kv=int4", "kv=turbo3"}) {
      const std::string spec = StrCat("none | ", store);
      ExpectDecodedOracle(Finished(spec, MakePrompt(layer, 70, 11)), {70},
                          cache_test::RoundingOf(spec, layer));
    }
  }
}

TEST(Cases, U58_TwoKvHeadsAndCoarseValues) {
  for (const int query_heads : {8, 16}) {
    const LayerSpec layer = MakeLayer(query_heads, 2, 64, 64);
    const Prompt prompt = MakePrompt(layer, 1024, 12);
    for (const char* store : {"k=int8, v=turbo2", "k=int8, v=turbo3", "k=int8, v=int2",
                              "k=int8, v=int3", "k=int8, v=int4", "k=q8_0, v=q4_0"}) {
      SCOPED_TRACE(store);
      ExpectDecodedOracle(Finished(std::string("none | ") + store, prompt), {1024, 500});
    }
  }
}

TEST(Cases, U59_HeadCountsThatDoNotDivideAreRefused) {
  for (const HeadCounts heads : {HeadCounts{33, 2}, HeadCounts{3, 2}, HeadCounts{0, 1}}) {
    const Result<Cache> cache = Cache::Create(cache_test::MustParse("none | kv=f16"),
                                              {MakeLayer(heads.query, heads.kv, 64, 64)}, {});
    ASSERT_FALSE(cache.ok());
    EXPECT_NE(cache.message().find(std::to_string(heads.query) + " query heads"),
              std::string::npos);
    EXPECT_NE(cache.message().find(std::to_string(heads.kv) + " KV heads"), std::string::npos);
  }
}

// An unnormalised sum in f16 would reach 131 072.
TEST(Cases, U60_LongUniformSumsDoNotOverflow) {
  const LayerSpec layer = MakeLayer(1, 1, 32, 32);
  Prompt prompt = MakePrompt(layer, 65536, 13);
  std::fill(prompt.values.begin(), prompt.values.end(), 2.0F);
  for (const char* store :
       {"kv=f16", "kv=bf16", "kv=fp8", "kv=int8", "kv=int4", "kv=int2", "kv=q8_0", "kv=q4_0"}) {
    SCOPED_TRACE(store);
    const Cache cache = Finished(std::string("none | ") + store, prompt);
    cache_test::OnEveryTarget([&] {
      const Attended attended = MustAttend(cache, 0, std::vector<float>(32), Positions(65536, 1));
      // int8 stores 2.0 to one step of its scale (2 / 127); f32 sums add 65536 * 2^-24 at most.
      for (const float x : attended.out) ASSERT_NEAR(x, 2.0F, 2.0F / 127 + 8e-3F);
      EXPECT_NEAR(attended.lse[0], std::log(65536.0), 1e-3);
    });
  }
}

// q.k of 460 800 stays finite and wins alone.
TEST(Cases, U61_LargeProductsStayFinite) {
  const LayerSpec layer = MakeLayer(2, 1, 128, 128);
  Prompt prompt = MakePrompt(layer, 80, 14);
  std::fill(prompt.keys.begin(), prompt.keys.end(), 0.5F);
  std::fill_n(prompt.keys.begin() + 37 * 128, 128, 60.0F);
  const std::vector<float> queries(2 * 128, 60.0F);
  for (const char* store : kStores) {
    SCOPED_TRACE(store);
    const Cache cache = Finished(std::string("none | ") + store, prompt);
    const oracle::HeadRows rows = cache_test::GatherHead(cache, 0, 0);
    const double sum =
        std::accumulate(rows.keys.begin() + 37 * 128, rows.keys.begin() + 38 * 128, 0.0);
    const double logit = 60.0 * sum * layer.scale;  // 40 729 before encoding
    EXPECT_GT(logit, 40000.0);
    cache_test::OnEveryTarget([&] {
      const Attended attended = MustAttend(cache, 0, queries, Positions(80, 1));
      for (int d = 0; d < 128; ++d) {
        // One weight of 1: what is left is the rounding of codebooks (turbo4, 1/254 of |v| <= 2).
        ASSERT_NEAR(attended.out[d], rows.values[37 * 128 + d], 0.03F);
      }
      // The logit of the decoded row. The kernel's codebook is off by 1/254 at most; a query of
      // one byte a dim by what KernelBound says, and q.k = |q| |k| here.
      const double query_step = 6 * 0.29 / 64 * 5 / std::sqrt(128.0);
      ASSERT_NEAR(attended.lse[0], logit, logit * (1.0 / 254 + query_step));
    });
  }
}

// Heads that keep different numbers of rows cost what they keep; no row stands in for a missing
// one.
TEST(Cases, U62_HeadsMayKeepDifferentNumbersOfRows) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const std::int64_t kept[] = {100, 300};
  Result<LayerStore> store =
      BuildStore(cache_test::MustParse("none | kv=f16")->main_store(), layer);
  ASSERT_TRUE(store.ok());
  RowShape shape;
  shape.key_dim = shape.value_dim = 64;

  Staging staging;
  const Prompt prompt = MakePrompt(layer, 400, 15);
  std::int64_t zeroed = 0;
  ASSERT_TRUE(staging
                  .Append(DefaultAllocator(), shape, prompt.KeyView(0, 400),
                          prompt.ValueView(0, 400), prompt.positions, NonFinitePolicy::kError,
                          &zeroed)
                  .ok());
  std::vector<HeadStore> heads(2);
  std::vector<oracle::HeadRows> rows(2);
  std::vector<float> scratch(kBlockRows * 64);
  ByteReport report;
  for (int h = 0; h < 2; ++h) {
    std::vector<RowIndex> chosen(static_cast<std::size_t>(400));
    std::iota(chosen.begin(), chosen.end(), 0);
    std::shuffle(chosen.begin(), chosen.end(), std::mt19937(16));
    chosen.resize(static_cast<std::size_t>(kept[h]));
    std::sort(chosen.begin(), chosen.end());
    const std::vector<TokenPos> positions(chosen.begin(), chosen.end());
    const StagedRows keys(staging, shape, Side::kKey, h);
    const StagedRows values(staging, shape, Side::kValue, h);
    Tier& tier = heads[h].tiers.emplace_back(*store);
    ASSERT_TRUE(tier.ReserveStats(DefaultAllocator()).ok());
    const ChosenRows chosen_keys(keys, chosen);
    const ChosenRows chosen_values(values, chosen);
    ASSERT_TRUE(tier.Learn(Side::kKey, chosen_keys, chosen_keys).ok());
    ASSERT_TRUE(tier.Learn(Side::kValue, chosen_values, chosen_values).ok());
    ASSERT_TRUE(tier.Reserve(DefaultAllocator(), positions).ok());
    tier.Fill(chosen_keys, chosen_values, positions, scratch.data());
    for (const ByteReport& bytes : heads[h].BytesByStore(shape)) report += bytes;
    rows[h].positions = positions;
    rows[h].keys.resize(static_cast<std::size_t>(kept[h]) * 64);
    rows[h].values.resize(static_cast<std::size_t>(kept[h]) * 64);
    tier.ReadRows(Side::kKey, 0, static_cast<int>(kept[h]), rows[h].keys.data());
    tier.ReadRows(Side::kValue, 0, static_cast<int>(kept[h]), rows[h].values.data());
  }
  EXPECT_EQ(report.rows_kept, 400);
  EXPECT_EQ(report.payload_bytes, 400 * 2 * 64 * 2);

  const std::vector<float> queries = cache_test::UniformRows(4 * 2 * 64, 17);
  const std::vector<TokenPos> positions = {400, 90};
  AttendJob job;
  job.layer = layer;
  job.shape = shape;
  job.queries = HeadsView::HeadMajor(queries.data(), 4, 2, 64);
  job.query_positions = positions;
  job.heads = heads;
  SerialParallel serial;
  AttendMemory memory;
  Attended attended{std::vector<float>(4 * 2 * 64, NAN), std::vector<float>(8, NAN)};
  ASSERT_TRUE(Attend(job, serial, memory, attended.out.data(), attended.lse.data()).ok());
  cache_test::ExpectAttentionNear(attended, oracle::Attend(layer, rows, queries, positions), 64,
                                  1e-3, 1e-3);
}

}  // namespace
}  // namespace kvsieve
