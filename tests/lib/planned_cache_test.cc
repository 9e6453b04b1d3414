// The life of a cache whose rows a plan gave their tiers.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/state_fixture.h"
#include "tests/lib/tier_plan_fixture.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve::tier_plan_test {
namespace {

using cache_test::AppendRows;
using cache_test::GatherHead;
using cache_test::GatherLayer;
using cache_test::MakeLayer;
using cache_test::MustAttend;
using cache_test::Prompt;
using cache_test::QueryRounding;
using cache_test::StateOf;
using cache_test::UniformRows;
using cache_test::WithReserve;

void ExpectAttends(const Cache& cache) {
  const LayerSpec& layer = cache.layer(0);
  const std::vector<TokenPos> positions = {cache.next_position() / 2, cache.next_position()};
  const std::vector<float> queries = UniformRows(layer.query_heads * 2 * layer.key_dim, 3);
  const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
  ExpectWithinKernelBound(layer, heads, queries, MustAttend(cache, 0, queries, positions),
                          oracle::Attend(layer, heads, queries, positions), QueryRounding::kByte);
}

void ExpectLoadsAsSaved(const Cache& cache, std::string_view spec, const Model& model) {
  Cache loaded = cache_test::MustCreate(spec, model.layers);
  const Status status = state_test::LoadBytes(state_test::Saved(cache), loaded);
  ASSERT_TRUE(status.ok()) << status.message();
  state_test::ExpectSame(loaded, cache);
}

// Of such a row the output is its value: to f32 it is as far from it as one that nobody reads.
TEST(PlannedRows, ARowThatHasAllOfTheAttentionStays) {
  constexpr std::int64_t kRows = 300;
  constexpr std::int64_t kNeedle = 100;
  constexpr int kDim = 64;
  const LayerSpec layer = MakeLayer(2, 1, kDim, kDim);
  for (const float nats : {6.0F, 13.0F, 14.0F, 17.0F, 30.0F, 100.0F}) {
    Model model({layer}, kRows, 82);
    Prompt& prompt = model.prompts[0];
    for (std::int64_t row = 0; row < kRows; ++row) prompt.keys[row * kDim] = 0;
    std::fill_n(prompt.keys.begin() + kNeedle * kDim, kDim, 0.0F);
    prompt.keys[kNeedle * kDim] = 8;
    for (float& q : model.queries[0]) q *= 0.3F;  // other rows differ by less than three nats
    for (std::size_t i = 0; i < model.queries[0].size(); i += kDim) {
      model.queries[0][i] = (nats + 6) / (8 * layer.scale);
    }
    for (const std::string& spec :
         {std::string("output_perturbation(budget=40)"),
          SpecOf(model.FullBytes() / 8, "", "kv=int8; kv=int4", " | exact_sinks=0"),
          SpecOf(1 << 30, "", "kv=bf16; kv=int4", " | exact_sinks=0")}) {
      const Cache cache = model.Finished(spec);
      EXPECT_NE(PlaceOfRows(cache, 0, 0, kRows)[kNeedle], kDropped) << spec << ", " << nats;
    }
  }
}

class TierCounts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(PlannedCache, TierCounts, ::testing::Range(1, 9));

// As many tiers at a time, until each codec was one.
TEST_P(TierCounts, EveryCodecIsATier) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 150, 81);
  const std::vector<std::string> keys = quant_test::EveryCodec(64, Side::kKey);
  const std::vector<std::string> values = quant_test::EveryCodec(64, Side::kValue);
  const auto count = static_cast<std::size_t>(GetParam());
  for (std::size_t first = 0; first < std::max(keys.size(), values.size()); first += count) {
    std::string tiers;
    for (std::size_t i = first; i < first + count; ++i) {
      tiers += StrCat(i == first ? "k=" : "; k=", keys[i % keys.size()],
                      ", v=", values[(7 * i) % values.size()]);
    }
    const std::string spec = SpecOf(model.FullBytes() / 4, ",window=16", tiers);
    SCOPED_TRACE(spec);
    const Cache cache = model.Finished(spec);
    if (cache.ReportLayer(0).note.empty()) {
      EXPECT_LE(cache.Report().kept_bytes(), model.FullBytes() / 4);
    }
    ExpectAttends(cache);
    ExpectLoadsAsSaved(cache, spec, model);
  }
}

class PlannedCache : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 300;
  PlannedCache()
      : model_({MakeLayer(4, 2, 64, 64)}, kRows, 83),
        spec_(SpecOf(model_.FullBytes() / 4, ",pool=none,drop_weight=1,power=1",
                     "k=center+turbo5, v=turbo5; k=center+turbo4, v=turbo4; k=turbo3, v=turbo2",
                     " | tail=10")) {}

  Prompt Later(std::int64_t rows) const {
    return cache_test::MakePrompt(model_.layers[0], rows, 84, kRows);
  }
  const Model model_;
  const std::string spec_;
};

