// Cases from the field that concern bytes, positions and what a caller can see: faults of other
// systems, restated. The numbers are those of the reports.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::StateOf;

Cache Finished(std::string_view spec, const LayerSpec& layer, std::int64_t rows) {
  Cache cache = MustCreate(spec, {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, rows, 1));
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

// Scoring a long prompt takes window x tokens floats of scratch, never tokens squared, and gives
// the same rows with less.
TEST(Cases, U09_ScoringScratchIsWindowTimesTokens) {
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  const Prompt prompt = MakePrompt(layer, 32768, 2);
  const std::vector<float> queries = cache_test::UniformRows(32 * 64, 3);
  std::string kept;
  for (const std::int64_t limit : {0, 1 << 20}) {
    Cache cache = MustCreate("snapkv(budget=512,window=32) | kv=int8", {layer});
    cache_test::MustAppend(cache, 0, prompt);
    ASSERT_TRUE(
        cache.Observe(0, Positions(32768 - 32, 32), HeadsView::HeadMajor(queries.data(), 1, 32, 64))
            .ok());
    ASSERT_TRUE(cache.FinishPrefill(limit).ok());
    const std::int64_t logits = std::int64_t{32} * 32768 * 4;
    // The limit bounds scoring; the plan and what scoring sees list the rows' positions beside it.
    const std::int64_t lists = 2 * 32768 * static_cast<std::int64_t>(sizeof(TokenPos));
    EXPECT_LE(cache.Report().scratch_peak_bytes,
              lists + (limit == 0 ? logits + logits / 4 : limit));
    EXPECT_GE(cache.Report().scratch_peak_bytes, lists + (limit == 0 ? logits : 0));
    EXPECT_EQ(cache.ReportLayer(0).note.find("computed twice") != std::string::npos, limit != 0);
    const oracle::HeadRows rows = cache_test::GatherHead(cache, 0, 0);
    const std::string text(reinterpret_cast<const char*>(rows.positions.data()),
                           rows.positions.size() * sizeof(TokenPos));
    if (kept.empty()) kept = text;
    EXPECT_EQ(text, kept);
  }
}

// One copy per KV head, not per query head.
TEST(Cases, U10_GroupedHeadsAreStoredOnce) {
  const Cache cache = Finished("random(budget=512) | kv=f16", MakeLayer(32, 8, 128, 128), 600);
  EXPECT_EQ(cache.Report().payload_bytes, 2097152);
}

// Positions go on counting after eviction.
TEST(Cases, U13_NextPositionIsNotTheNumberOfRows) {
  LayerSpec layer = MakeLayer(2, 1, 64, 64);
  Cache evicted = Finished("random(budget=32) | kv=int8", layer, 64);
  EXPECT_EQ(evicted.oldest_exact_position(), 64);
  cache_test::MustAppend(evicted, 0, MakePrompt(layer, 200, 4, 64), 1, Phase::kDecode);
  EXPECT_EQ(evicted.next_position(), 264);
  EXPECT_EQ(evicted.rows(0, 0), 232);
  EXPECT_EQ(cache_test::GatherHead(evicted, 0, 0).positions.back(), 263);

  layer.sliding_window = 32;
  Cache sliding = Finished("none | kv=int8", layer, 64);
  EXPECT_EQ(sliding.rows(0, 0), 32);
  EXPECT_EQ(sliding.oldest_exact_position(), 63);  // its window, 32..63, is all that is held
  cache_test::MustAppend(sliding, 0, MakePrompt(layer, 200, 4, 64), 1, Phase::kDecode);
  EXPECT_EQ(sliding.next_position(), 264);
  EXPECT_LT(sliding.rows(0, 0), 32 + kBlockRows);  // whole blocks fall away
  EXPECT_EQ(cache_test::GatherHead(sliding, 0, 0).positions.back(), 263);
}

TEST(Cases, U21_WhatTheCallerHoldsDoesNotChange) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache =
      MustCreate("snapkv(budget=40,window=8) | k=center+turbo4, v=int4 | tail=5", {layer});
  const Prompt prompt = MakePrompt(layer, 100, 5);
  const Prompt copy = prompt;
  const std::vector<float> queries = cache_test::UniformRows(4 * 8 * 64, 6);
  const std::vector<float> queries_copy = queries;
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 60).ok());
  ASSERT_TRUE(
      cache.Observe(0, prompt.PositionView(52, 8), HeadsView::HeadMajor(queries.data(), 4, 8, 64))
          .ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const TokenPos before = cache.next_position();
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 60, 7).ok());
  EXPECT_EQ(before, 60);
  EXPECT_EQ(cache.next_position(), 67);
  cache_test::MustAttend(cache, 0, queries, prompt.PositionView(59, 8));
  EXPECT_EQ(prompt.keys, copy.keys);
  EXPECT_EQ(prompt.values, copy.values);
  EXPECT_EQ(prompt.positions, copy.positions);
  EXPECT_EQ(queries, queries_copy);
}

