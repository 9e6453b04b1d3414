// Cases from the field that concern what a report says of a cache: faults of other systems,
// restated.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Prompt;

bool Says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// -- U75 ------------------------------------------------------------------------------------------

// A merge swapped the cache, and reports went on naming the method, with counters of zero. Ours
// read the live objects: a layer that saw nothing says so, and where a cache goes, its counts go.
TEST(Cases, U75_ALayerThatSawNoTokensSaysThatItIsInactive) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = MustCreate("random(budget=20) | kv=int8", {layer, layer});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Says(cache.ReportLayer(i).note, "inactive: no tokens"));
  const Prompt prompt = MakePrompt(layer, 100, 1);
  cache_test::MustAppend(cache, 0, prompt, 30);
  EXPECT_FALSE(Says(cache.ReportLayer(0).note, "inactive"));
  EXPECT_EQ(cache.ReportLayer(0).bytes.tokens_seen, 200);
  EXPECT_TRUE(Says(cache.ReportLayer(1).note, "inactive: no tokens"));
  EXPECT_EQ(cache.ReportLayer(1).bytes.tokens_seen, 0);
  EXPECT_TRUE(Says(cache.ReportLayer(0).applied, "staged, not encoded yet"));

  cache_test::MustAppend(cache, 1, prompt);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  Result<Cache> copy = cache.Fork();
  ASSERT_TRUE(copy.ok());
  const std::string state = cache_test::StateOf(cache);
  Cache moved = MustCreate("none | kv=f16", {layer});  // takes the other's place
  moved = std::move(cache);
  for (const Cache* one : {&moved, &*copy}) {
    EXPECT_EQ(cache_test::StateOf(*one), state);
    for (int i = 0; i < 2; ++i) {
      const LayerReport report = one->ReportLayer(i);
      EXPECT_EQ(report.note, "");
      EXPECT_TRUE(Says(report.applied, "random(")) << report.applied;
      EXPECT_TRUE(Says(report.applied, "int8")) << report.applied;
      EXPECT_EQ(report.bytes.tokens_seen, 200);
      EXPECT_EQ(report.bytes.rows_kept, 40);
    }
  }
  moved.Clear();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Says(moved.ReportLayer(i).note, "inactive: no tokens"));
}

// A store whose rows are all in the exact tail encoded nothing, whatever its name promises.
TEST(Cases, U75_AStoreThatEncodedNothingSaysThatItIsInactive) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = MustCreate("none | kv=int4 | exact_sinks=4, tail=64", {layer});
  const Prompt prompt = MakePrompt(layer, 100, 2);
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 50).ok());
  EXPECT_FALSE(Says(cache.ReportLayer(0).note, "inactive"));  // nothing is decided yet
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_TRUE(Says(cache.ReportLayer(0).note, "store inactive: all rows are exact"));
  EXPECT_EQ(cache.ReportLayer(0).bytes.payload_bytes, 2 * 50 * 2 * 64 * 4);  // f32, as they came
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 50, 18).ok());
  EXPECT_TRUE(Says(cache.ReportLayer(0).note, "store inactive"));  // 4 sinks and a tail of 64
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 68, 1).ok());
  EXPECT_EQ(cache.ReportLayer(0).note, "");
  ASSERT_TRUE(cache.TrimToPosition(3).ok());
  EXPECT_TRUE(Says(cache.ReportLayer(0).note, "store inactive"));
}

// What a codec without a scale cut off; nobody remembers in which rows, so those that left count.
TEST(Cases, U75_SaturatedValuesAreCountedSoFar) {
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  Prompt prompt = MakePrompt(layer, 40, 3);
  for (const std::int64_t row : {5, 30, 35}) prompt.keys[row * 64 + 7] = 1000.0F;
  prompt.values[35 * 64] = -1000.0F;
  Cache cache = MustCreate("none | kv=fp8", {layer});
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 32).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const std::string text = " values beyond their codec's range stored as its end so far";
  EXPECT_EQ(cache.ReportLayer(0).note, "2" + text);
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 32, 8).ok());
  EXPECT_EQ(cache.ReportLayer(0).note, "4" + text);
  ASSERT_TRUE(cache.TrimToPosition(20).ok());
  EXPECT_EQ(cache.ReportLayer(0).note, "4" + text);
  cache.Clear();
  EXPECT_EQ(cache.ReportLayer(0).note, "inactive: no tokens came");
}

