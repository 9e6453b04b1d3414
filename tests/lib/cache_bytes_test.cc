// The byte report against the allocator, against the layout formulas, and its own identities.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Prompt;
using cache_test::TestAllocator;

void ExpectIdentities(const Cache& cache) {
  ByteReport total;
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerReport layer = cache.ReportLayer(i);
    const ByteReport& b = layer.bytes;
    EXPECT_EQ(b.kept_bytes(), b.key_kept_bytes + b.value_kept_bytes);
    EXPECT_EQ(b.kept_bytes(), b.payload_bytes + b.scale_bytes + b.metadata_bytes);
    EXPECT_EQ(b.resident_bytes(),
              b.kept_bytes() + b.padding_bytes + b.reserved_bytes + b.observation_bytes);
    for (const std::int64_t part :
         {b.payload_bytes, b.scale_bytes, b.metadata_bytes, b.padding_bytes, b.reserved_bytes,
          b.observation_bytes, b.shared_bytes, b.scratch_peak_bytes}) {
      EXPECT_GE(part, 0);
    }
    const std::optional<double> total_ratio = b.total_ratio();
    if (b.rows_kept > 0) {
      EXPECT_NEAR(*total_ratio, *b.eviction_ratio() * *b.storage_ratio(), 1e-9 * *total_ratio);
    }
    if (!layer.heads.empty()) {
      ByteReport heads;
      for (const ByteReport& head : layer.heads) heads += head;
      heads.observation_bytes = b.observation_bytes;  // the layer's, no head's
      EXPECT_EQ(cache_test::BytesText(heads), cache_test::BytesText(b));
    }
    total += b;
  }
  EXPECT_EQ(cache_test::BytesText(total), cache_test::BytesText(cache.Report()));
}

class ByteAccounting : public ::testing::TestWithParam<const char*> {};

// After every step of a life of random appends: what the report says is what the allocator gave.
TEST_P(ByteAccounting, ResidentBytesAreTheAllocatorsLiveBytes) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    TestAllocator allocator;
    CacheOptions options;
    options.allocator = &allocator;
    std::vector<LayerSpec> layers = {MakeLayer(4, 2, 64, 64), MakeLayer(3, 1, 48, 80)};
    layers[1].sliding_window = seed == 2 ? 100 : 0;
    Cache cache = MustCreate(GetParam(), layers, options);
    const auto expect_exact = [&] {
      ASSERT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
      ExpectIdentities(cache);
    };
    for (int life = 0; life < 2; ++life) {
      expect_exact();
      std::vector<TokenPos> next = {0, 0};
      const auto append = [&](Phase phase) {
        for (int i = 0; i < 2; ++i) {
          const std::int64_t rows = 1 + random() % (phase == Phase::kPrefill ? 150 : 40);
          next[i] += static_cast<TokenPos>(random() % 3);  // gaps are allowed
          cache_test::MustAppend(cache, i, MakePrompt(layers[i], rows, seed, next[i]), 0, phase);
          const std::vector<float> queries =
              cache_test::UniformRows(layers[i].query_heads * rows * layers[i].key_dim, seed);
          if (phase == Phase::kPrefill) {
            ASSERT_TRUE(cache
                            .Observe(i, cache_test::Positions(next[i], rows),
                                     HeadsView::HeadMajor(queries.data(), layers[i].query_heads,
                                                          rows, layers[i].key_dim))
                            .ok());
          }
          next[i] += static_cast<TokenPos>(rows);
          expect_exact();
        }
      };
      for (int step = 0; step < 5; ++step) append(Phase::kPrefill);
      ASSERT_TRUE(cache.FinishPrefill().ok());
      expect_exact();
      for (int step = 0; step < 30; ++step) append(Phase::kDecode);
      cache.Clear();
      EXPECT_EQ(allocator.live_bytes, 0);
      EXPECT_EQ(cache.Report().resident_bytes(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, ByteAccounting,
                         ::testing::Values("none | kv=f16", "none | kv=int8 | tail=64",
                                           "snapkv(budget=90,window=16) | k=int8, v=int4 | tail=40",
                                           "snapkv(budget=20%) | k=center+turbo4, v=turbo3",
                                           "random(budget=50) | kv=turbo2 | exact_sinks=8, tail=1",
                                           "recency(budget=64) | k=hadamard+int8, v=turbo5"));

struct RowSize {
  const char* codec;
  std::int64_t codes, scales;
};
// Bytes of one row at dim 128, as the spec lists them.
constexpr RowSize kRowSizes[] = {{"f16", 256, 0},
                                 {"int8", 128, 2},
                                 {"int4", 64, 16},
                                 {"int4(group=row)", 64, 4},
                                 {"int4(group=32,sym)", 64, 8},
                                 {"turbo4", 64, 2},
                                 {"turbo5", 80, 2},
                                 {"turbo3", 48, 2},
                                 {"turbo2", 32, 2},
                                 {"turbo1", 16, 2}};

// 70 rows of int8 at dim 64 are a block and a panel of 16, with room for 10 rows. The panel's
// scales fill half of a line of 64 bytes, for K and for V.
TEST(Bytes, RoomForRowsIsReserveAndNotPadding) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  Cache cache = MustCreate("none | kv=int8", {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 70, 1));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const ByteReport report = cache.Report();
  EXPECT_EQ(report.reserved_bytes, 10 * 2 * (64 + 2));
  EXPECT_EQ(report.padding_bytes, 2 * 32);
}

TEST(Bytes, PayloadAndScalesAreRowsTimesTheirSize) {
  const LayerSpec layer = MakeLayer(4, 2, 128, 128);
  for (const RowSize& size : kRowSizes) {
    SCOPED_TRACE(size.codec);
    Cache cache = MustCreate(std::string("random(budget=70) | kv=") + size.codec, {layer});
    cache_test::MustAppend(cache, 0, MakePrompt(layer, 200, 1));
    ASSERT_TRUE(cache.FinishPrefill().ok());
    cache_test::MustAppend(cache, 0, MakePrompt(layer, 10, 2, 200), 3, Phase::kDecode);
    const ByteReport report = cache.Report();
    const std::int64_t rows = 2 * 80;  // heads, rows of each
    EXPECT_EQ(report.rows_kept, rows);
    EXPECT_EQ(report.payload_bytes, rows * 2 * size.codes);
    EXPECT_EQ(report.scale_bytes, rows * 2 * size.scales);
    EXPECT_EQ(report.f16_rows_bytes, rows * 512);
    EXPECT_EQ(report.full_bytes(), 2 * 210 * 512);
    EXPECT_EQ(report.tokens_seen, 2 * 210);
    EXPECT_DOUBLE_EQ(report.keep_rate(), 80.0 / 210.0);
    // Positions of a head with gaps: at most 4 bytes a row.
    EXPECT_GT(report.metadata_bytes, 0);
    EXPECT_LE(report.metadata_bytes, rows * 4);
  }
}

// center keeps one mean per KV head and side, f32; a head without gaps stores one position per
// segment.
TEST(Bytes, MetadataIsMeansAndPositions) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = MustCreate("none | k=center+int8, v=f16 | exact_sinks=4, tail=10", {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 100, 3));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const std::int64_t means = 2 * 64 * 4;
  const std::int64_t positions = 2 * 3 * 4;  // sinks, tier, tail
  EXPECT_EQ(cache.Report().metadata_bytes, means + positions);
}