TEST(Cases, U49_QuantizedBuffersAreAsSmallAsTheySay) {
  cache_test::TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const LayerSpec layer = MakeLayer(8, 8, 128, 128);
  Cache cache = MustCreate("none | kv=int4(group=32,sym)", {layer}, options);
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 1000, 7));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const ByteReport report = cache.Report();
  EXPECT_EQ(report.payload_bytes + report.scale_bytes, 1152000);
  EXPECT_EQ(report.resident_bytes(), allocator.live_bytes);
  EXPECT_LE(report.resident_bytes() - report.kept_bytes(), report.kept_bytes() / 100);
}

// Rows removed and bytes saved multiply; shares removed do not.
TEST(Cases, U70_RatiosMultiply) {
  const LayerSpec layer = MakeLayer(1, 1, 128, 128);
  const Cache cache = Finished("random(budget=35%) | kv=int4(group=32,sym)", layer, 1000);
  const ByteReport report = cache.Report();
  EXPECT_EQ(report.rows_kept, 350);
  EXPECT_DOUBLE_EQ(report.keep_rate(), 0.35);
  EXPECT_EQ(report.key_full_bytes, 256000);
  EXPECT_EQ((report.payload_bytes + report.scale_bytes) / 2, 25200);
  EXPECT_NEAR(*report.eviction_ratio(), 2.857, 5e-4);
  // 3.556 without positions; they are a bitmap of 125 bytes and 6 marks here.
  EXPECT_NEAR(*report.storage_ratio(), 350 * 512.0 / (50400 + report.metadata_bytes), 1e-12);
  EXPECT_LE(report.metadata_bytes, 125 + 6 * 4);
  EXPECT_NEAR(*report.total_ratio(), 10.16, 0.05);
}

// Bytes of blocks are not bytes of elements: one of the 32 layers of the report.
TEST(Cases, U71_BytesOfCommonFormats) {
  const LayerSpec layer = MakeLayer(8, 8, 128, 128);
  struct Format {
    const char* codec;
    std::int64_t bytes;
  };
  for (const Format format :
       {Format{"f16", 1073741824 / 32}, Format{"q8_0", 570425344 / 32},
        Format{"q4_0", 301989888 / 32}, Format{"int4(group=32,sym)", 301989888 / 32}}) {
    const Cache cache = Finished(std::string("none | kv=") + format.codec, layer, 8192);
    EXPECT_EQ(cache.Report().payload_bytes + cache.Report().scale_bytes, format.bytes);
    EXPECT_EQ(cache.Report().padding_bytes, 0);
    EXPECT_EQ(cache.Report().reserved_bytes, 0);
  }
}

TEST(Cases, U77_SizesAndPositionsBeyond32Bits) {
  // One element every 2^30 elements: rows 2 and 4 lie 2^31 and 2^32 elements in.
  alignas(64) static float base[64];
  HeadsView view = HeadsView::HeadMajor(base, 1, 5, 64);
  view.row_stride = std::int64_t{1} << 30;
  const auto bytes_to = [&](std::int64_t row) {
    return reinterpret_cast<std::intptr_t>(view.row(0, row)) -
           reinterpret_cast<std::intptr_t>(base);
  };
  EXPECT_EQ(bytes_to(2), std::int64_t{1} << 33);
  EXPECT_EQ(bytes_to(4), std::int64_t{1} << 34);

  ByteReport report;
  report.key_full_bytes = std::int64_t{1048576} * 8 * 128 * 2;
  ByteReport total;
  for (int layer = 0; layer < 160; ++layer) total += report;  // 80 layers, K and V
  EXPECT_EQ(total.full_bytes(), 343597383680);

  // The last positions that there are.
  LayerSpec layer = MakeLayer(1, 1, 64, 64);
  layer.sliding_window = std::numeric_limits<int>::max();
  constexpr TokenPos kLast = std::numeric_limits<TokenPos>::max() - 1;
  Cache cache = MustCreate("none | kv=f16", {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 1, 8));
  const Prompt last = MakePrompt(layer, 3, 8, kLast - 2);
  cache_test::MustAppend(cache, 0, last);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.next_position(), std::numeric_limits<TokenPos>::max());
  EXPECT_EQ(cache_test::GatherHead(cache, 0, 0).positions.back(), kLast);
  const std::vector<float> query(64, 0.0F);
  const std::vector<TokenPos> position = {kLast};
  // Four rows of equal weight.
  EXPECT_NEAR(cache_test::MustAttend(cache, 0, query, position).lse[0], std::log(4.0), 1e-6);
}

TEST(Cases, U78_ABudgetThatIsNotReachedSaysSo) {
  const Cache cache = Finished("random(budget=512) | kv=f16", MakeLayer(2, 1, 64, 64), 200);
  const LayerReport report = cache.ReportLayer(0);
  EXPECT_EQ(report.bytes.eviction_ratio(), 1.0);
  EXPECT_EQ(report.bytes.keep_rate(), 1.0);
  EXPECT_NE(report.note.find("200 of 512"), std::string::npos) << report.note;
  EXPECT_EQ(report.applied.substr(0, 4), "none") << report.applied;
  EXPECT_EQ(cache.oldest_exact_position(), 0);
}

