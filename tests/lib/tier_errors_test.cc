// What tiers lose, measured on a sample, against rows that a cache stored and gave back.
#include "lib/tier_errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/tier_plan_fixture.h"

namespace kvsieve::tier_plan_test {
namespace {

using cache_test::GatherHead;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustParse;
using cache_test::Prompt;

// Rows with a mean of their own, which counts for nothing in keys.
Prompt PromptOf(const LayerSpec& layer, std::int64_t rows) {
  Prompt prompt = MakePrompt(layer, rows, 7);
  for (std::size_t i = 0; i < prompt.keys.size(); ++i) prompt.keys[i] += i % 3 == 0 ? 4.0F : 0.0F;
  if (layer.value_is_key_prefix) {
    prompt.values = cache_test::KeyPrefixes(prompt.keys, layer.key_dim, layer.value_dim);
  }
  return prompt;
}

TierErrors Measured(const std::string& store, const Prompt& prompt, RowIndex first, RowIndex end) {
  const LayerSpec& layer = prompt.layer;
  const auto built = BuildStore(MustParse("none | " + store)->main_store(), layer);
  EXPECT_TRUE(built.ok()) << store;
  const PlainRows keys(prompt.keys.data(), prompt.rows(), layer.key_dim);
  const PlainRows values(prompt.values.data(), prompt.rows(), layer.value_dim);
  const auto errors = MeasureErrors(*built, {&keys, &values, prompt.positions}, first, end);
  EXPECT_TRUE(errors.ok()) << (errors.ok() ? "" : errors.message());
  return *errors;
}

// Of all rows of head 0 as a cache stores them.
TierErrors OfCache(const std::string& store, const Prompt& prompt) {
  Cache cache =
      cache_test::MustCreate(StrCat("none | ", store, " | exact_sinks=0"), {prompt.layer});
  cache_test::MustAppend(cache, 0, prompt);
  EXPECT_TRUE(cache.FinishPrefill().ok());
  const oracle::HeadRows stored = GatherHead(cache, 0, 0);
  const auto rows = static_cast<std::size_t>(prompt.rows());
  const auto relative = [&](const std::vector<float>& exact, const std::vector<float>& held,
                            std::size_t dim, bool around_mean) {
    double error = 0;
    double square = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      double mean = 0;
      for (std::size_t r = 0; r < rows; ++r) mean += exact[r * dim + d];
      mean = around_mean ? mean / static_cast<double>(rows) : 0;
      for (std::size_t r = 0; r < rows; ++r) {
        const double x = exact[r * dim + d];
        error += (x - held[r * dim + d]) * (x - held[r * dim + d]);
        square += (x - mean) * (x - mean);
      }
    }
    return static_cast<float>(error / square);
  };
  return {relative(prompt.keys, stored.keys, static_cast<std::size_t>(prompt.layer.key_dim), true),
          relative(prompt.values, stored.values, static_cast<std::size_t>(prompt.layer.value_dim),
                   false)};
}

// Up to 64 rows are the sample; sums of doubles, in another order, rounded to f32 at the end.
TEST(TierErrors, AreThoseOfTheStoredRows) {
  for (const std::int64_t rows : {1, 17, 64}) {
    const Prompt prompt = PromptOf(MakeLayer(2, 1, 64, 32), rows);
    for (const char* store :
         {"kv=f16", "kv=int8", "k=center+turbo3, v=turbo2", "kv=int2", "k=int4, v=q4_0"}) {
      SCOPED_TRACE(::testing::Message() << store << ", " << rows << " rows");
      if (rows == 1 && std::string(store).find("center") != std::string::npos) continue;
      const TierErrors measured = Measured(store, prompt, 0, rows);
      const TierErrors expected = OfCache(store, prompt);
      if (rows > 1) {  // of one there is no spread
        EXPECT_NEAR(measured.key, expected.key, 1e-6F * expected.key);
      }
      EXPECT_NEAR(measured.value, expected.value, 1e-6F * expected.value);
    }
  }
}

TEST(TierErrors, WhereValuesLieInKeysTheyHaveTheirErrors) {
  LayerSpec layer = MakeLayer(4, 1, 64, 48);
  layer.value_is_key_prefix = true;
  const Prompt prompt = PromptOf(layer, 60);
  const TierErrors measured = Measured("kv=int4", prompt, 0, 60);
  const TierErrors expected = OfCache("kv=int4", prompt);
  EXPECT_NEAR(measured.key, expected.key, 1e-6F * expected.key);
  EXPECT_NEAR(measured.value, expected.value, 1e-6F * expected.value);
}

// 64 of 1000 rows of 64 dims: 4096 errors, so a mean square is good to a few parts in 100.
TEST(TierErrors, ASampleTellsOfAllRows) {
  const Prompt prompt = PromptOf(MakeLayer(2, 1, 64, 64), 1000);
  for (const char* store : {"kv=int4", "k=center+turbo4, v=turbo3", "kv=channel | tail=32"}) {
    const TierErrors measured = Measured(store, prompt, 0, 1000);
    const TierErrors expected = OfCache(store, prompt);
    EXPECT_NEAR(measured.key, expected.key, 0.2F * expected.key) << store;
    EXPECT_NEAR(measured.value, expected.value, 0.2F * expected.value) << store;
  }
}

// A row that int2 holds without error, and a million times as long as the others: squares that
// contain it would say that int2 loses nothing. Rows 0, 1, ... are the sample.
TEST(TierErrors, ARowFarLongerThanTheOthersIsNotAsked) {
  for (const char* store : {"kv=int2", "k=center+turbo3, v=turbo2", "k=center+int4, v=int8"}) {
    Prompt prompt = PromptOf(MakeLayer(2, 1, 32, 32), 60);
    const TierErrors before = Measured(store, prompt, 0, 60);
    for (std::size_t d = 0; d < 32; ++d) {
      prompt.keys[20 * 32 + d] = prompt.values[20 * 32 + d] = d % 2 == 0 ? 1e6F : -1e6F;
    }
    const TierErrors after = Measured(store, prompt, 0, 60);
    // 59 rows tell what 60 did to a few parts in 100.
    EXPECT_NEAR(after.key, before.key, 0.1F * before.key) << store;
    EXPECT_NEAR(after.value, before.value, 0.1F * before.value) << store;
  }
}

TEST(TierErrors, OnlyRowsOfTheRangeAreRead) {
  Prompt prompt = PromptOf(MakeLayer(2, 1, 32, 32), 200);
  const TierErrors before = Measured("kv=int4", prompt, 30, 150);
  for (std::size_t i = 0; i < prompt.keys.size(); ++i) {
    if (i < 30 * 32 || i >= 150 * 32) prompt.keys[i] = prompt.values[i] = 1e9F;
  }
  const TierErrors after = Measured("kv=int4", prompt, 30, 150);
  EXPECT_EQ(after.key, before.key);
  EXPECT_EQ(after.value, before.value);
}

// Row 40 of 90 is number 29 of a sample of 64: no row of the head by that number. All are so long
// that it is typical.
TEST(TierErrors, ARowThatAStoreCannotHoldIsNamedByItsSideAndSample) {
  Prompt prompt = PromptOf(MakeLayer(2, 1, 32, 32), 90);
  for (float& value : prompt.values) value = value > 0 ? 6e4F : -6e4F;
  prompt.values[40 * 32] = 1e5F;
  const auto store = BuildStore(MustParse("none | k=int8, v=f16")->main_store(), prompt.layer);
  ASSERT_TRUE(store.ok());
  const PlainRows keys(prompt.keys.data(), 90, 32);
  const PlainRows values(prompt.values.data(), 90, 32);
  const auto errors = MeasureErrors(*store, {&keys, &values, prompt.positions}, 0, 90);
  ASSERT_FALSE(errors.ok());
  EXPECT_TRUE(
      errors.message().starts_with("values, of 64 sampled rows row 29, element 0 is 1e+05;"))
      << errors.message();
}

TEST(TierErrors, NothingIsLostOfNothing) {
  Prompt prompt = PromptOf(MakeLayer(2, 1, 32, 32), 20);
  EXPECT_EQ(Measured("kv=int2", prompt, 7, 7).key, 0.0F);
  EXPECT_EQ(Measured("kv=int2", prompt, 7, 7).value, 0.0F);
  std::fill(prompt.keys.begin(), prompt.keys.end(), 1.0F);
  std::fill(prompt.values.begin(), prompt.values.end(), 0.0F);
  EXPECT_EQ(Measured("kv=int2", prompt, 0, 20).key, 0.0F);
  EXPECT_EQ(Measured("kv=int2", prompt, 0, 20).value, 0.0F);
}

}  // namespace
}  // namespace kvsieve::tier_plan_test
