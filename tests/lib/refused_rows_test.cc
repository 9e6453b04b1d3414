// Rows that one tier of a plan cannot hold go to another that can.
#include "lib/refused_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/tier_plan_fixture.h"

namespace kvsieve::tier_plan_test {
namespace {

using cache_test::GatherHead;
using cache_test::MakeLayer;
using cache_test::MustParse;

constexpr int kDim = 32;
constexpr std::int64_t kRows = 120;

// Queries do not see the first element of keys: what stands there changes no attention.
Model MakeModel() {
  Model model({MakeLayer(4, 2, kDim, kDim)}, kRows, 5);
  for (std::size_t i = 0; i < model.queries[0].size(); i += kDim) model.queries[0][i] = 0;
  return model;
}

// That element of a row.
float& Key(Model& model, int head, std::int64_t row) {
  return model.prompts[0].keys[static_cast<std::size_t>((head * kRows + row) * kDim)];
}
float& Value(Model& model, int head, std::int64_t row) {
  return model.prompts[0].values[static_cast<std::size_t>((head * kRows + row) * kDim)];
}

constexpr const char* kNoExactRows = " | exact_sinks=0";

TEST(RefusedRows, GoToTheNextTierThatHoldsThem) {
  Model model = MakeModel();
  Value(model, 1, 40) = 1e6F;
  Value(model, 0, 50) = -1e6F;
  const Cache cache = model.Finished(SpecOf(1 << 30, "", "kv=f16; kv=int8; kv=int4", kNoExactRows));
  for (int head = 0; head < 2; ++head) {
    const std::int64_t row = head == 0 ? 50 : 40;
    std::vector<std::int32_t> expected(kRows, 0);
    expected[static_cast<std::size_t>(row)] = 1;
    EXPECT_EQ(PlaceOfRows(cache, 0, head, kRows), expected);
    // int8 is off by half a step, the 127th part of the largest, whose bf16 is off by 2^-9.
    const double bound = 1e6 / 254 + 1e6 * 0x1p-8;
    EXPECT_NEAR(GatherHead(cache, 0, head).values[static_cast<std::size_t>(row * kDim)],
                head == 0 ? -1e6 : 1e6, bound);
  }
}

TEST(RefusedRows, BudgetsAreMetAllTheSame) {
  Model model = MakeModel();
  for (std::int64_t row = 10; row < kRows; row += 7) Key(model, 1, row) = 1e6F;
  const char* tiers = "kv=f16; kv=int8; kv=q4_0; kv=int2";
  const std::int64_t least =
      model.Finished(SpecOf(1, "", tiers, kNoExactRows)).Report().kept_bytes();
  int held = 0;
  for (std::int64_t budget = least; budget < model.FullBytes(); budget += 700) {
    const Cache cache = model.Finished(SpecOf(budget, "", tiers, kNoExactRows));
    EXPECT_LE(cache.Report().kept_bytes(), budget);
    const std::vector<std::int32_t> places = PlaceOfRows(cache, 0, 1, kRows);
    for (std::int64_t row = 10; row < kRows; row += 7) {
      const std::int32_t place = places[static_cast<std::size_t>(row)];
      EXPECT_TRUE(place == kDropped || place == 1 || place == 3) << place;  // q4_0 ends at 524032
      held += place != kDropped;
    }
  }
  EXPECT_GT(held, 100);
}

TEST(RefusedRows, OfTwoTiersWithAsManyBytesTheOneThatHoldsMoreIsUsed) {
  Model model = MakeModel();
  Value(model, 0, 40) = 1e6F;
  for (const auto& [tiers, place] : {std::pair{"kv=f16; kv=bf16", 1}, {"kv=bf16; kv=f16", 0}}) {
    const Cache cache = model.Finished(SpecOf(1 << 30, "", tiers, kNoExactRows));
    EXPECT_EQ(PlaceOfRows(cache, 0, 0, kRows), std::vector<std::int32_t>(kRows, place)) << tiers;
    EXPECT_EQ(PlaceOfRows(cache, 0, 1, kRows), std::vector<std::int32_t>(kRows, 0)) << tiers;
  }
}

// The window's rows are in the coarsest tier of 4 bits or more, the sinks in the finest.
TEST(RefusedRows, ThatMustStayAreInAFinerTierOrElseInACoarserOne) {
  Model model = MakeModel();
  Key(model, 0, kRows - 1) = 1e6F;
  Key(model, 0, 2) = 1e6F;
  const char* more = ",window=4,sinks=4";
  const Cache finer = model.Finished(SpecOf(1, more, "kv=int8; kv=q4_0", kNoExactRows));
  EXPECT_EQ(PlaceOfRows(finer, 0, 0, kRows)[kRows - 1], 0);
  EXPECT_EQ(PlaceOfRows(finer, 0, 0, kRows)[kRows - 2], 1);
  const Cache coarser = model.Finished(SpecOf(1, more, "kv=f16; kv=int8", kNoExactRows));
  EXPECT_EQ(PlaceOfRows(coarser, 0, 0, kRows)[2], 1);
  EXPECT_EQ(PlaceOfRows(coarser, 0, 0, kRows)[3], 0);
}

TEST(RefusedRows, ATierThatHoldsNoRowOfAHeadIsNotUsedThere) {
  Model model = MakeModel();
  for (std::int64_t i = 0; i < kRows * kDim; ++i) model.prompts[0].values[i] *= 1e6F;
  // Measured on no rows, q4_0 would lose nothing, and int8 gain nothing.
  for (const auto& [tiers, place] :
       {std::pair{"kv=f16; kv=int8", 1}, {"kv=int8; kv=q4_0; kv=int2", 0}}) {
    const Cache cache = model.Finished(SpecOf(1 << 30, "", tiers, kNoExactRows));
    EXPECT_EQ(PlaceOfRows(cache, 0, 0, kRows), std::vector<std::int32_t>(kRows, place)) << tiers;
    EXPECT_EQ(PlaceOfRows(cache, 0, 1, kRows), std::vector<std::int32_t>(kRows, 0)) << tiers;
  }
}

TEST(RefusedRows, OfAllTiersAreNamed) {
  Model model = MakeModel();
  model.layers[0].layer = 3;
  Key(model, 1, 40) = 1e7F;
  for (const char* tiers : {"kv=f16; kv=q4_0", "kv=f16"}) {
    Cache cache = model.Staged(SpecOf(1 << 30, "", tiers, kNoExactRows));
    const Status finished = cache.FinishPrefill();
    ASSERT_FALSE(finished.ok()) << tiers;
    EXPECT_EQ(finished.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(finished.message().find("layer 3, head 1: position 40: no tier can hold"),
              std::string::npos)
        << finished.message();
  }
  // Exact rows are in no tier.
  Key(model, 1, 40) = 1;
  Key(model, 1, 3) = 1e7F;
  model.Finished(SpecOf(1 << 30, "", "kv=f16; kv=q4_0", " | exact_sinks=4"));
}

// Rows of a head that says how large its elements are, and counts how often it is read.
class Counted final : public RowSource {
 public:
  explicit Counted(std::vector<float> elements) : elements_(std::move(elements)) {
    for (const float x : elements_) largest_ = std::max(largest_, std::fabs(x));
  }
  std::int64_t rows() const override { return std::ssize(elements_) / kDim; }
  int dim() const override { return kDim; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    ++reads_;
    std::copy_n(elements_.begin() + first * kDim, count * kDim, out);
  }
  float LargestMagnitude() const override { return largest_; }
  int reads() const { return reads_; }

 private:
  std::vector<float> elements_;
  float largest_ = 0;
  mutable int reads_ = 0;
};

std::vector<RowIndex> Refused(const std::string& chain, const Counted& keys) {
  const LayerSpec layer = MakeLayer(1, 1, kDim, kDim);
  const auto store =
      BuildStore(MustParse(StrCat("none | k=", chain, ", v=int8"))->main_store(), layer);
  EXPECT_TRUE(store.ok()) << store.message();
  const Counted values(std::vector<float>(static_cast<std::size_t>(keys.rows()) * kDim, 1.0F));
  const std::vector<RowIndex> refused = RefusedRows(*store, {&keys, &values, {}}, 1, keys.rows());
  EXPECT_EQ(values.reads(), 0);
  return refused;
}

// A transform may bring a row that f16 holds beyond it, or back.
TEST(RefusedRows, AreThoseBesideTheOthersBehindTheTransforms) {
  const auto rows_of = [](const std::vector<float>& sizes) {
    std::vector<float> elements;
    for (const float size : sizes) elements.insert(elements.end(), kDim, size);
    return elements;
  };
  const Counted plain(rows_of({7e4F, 7e4F, 6e4F, -6e4F, 6e4F}));
  EXPECT_EQ(Refused("f16", plain), std::vector<RowIndex>{1});  // of rows 1 to 4
  // The mean of these four is 32500: -6e4 minus that is beyond.
  EXPECT_EQ(Refused("center+f16", plain), std::vector<RowIndex>{3});
  // Rotated, equal elements come to between sqrt(2) and sqrt(32) times their size in one of them.
  EXPECT_EQ(Refused("hadamard+f16", Counted(rows_of({1, 1e4F, 6e4F}))), std::vector<RowIndex>{2});
  // What one transform refuses is not what it learns from.
  EXPECT_EQ(Refused("channel_scale+f16", Counted(rows_of({1, 0x1p20F, 0x1p25F, 1}))),
            std::vector<RowIndex>{2});
  EXPECT_TRUE(Refused("int8", plain).empty());
}

TEST(RefusedRows, AreNotLookedForWhereElementsAreSmall) {
  // Twice this times sqrt(32) is below 65504.
  const Counted small(std::vector<float>(64 * kDim, 5700.0F));
  EXPECT_TRUE(Refused("center+hadamard+f16", small).empty());
  EXPECT_EQ(small.reads(), 0);
  const Counted large(std::vector<float>(64 * kDim, 5900.0F));
  EXPECT_TRUE(Refused("center+hadamard+f16", large).empty());
  EXPECT_GT(large.reads(), 0);
}

}  // namespace
}  // namespace kvsieve::tier_plan_test