TEST_F(PlannedCache, HasRowsInEveryTierAndDropsSome) {
  const Cache cache = model_.Finished(spec_);
  const auto places = PlaceOfRows(cache, 0, 0, kRows);
  for (const std::int32_t place : {kDropped, Cache::kExactRow, 0, 1, 2}) {
    EXPECT_GT(std::ranges::count(places, place), 0) << place;
  }
  EXPECT_EQ(std::ranges::count(places, Cache::kExactRow), 14);
  EXPECT_EQ(cache.oldest_exact_position(), kRows);
  ExpectAttends(cache);
}

// Rows of decode leave the tail for the first store of the spec.
TEST_F(PlannedCache, DecodeRowsGoToTheFirstTier) {
  Cache cache = model_.Finished(spec_);
  const auto before = PlaceOfRows(cache, 0, 1, kRows);
  const Prompt later = Later(50);
  for (std::int64_t t = 0; t < 50; ++t) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, later, t, 1).ok());
  }
  const auto after = PlaceOfRows(cache, 0, 1, kRows + 50);
  for (std::size_t r = 0; r < kRows + 50; ++r) {
    const std::int32_t expected = r < kRows - 10 ? before[r] : r < kRows + 40 ? 0 : -1;
    EXPECT_EQ(after[r], expected) << r;
  }
  ExpectAttends(cache);
  ExpectLoadsAsSaved(cache, spec_, model_);
}

TEST_F(PlannedCache, ForksGoOnByThemselves) {
  Cache cache = model_.Finished(spec_);
  Result<Cache> fork = cache.Fork();
  ASSERT_TRUE(fork.ok());
  const std::string held = StateOf(cache, WithReserve::kNo);
  EXPECT_EQ(StateOf(*fork, WithReserve::kNo), held);
  const Prompt later = Later(20);
  ASSERT_TRUE(AppendRows(*fork, 0, Phase::kDecode, later, 0, 20).ok());
  EXPECT_EQ(StateOf(cache, WithReserve::kNo), held);
  ExpectAttends(*fork);
}

TEST_F(PlannedCache, TrimsTakeRowsFromTheirTiers) {
  Cache cache = model_.Finished(spec_);
  const auto before = PlaceOfRows(cache, 0, 0, kRows);
  EXPECT_EQ(cache.TrimToPosition(150).error().code, ErrorCode::kNotExact);
  ASSERT_TRUE(cache.TrimToPosition(150, Trim::kAllowInexact).ok());
  auto expected = before;
  std::fill(expected.begin() + 150, expected.end(), kDropped);
  EXPECT_EQ(PlaceOfRows(cache, 0, 0, kRows), expected);
  ExpectAttends(cache);
}

TEST_F(PlannedCache, StagedPromptsAreSavedAndPlannedAlike) {
  const Prompt& prompt = model_.prompts[0];
  Cache cache = cache_test::MustCreate(spec_, model_.layers);
  cache_test::MustAppend(cache, 0, prompt, 70);
  const auto window = std::span(prompt.positions).last(kQueries);
  ASSERT_TRUE(
      cache.Observe(0, window, HeadsView::HeadMajor(model_.queries[0].data(), 4, kQueries, 64))
          .ok());
  Cache loaded = cache_test::MustCreate(spec_, model_.layers);
  ASSERT_TRUE(state_test::LoadBytes(state_test::Saved(cache), loaded).ok());
  ASSERT_TRUE(loaded.FinishPrefill().ok());
  EXPECT_EQ(StateOf(loaded, WithReserve::kNo), StateOf(model_.Finished(spec_), WithReserve::kNo));
}

// Queries look away from row 70, so that it is dropped and costs nothing. The heads share one
// budget: what one loses goes to the other.
TEST_F(PlannedCache, ARowFarLongerThanTheOthersTakesNoBytesFromThem) {
  Model model = model_;
  for (std::size_t q = 0; q < model.queries[0].size(); q += 64) model.queries[0][q] = 1;
  float* row = model.prompts[0].keys.data() + 70 * 64;
  std::fill_n(row, 64, 0.0F);
  row[0] = -40;
  const Cache before = model.Finished(spec_);
  row[0] = -1e10F;
  const Cache after = model.Finished(spec_);
  EXPECT_EQ(PlaceOfRows(after, 0, 0, kRows)[70], kDropped);
  for (int head = 0; head < 2; ++head) {
    const std::int64_t kept = before.ReportLayer(0).heads[head].kept_bytes();
    // The mean that a row of 40 moves, and errors measured with it or without, move prices by a few
    // parts in 100, and bytes by less; 84 are a row of the finest tier.
    EXPECT_NEAR(after.ReportLayer(0).heads[head].kept_bytes(), kept, 84 + kept / 50.0);
  }
}

TEST_F(PlannedCache, WithoutQueriesPlanningIsAnErrorThatChangesNothing) {
  Cache cache = cache_test::MustCreate(spec_, model_.layers);
  cache_test::MustAppend(cache, 0, model_.prompts[0]);
  const std::string before = StateOf(cache);
  const Status status = cache.FinishPrefill();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("268..299"), std::string_view::npos) << status.message();
  EXPECT_EQ(StateOf(cache), before);
}

}  // namespace
}  // namespace kvsieve::tier_plan_test