// Exact rows are counted in their own width.
TEST(Bytes, ExactRowsCountInTheirOwnType) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  const Prompt prompt = MakePrompt(layer, 50, 4);
  for (const ElementType type : {ElementType::kF32, ElementType::kF16}) {
    const cache_test::TypedRows keys(prompt.keys, type);
    const cache_test::TypedRows values(prompt.values, type);
    Cache cache = MustCreate("none | kv=int8 | exact_sinks=4, tail=6", {layer});
    ASSERT_TRUE(cache
                    .Append(0, Phase::kPrefill, keys.HeadMajor(1, 50, 64),
                            values.HeadMajor(1, 50, 64), prompt.positions)
                    .ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const auto width = static_cast<std::int64_t>(ElementBytes(type));
    EXPECT_EQ(cache.Report().payload_bytes, 2 * (40 * 64 + 10 * 64 * width));
    EXPECT_EQ(cache.Report().scale_bytes, 2 * 40 * 2);
  }
}

// A sliding layer's plain engine holds at most the window.
TEST(Bytes, FullBytesOfASlidingLayerStopAtTheWindow) {
  LayerSpec layer = MakeLayer(2, 1, 64, 64);
  layer.sliding_window = 128;
  Cache cache = MustCreate("none | kv=int8", {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 100, 5));
  EXPECT_EQ(cache.Report().full_bytes(), 100 * 256);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 500, 6, 100), 10, Phase::kDecode);
  EXPECT_EQ(cache.Report().full_bytes(), 128 * 256);
  EXPECT_EQ(cache.Report().tokens_seen, 600);
  EXPECT_EQ(cache.Report().lifetime_tokens, 600);
}

TEST(Bytes, FinishingThePromptGivesItsMemoryBack) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const LayerSpec layer = MakeLayer(4, 2, 128, 128);
  Cache cache = MustCreate("random(budget=100) | kv=int4", {layer, layer}, options);
  for (const int i : {0, 1}) cache_test::MustAppend(cache, i, MakePrompt(layer, 4000, 7), 500);
  const std::int64_t staged = allocator.live_bytes;
  EXPECT_GE(staged, std::int64_t{2} * 2 * 4000 * 256 * 4);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  // 100 rows of 160 bytes in blocks of 64 and 48 rows, and positions, per head and layer.
  EXPECT_LE(allocator.live_bytes, 4 * (112 * 160 + 400 + 1024));
  EXPECT_LE(allocator.peak_bytes, staged + 4 * (112 * 160 + 400 + 1024));
}