TEST(Cases, U90_StridesOfAnyLayoutGiveTheSameCache) {
  const LayerSpec layer = MakeLayer(6, 3, 64, 64);
  constexpr std::int64_t kRows = 100;
  const Prompt prompt = MakePrompt(layer, kRows, 9);
  // [tokens, K heads then V heads, dim] in one buffer.
  std::vector<float> together(kRows * 6 * 64);
  std::vector<float> token_major(kRows * 3 * 64);
  for (int head = 0; head < 3; ++head) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto* key = static_cast<const float*>(prompt.KeyView(row, 1).row(head, 0));
      const auto* value = static_cast<const float*>(prompt.ValueView(row, 1).row(head, 0));
      std::copy_n(key, 64, together.data() + (row * 6 + head) * 64);
      std::copy_n(value, 64, together.data() + (row * 6 + 3 + head) * 64);
      std::copy_n(key, 64, token_major.data() + (row * 3 + head) * 64);
    }
  }
  HeadsView keys = HeadsView::TokenMajor(together.data(), 6, kRows, 64);
  keys.heads = 3;
  HeadsView values = keys;
  values.data = together.data() + 3 * 64;
  struct Views {
    HeadsView keys, values;
  };
  const Views layouts[] = {{prompt.KeyView(0, kRows), prompt.ValueView(0, kRows)},
                           {HeadsView::TokenMajor(token_major.data(), 3, kRows, 64), values},
                           {keys, values}};
  std::string expected;
  for (const Views& views : layouts) {
    Cache cache = MustCreate("random(budget=60) | kv=int8", {layer});
    ASSERT_TRUE(cache.Append(0, Phase::kPrefill, views.keys, views.values, prompt.positions).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    if (expected.empty()) expected = StateOf(cache);
    EXPECT_EQ(StateOf(cache), expected);
  }
}

TEST(Cases, U93_OnePipelineServesAnyNumberOfLayers) {
  const auto pipeline =
      cache_test::MustParse("random(budget=10) | kv=int8 | layers(-1..-1)={kv=f16}");
  const std::string canonical = pipeline->Canonical();
  for (const int count : {2, 30, 2}) {
    const std::vector<LayerSpec> layers(static_cast<std::size_t>(count), MakeLayer(2, 1, 64, 64));
    Result<Cache> cache = Cache::Create(pipeline, layers, {});
    ASSERT_TRUE(cache.ok());
    EXPECT_EQ(cache->layers(), count);
    EXPECT_EQ(cache->ReportLayer(count - 1).requested.find("k=int8"), std::string::npos);
    EXPECT_NE(cache->ReportLayer(0).requested.find("k=int8"), std::string::npos);
  }
  EXPECT_EQ(pipeline->Canonical(), canonical);
}

TEST(Cases, U94_EveryCallOnAnEmptyCacheIsDefined) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  for (const char* spec :
       {"none | kv=f16", "snapkv(budget=64) | k=center+turbo4, v=turbo3 | tail=8",
        "random(budget=10) | kv=int4"}) {
    SCOPED_TRACE(spec);
    Cache cache = MustCreate(spec, {layer});
    for (int state = 0; state < 2; ++state) {  // before and after an empty prompt
      EXPECT_EQ(cache.next_position(), 0);
      EXPECT_EQ(cache.rows(0, 1), 0);
      EXPECT_EQ(cache.Report().rows_kept, 0);
      EXPECT_EQ(cache.Report().keep_rate(), 1.0);
      EXPECT_EQ(cache.Report().eviction_ratio(), 1.0);
      EXPECT_TRUE(cache.Gather(0, 0, {}, {}, {}).ok());
      EXPECT_TRUE(cache
                      .Append(0, state == 0 ? Phase::kPrefill : Phase::kDecode,
                              HeadsView::HeadMajor<float>(nullptr, 2, 0, 64),
                              HeadsView::HeadMajor<float>(nullptr, 2, 0, 64), {})
                      .ok());
      const std::vector<float> queries = cache_test::UniformRows(4 * 64, 10);
      const cache_test::Attended attended =
          cache_test::MustAttend(cache, 0, queries, Positions(0, 1));
      EXPECT_EQ(*std::max_element(attended.out.begin(), attended.out.end()), 0.0F);
      if (state == 0) {
        ASSERT_TRUE(cache.FinishPrefill().ok());
      }
    }
    cache_test::MustAppend(cache, 0, MakePrompt(layer, 70, 11), 9, Phase::kDecode);
    EXPECT_EQ(cache.rows(0, 1), 70);
    cache.Clear();
    cache.Clear();
    EXPECT_EQ(StateOf(cache), StateOf(MustCreate(spec, {layer})));
  }
}

}  // namespace
}  // namespace kvsieve
