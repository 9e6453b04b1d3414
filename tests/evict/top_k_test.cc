// evict/top_k.h against a full sort.
#include "evict/top_k.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/evict/oracle.h"

namespace kvsieve {
namespace {

using evict::RowRange;
using evict::Ties;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<RowIndex> Select(const std::vector<float>& smoothed, const std::vector<float>& raw,
                             const std::vector<RowRange>& kept, std::int64_t best, Ties ties) {
  evict::TopKScratch scratch;
  std::vector<RowIndex> rows;
  evict::SelectRows({smoothed, raw}, kept, best, ties, &scratch, &rows);
  return rows;
}

std::vector<RowIndex> Best(const std::vector<float>& scores, std::int64_t best,
                           Ties ties = Ties::kLowPosition) {
  return Select(scores, scores, {}, best, ties);
}

using Rows = std::vector<RowIndex>;

TEST(TopK, KeepsTheHighestInAscendingOrder) {
  EXPECT_EQ(Best({5, 1, 4, 2, 3}, 3), (Rows{0, 2, 4}));
  EXPECT_EQ(Best({5, 1, 4, 2, 3}, 0), Rows{});
  EXPECT_EQ(Best({5, 1, 4, 2, 3}, 5), (Rows{0, 1, 2, 3, 4}));
}

TEST(TopK, TiesGoToTheLowerOrTheHigherPosition) {
  EXPECT_EQ(Best({1, 1, 1, 1}, 2), (Rows{0, 1}));
  EXPECT_EQ(Best({1, 1, 1, 1}, 2, Ties::kHighPosition), (Rows{2, 3}));
  EXPECT_EQ(Best({1, 2, 1, 1}, 2, Ties::kHighPosition), (Rows{1, 3}));
}

TEST(TopK, RawSeparatesEqualSmoothedScores) {
  const std::vector<float> plateau = {0, 9, 9, 9, 9, 9, 0};
  const std::vector<float> peak = {0, 1, 2, 9, 2, 1, 0};
  EXPECT_EQ(Select(plateau, peak, {}, 1, Ties::kLowPosition), Rows{3});
  EXPECT_EQ(Select(plateau, peak, {}, 2, Ties::kLowPosition), (Rows{2, 3}));
  EXPECT_EQ(Select(plateau, peak, {}, 2, Ties::kHighPosition), (Rows{3, 4}));
}

TEST(TopK, RanksNaNLowestAndZerosEqual) {
  EXPECT_EQ(Best({kNaN, -kInf, 1, kInf, -kNaN}, 3), (Rows{1, 2, 3}));
  EXPECT_EQ(Best({kNaN, -kInf, 1, kInf, -kNaN}, 4), (Rows{0, 1, 2, 3}));
  EXPECT_EQ(Best({-0.0F, 0.0F, -0.0F}, 1), Rows{0});
  EXPECT_EQ(Best({-0.0F, 0.0F, -0.0F}, 1, Ties::kHighPosition), Rows{2});
  EXPECT_EQ(Best({kNaN, kNaN, kNaN}, 2), (Rows{0, 1}));
}

TEST(TopK, SeparatesScoresOneUlpApart) {
  const float one = 1.0F;
  const float below = std::nextafter(one, 0.0F);
  std::vector<float> scores(1000, below);
  scores[777] = one;
  EXPECT_EQ(Best(scores, 1), Rows{777});
}

TEST(TopK, KeptRowsDoNotCompete) {
  EXPECT_EQ(Select({9, 9, 1, 2, 9}, {9, 9, 1, 2, 9}, {{0, 2}, {4, 5}}, 1, Ties::kLowPosition),
            (Rows{0, 1, 3, 4}));
}

// Scores of several kinds: smooth, few distinct values, special values, one octave, all bits.
std::vector<float> RandomScores(std::mt19937_64& rng, std::size_t rows) {
  std::vector<float> scores(rows);
  const auto kind = rng() % 5;
  std::normal_distribution<float> normal;
  const float special[] = {kNaN, kInf, -kInf, 0.0F, -0.0F, 1.0F, 1e-42F, -1e-42F};
  for (float& score : scores) {
    switch (kind) {
      case 0:
        score = std::exp(3 * normal(rng));
        break;
      case 1:
        score = static_cast<float>(rng() % 4);
        break;
      case 2:
        score = special[rng() % std::size(special)];
        break;
      case 3:
        score = 1.0F + static_cast<float>(rng() % 100000) * 0x1p-24F;
        break;
      default:
        score = std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
    }
  }
  return scores;
}

TEST(TopK, EqualsAFullSort) {
  constexpr std::uint64_t kSeed = 20240917;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 rng(kSeed);
  for (int trial = 0; trial < 3000; ++trial) {
    const std::size_t rows = trial % 10 == 0 ? 500 + rng() % 1500 : 1 + rng() % 80;
    const std::vector<float> smoothed = RandomScores(rng, rows);
    const std::vector<float> raw = RandomScores(rng, rows);
    oracle::Selection expected;
    expected.sinks = static_cast<std::int64_t>(rng() % (rows / 2 + 1));
    expected.newest = static_cast<std::int64_t>(rng() % (rows / 2 + 1));
    expected.ties_high = rng() % 2 == 1;
    const auto kept = expected.sinks + expected.newest;
    const auto best = static_cast<std::int64_t>(rng() % (rows - kept + 1));
    expected.budget = kept + best;
    const auto n = static_cast<RowIndex>(rows);
    std::vector<RowRange> ranges;
    if (expected.sinks > 0) ranges.push_back({0, expected.sinks});
    if (expected.newest > 0) ranges.push_back({n - expected.newest, n});
    ASSERT_EQ(Select(smoothed, raw, ranges, best,
                     expected.ties_high ? Ties::kHighPosition : Ties::kLowPosition),
              oracle::Keep(smoothed, raw, expected))
        << "trial " << trial << ", " << rows << " rows, best " << best;
  }
}

TEST(TopK, MoreRowsAreASuperset) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 rng(kSeed);
  for (int trial = 0; trial < 50; ++trial) {
    const std::vector<float> scores = RandomScores(rng, 300);
    Rows smaller;
    for (std::int64_t best = 0; best <= 300; best += 13) {
      const Rows larger = Best(scores, best);
      ASSERT_EQ(larger.size(), static_cast<std::size_t>(best));
      ASSERT_TRUE(std::includes(larger.begin(), larger.end(), smaller.begin(), smaller.end()));
      smaller = larger;
    }
  }
}

}  // namespace
}  // namespace kvsieve