// -- U76 ------------------------------------------------------------------------------------------

// Used and resident bytes in every state, against what was asked of the allocator.
TEST(Cases, U76_OccupancyFollowsTheBuffers) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const Prompt prompt = MakePrompt(layer, 400, 4);
  for (const char* spec :
       {"none | kv=int8", "none | kv=f16 | tail=64", "random(budget=50%) | kv=int4 | tail=16",
        "none | kv=channel(bits=2,group=64)", "snapkv(budget=100) | k=center+turbo4, v=int2"}) {
    SCOPED_TRACE(spec);
    cache_test::TestAllocator allocator;
    CacheOptions options;
    options.allocator = &allocator;
    Cache cache = MustCreate(spec, {layer}, options);
    // The used bytes, after checks that hold in every state.
    const auto used = [&](std::string_view state) {
      SCOPED_TRACE(state);
      const ByteReport report = cache.Report();
      EXPECT_EQ(report.resident_bytes(), allocator.live_bytes);
      const std::int64_t in_use = report.resident_bytes() - report.reserved_bytes;
      EXPECT_GE(report.reserved_bytes, 0);
      EXPECT_GE(in_use, report.kept_bytes());
      const double occupancy = report.occupancy();
      EXPECT_TRUE(occupancy >= 0 && occupancy <= 1) << occupancy;  // NaN fails
      EXPECT_NEAR(occupancy * static_cast<double>(report.resident_bytes()),
                  static_cast<double>(in_use), 1e-3);
      const ByteReport of_layer = cache.ReportLayer(0).bytes;
      EXPECT_EQ(of_layer.occupancy(), occupancy);
      return in_use;
    };
    EXPECT_EQ(used("nothing"), 0);
    EXPECT_EQ(cache.Report().occupancy(), 0.0);
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 1).ok());
    const std::int64_t one = used("one row staged");
    EXPECT_GE(one, 2 * 2 * 64 * 4);
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 1, 199).ok());
    const std::vector<float> queries = cache_test::UniformRows(4 * 64 * 64, 5);
    ASSERT_TRUE(cache
                    .Observe(0, prompt.PositionView(136, 64),
                             HeadsView::HeadMajor(queries.data(), 4, 64, 64))
                    .ok());
    EXPECT_GE(used("half of the rows staged"), 200 * (one - 8));
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const std::int64_t half = used("half of the rows stored");
    EXPECT_GT(half, 0);
    for (std::int64_t row = 200; row < 400; ++row) {
      ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, row, 1).ok());
      used("a decode step");
    }
    const std::int64_t full = used("all rows");
    EXPECT_GT(full, half);
    ASSERT_TRUE(cache.TrimToPosition(250).ok());
    const std::int64_t trimmed = used("trimmed");
    EXPECT_LT(trimmed, full);
    ASSERT_TRUE(cache.TrimToPosition(0, Trim::kAllowInexact).ok());
    EXPECT_LT(used("trimmed to nothing"), trimmed);
    cache.Clear();
    EXPECT_EQ(used("cleared"), 0);
    EXPECT_EQ(allocator.live_bytes, 0);
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 1).ok());
    EXPECT_EQ(used("one row again"), one);
  }
}

// Room is a panel at a time: full blocks leave none, one row more leaves most of a panel.
TEST(Cases, U76_FullBlocksAreInUseToTheLastByte) {
  const LayerSpec layer = MakeLayer(1, 1, 128, 128);
  const Prompt prompt = MakePrompt(layer, 129, 6);
  Cache cache = MustCreate("none | kv=int8", {layer});
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 128).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.Report().occupancy(), 1.0);
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 128, 1).ok());
  const double room = 15 * 2 * 130;
  EXPECT_NEAR(cache.Report().occupancy(), 1 - room / ((128 + 16) * 2 * 130), 0.01);
}

}  // namespace
}  // namespace kvsieve
