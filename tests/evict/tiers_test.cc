// Rows in tiers: evict/tiers.h against a full sort, and decisions with a TierRule.
#include "evict/tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kvsieve/evict.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using evict::RowRange;
using evict::Ties;
using Tiers = std::vector<std::uint8_t>;

Tiers Assign(const std::vector<float>& smoothed, const std::vector<float>& raw,
             const std::vector<RowIndex>& rows, const std::vector<RowRange>& never_cold,
             const std::vector<std::int64_t>& cold_rows, Ties ties = Ties::kLowPosition) {
  evict::TierScratch scratch;
  Tiers tiers;
  evict::AssignTiers({smoothed, raw}, rows, never_cold, cold_rows, ties, &scratch, &tiers);
  return tiers;
}

TEST(Tiers, TheLowestRowsFillTheColdest) {
  const std::vector<float> scores = {5, 1, 4, 2, 3, 0};
  const std::vector<RowIndex> all = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(Assign(scores, scores, all, {}, {2}), (Tiers{0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(Assign(scores, scores, all, {}, {2, 1}), (Tiers{0, 1, 0, 1, 0, 2}));
  EXPECT_EQ(Assign(scores, scores, all, {{0, 2}}, {2, 1}), (Tiers{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(Assign(scores, scores, {0, 2, 5}, {}, {1}), (Tiers{0, 0, 1}));
}

TEST(Tiers, TooFewRowsFillTheColdestFirst) {
  const std::vector<float> scores = {5, 1, 4};
  EXPECT_EQ(Assign(scores, scores, {0, 1, 2}, {}, {2, 2}), (Tiers{1, 2, 2}));
  EXPECT_EQ(Assign(scores, scores, {0, 1, 2}, {{0, 3}}, {2, 2}), (Tiers{0, 0, 0}));
  EXPECT_EQ(Assign(scores, scores, {}, {}, {2}), Tiers{});
}

// A plateau of a max-pool: the score before pooling separates its rows, then the position.
TEST(Tiers, RowsAreOrderedAsTheyAreSelected) {
  const std::vector<float> plateau = {9, 9, 9, 9};
  const std::vector<float> peak = {2, 1, 9, 1};
  EXPECT_EQ(Assign(plateau, peak, {0, 1, 2, 3}, {}, {1}), (Tiers{0, 0, 0, 1}));
  EXPECT_EQ(Assign(plateau, peak, {0, 1, 2, 3}, {}, {1}, Ties::kHighPosition), (Tiers{0, 1, 0, 0}));
  EXPECT_EQ(Assign(plateau, peak, {0, 1, 2, 3}, {}, {1, 2}), (Tiers{1, 2, 0, 2}));
}

TEST(Tiers, AgreeWithAFullSort) {
  const unsigned seed = 11;
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", round " << round);
    const auto count = static_cast<std::size_t>(random() % 200);
    std::vector<float> smoothed(count);
    std::vector<float> raw(count);
    std::vector<RowIndex> rows;
    std::vector<RowRange> never_cold;
    for (std::size_t i = 0; i < count; ++i) {
      smoothed[i] = static_cast<float>(random() % 9);  // many ties
      raw[i] = static_cast<float>(random() % 5);
      if (random() % 4 != 0) rows.push_back(static_cast<RowIndex>(i));
      if (random() % 10 == 0) never_cold.push_back({static_cast<RowIndex>(i), RowIndex(i) + 1});
    }
    const std::vector<std::int64_t> cold_rows = {static_cast<std::int64_t>(random() % 80),
                                                 static_cast<std::int64_t>(random() % 40)};
    std::vector<std::size_t> order;  // places of candidates, lowest first
    for (std::size_t place = 0; place < rows.size(); ++place) {
      const bool warm = std::ranges::any_of(
          never_cold, [&](const RowRange& range) { return range.begin == rows[place]; });
      if (!warm) order.push_back(place);
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t place) {
        const auto row = static_cast<std::size_t>(rows[place]);
        return std::tuple(smoothed[row], raw[row], -rows[place]);
      };
      return key(a) < key(b);
    });
    Tiers expected(rows.size(), 0);
    for (std::size_t n = 0; n < order.size(); ++n) {
      const auto rank = static_cast<std::int64_t>(n);
      if (rank < cold_rows[1]) {
        expected[order[n]] = 2;
      } else if (rank < cold_rows[0] + cold_rows[1]) {
        expected[order[n]] = 1;
      }
    }
    EXPECT_EQ(Assign(smoothed, raw, rows, never_cold, cold_rows), expected);
  }
}

TEST(ColdRows, AreANumberOrAShareOfTheTokensRoundedUp) {
  EXPECT_EQ(ColdRows::Parse("12")->RowsOf(1000), 12);
  EXPECT_EQ(ColdRows::Parse("35%")->RowsOf(10), 4);
  EXPECT_EQ(ColdRows::Parse("12.5%")->ToString(), "12.5%");
  EXPECT_EQ(ColdRows::Parse("12")->ToString(), "12");
  for (const char* wrong : {"", "0", "-3", "0%", "101%", "many", "4x", "2147483648"}) {
    EXPECT_FALSE(ColdRows::Parse(wrong).ok()) << wrong;
  }
}

// recency ranks by position, so that tiers can be read off.
class Decision : public ::testing::Test {
 protected:
  Decision() : observed_(kvsieve::testing::RandomLayer({1, 1, 4, 4, 100, 64}, 5)) {}

  LayerDecision Decide(std::string_view spec, const TierRule& rule, TokenPos exact_before = 0) {
    Observation observation = observed_.observation();
    observation.exact_before = exact_before;
    SerialParallel serial;
    auto decisions =
        kvsieve::testing::MustMake(spec)->Decide({&observation, 1}, rule, serial, nullptr);
    EXPECT_TRUE(decisions.ok());
    return std::move(decisions->front());
  }
  static std::vector<TokenPos> InTier(const LayerDecision& decision, int tier) {
    std::vector<TokenPos> positions;
    const auto tiers = decision.keep.tiers(0);
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      if (tiers[i] == tier) positions.push_back(decision.keep.positions(0)[i]);
    }
    return positions;
  }
  static TierRule Rule(std::initializer_list<const char*> cold, std::int64_t exact_tail = 0) {
    TierRule rule;
    for (const char* rows : cold) rule.cold.push_back(*ColdRows::Parse(rows));
    rule.exact_tail = exact_tail;
    return rule;
  }

  kvsieve::testing::Observed observed_;
};

std::vector<TokenPos> Range(TokenPos first, TokenPos last) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(last - first + 1));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