// The queries that the scorer waits for, and nothing once it has decided.
TEST(Bytes, ObservationBytesAreTheWindowsQueries) {
  const LayerSpec layer = MakeLayer(6, 2, 64, 64);
  Cache cache = MustCreate("snapkv(budget=64,window=16) | kv=int8", {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 100, 9));
  const std::vector<float> queries = cache_test::UniformRows(6 * 100 * 64, 10);
  for (const std::int64_t first : {0, 50}) {
    HeadsView view = HeadsView::HeadMajor(queries.data() + first * 64, 6, 100, 64);
    view.rows = 50;
    ASSERT_TRUE(
        cache.Observe(0, cache_test::Positions(static_cast<TokenPos>(first), 50), view).ok());
    EXPECT_EQ(cache.Report().observation_bytes, 6 * 16 * 64 * 4);
  }
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.Report().observation_bytes, 0);
}

// A window that slides for long holds the window, whole blocks more, and no memory beside.
TEST(Bytes, ASlidingLayerDoesNotGrow) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  LayerSpec layer = MakeLayer(1, 1, 64, 64);
  layer.sliding_window = 100;
  Cache cache = MustCreate("none | kv=int8 | tail=30", {layer}, options);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  std::int64_t after_thousand = 0;
  for (TokenPos p = 0; p < 5000; p += 5) {
    cache_test::MustAppend(cache, 0, MakePrompt(layer, 5, 8, p), 0, Phase::kDecode);
    if (p < 1000) after_thousand = std::max(after_thousand, allocator.live_bytes);
    ASSERT_LE(allocator.live_bytes, after_thousand + (p < 1000 ? 0 : 1024)) << p;
    ASSERT_LE(cache.rows(0, 0), 100 + 5 + kBlockRows);
  }
}

TEST(Bytes, AnEmptyCacheHasRatioOneAndWithoutRowsThereIsNone) {
  Cache cache = MustCreate("snapkv(budget=64) | kv=int4", {MakeLayer(4, 2, 64, 64)});
  const ByteReport empty = cache.Report();
  for (const auto ratio : {empty.eviction_ratio(), empty.storage_ratio(), empty.total_ratio(),
                           empty.resident_ratio()}) {
    EXPECT_EQ(ratio, 1.0);
  }
  ByteReport nothing_kept;
  nothing_kept.tokens_seen = 10;
  nothing_kept.key_full_bytes = 1000;
  EXPECT_EQ(nothing_kept.keep_rate(), 0.0);
  EXPECT_EQ(nothing_kept.eviction_ratio(), std::nullopt);
  EXPECT_EQ(nothing_kept.storage_ratio(), std::nullopt);
  EXPECT_EQ(nothing_kept.total_ratio(), std::nullopt);
}

TEST(Bytes, SumsDoNotDependOnTheirOrder) {
  std::vector<ByteReport> reports(3);
  for (int i = 0; i < 3; ++i) {
    ByteReport& r = reports[i];
    r.key_full_bytes = 100 << i;
    r.payload_bytes = 7 * i;
    r.scratch_peak_bytes = i == 1 ? 500 : 20 * i;
    r.rows_kept = i;
  }
  const ByteReport left = (reports[0] + reports[1]) + reports[2];
  const ByteReport right = reports[2] + (reports[0] + reports[1]);
  EXPECT_EQ(cache_test::BytesText(left), cache_test::BytesText(right));
  EXPECT_EQ(left.scratch_peak_bytes, 500);
  EXPECT_EQ(left.key_full_bytes, 700);
}

// Which rows go where is written down for all layers before any is encoded: a position and an index
// for each row, and its position again where it is stored.
TEST(Bytes, ScratchCountsTheListsOfRows) {
  const LayerSpec layer = MakeLayer(4, 2, 16, 16);
  Cache cache = MustCreate("none | kv=int8", {layer, layer, layer});
  for (int i = 0; i < 3; ++i) cache_test::MustAppend(cache, i, MakePrompt(layer, 5000, 3));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const std::int64_t rows = std::int64_t{3} * 2 * 5000;
  const std::int64_t block = std::int64_t{kBlockRows} * 16 * 4;
  EXPECT_GE(cache.Report().scratch_peak_bytes, rows * (4 + 8 + 4) + block);
  // Lists that grow row by row may have room for twice as many.
  EXPECT_LE(cache.Report().scratch_peak_bytes, rows * (4 + 2 * 8 + 4) + block);
}

}  // namespace
}  // namespace kvsieve