TEST_F(Decision, SharesAreOfTheTokensAndSinksNeverCold) {
  const LayerDecision decision = Decide("recency(budget=50,sinks=4)", Rule({"10", "5%"}));
  EXPECT_EQ(decision.keep.rows(0), 50);
  EXPECT_EQ(InTier(decision, 2), Range(54, 58));
  EXPECT_EQ(InTier(decision, 1), Range(59, 68));
}

TEST_F(Decision, RowsThatAreStoredExactTakeNoPlaceInATier) {
  const LayerDecision decision =
      Decide("recency(budget=100%,sinks=0)", Rule({"80%", "10%"}, 15), 7);
  EXPECT_EQ(InTier(decision, 2), Range(7, 16));
  EXPECT_EQ(InTier(decision, 1), Range(17, 84));  // 68 of the 80 that were asked for
}

TEST_F(Decision, TiersNeedTheRankingWhenAllRowsStay) {
  const LayerDecision decision = Decide("snapkv(budget=100%)", Rule({"30%"}));
  EXPECT_TRUE(decision.scored);
  EXPECT_EQ(decision.keep.rows(0), 100);
  EXPECT_EQ(InTier(decision, 1).size(), 30U);
  EXPECT_LT(InTier(decision, 1).back(), 68);  // the window is protected
  EXPECT_GE(InTier(decision, 1).front(), 4);
  EXPECT_TRUE(Decide("snapkv(budget=100%)", {}).keep.tiers(0).empty());
}

TEST_F(Decision, FewerColdRowsAreASubset) {
  const auto few = InTier(Decide("snapkv(budget=70%)", Rule({"10%"})), 1);
  const auto more = InTier(Decide("snapkv(budget=70%)", Rule({"25%"})), 1);
  EXPECT_TRUE(std::includes(more.begin(), more.end(), few.begin(), few.end()));
  // What is dropped at a smaller budget is colder than what stays.
  const LayerDecision all = Decide("snapkv(budget=100%)", Rule({"30%"}));
  const LayerDecision kept = Decide("snapkv(budget=70%)", {});
  std::vector<TokenPos> warm = InTier(all, 0);
  EXPECT_EQ(warm,
            std::vector<TokenPos>(kept.keep.positions(0).begin(), kept.keep.positions(0).end()));
}

}  // namespace
}  // namespace kvsieve
