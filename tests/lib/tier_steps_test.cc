// Steps of a plan in bytes against the lower convex hull of each row, walked in f64.
#include "lib/tier_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::OnEveryTarget;

// Rows with their losses on every rung.
struct Rows {
  Ladder ladder;
  std::vector<float> key, value, drop;

  std::size_t count() const { return drop.size(); }
  RowLossSpans spans() const { return {key, value, drop}; }
  float LossOn(int rung, std::size_t row) const {
    if (rung == 0) return drop[row];
    return key[row] * ladder.key_errors[rung] + value[row] * ladder.value_errors[rung];
  }
  std::vector<float> Steps() const {
    std::vector<float> steps(static_cast<std::size_t>(ladder.rungs) * count());
    FindSteps(ladder, spans(), steps.data());
    return steps;
  }
};

// Losses over 20 decades, some of them 0, some tiers worse than a smaller one.
Rows RandomRows(int rungs, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(0, 1);
  Rows rows;
  rows.ladder.rungs = rungs;
  for (int i = 1; i <= rungs; ++i) {
    rows.ladder.bytes[i] = rows.ladder.bytes[i - 1] + static_cast<float>(1 + random() % 60);
    rows.ladder.key_errors[i] = std::pow(10.0F, -4 * uniform(random));
    rows.ladder.value_errors[i] = std::pow(10.0F, -4 * uniform(random));
  }
  for (std::vector<float>* losses : {&rows.key, &rows.value, &rows.drop}) {
    for (std::size_t r = 0; r < count; ++r) {
      const bool none = random() % 16 == 0;
      losses->push_back(none ? 0.0F : std::pow(10.0F, 20 * uniform(random) - 18));
    }
  }
  return rows;
}

// The slope of the hull's edge to each rung: from a vertex the next one is where loss falls most
// per byte, the farthest of equals.
std::vector<double> HullSlopes(const Rows& rows, std::size_t row) {
  const int rungs = rows.ladder.rungs;
  std::vector<double> slopes(static_cast<std::size_t>(rungs));
  for (int from = 0; from < rungs;) {
    int next = from + 1;
    double best = -std::numeric_limits<double>::infinity();
    for (int to = from + 1; to <= rungs; ++to) {
      const double gain = static_cast<double>(rows.LossOn(from, row)) - rows.LossOn(to, row);
      const double slope = gain / (rows.ladder.bytes[to] - rows.ladder.bytes[from]);
      if (slope < best) continue;
      best = slope;
      next = to;
    }
    std::fill(slopes.begin() + from, slopes.begin() + next, best);
    from = next;
  }
  return slopes;
}

// A slope is a difference, rounded, times an inverse, rounded: within 4 * 2^-24 of itself, and
// least and most of such numbers are too.
TEST(TierSteps, AreTheSlopesOfTheLowerHull) {
  OnEveryTarget([] {
    for (int rungs = 1; rungs <= kMaxRungs; ++rungs) {
      for (const std::size_t count : {1U, 3U, 15U, 16U, 17U, 64U, 131U}) {
        const Rows rows = RandomRows(rungs, count, 100 * rungs + count);
        const std::vector<float> steps = rows.Steps();
        for (std::size_t r = 0; r < count; ++r) {
          const std::vector<double> slopes = HullSlopes(rows, r);
          for (int i = 0; i < rungs; ++i) {
            const double slope = slopes[static_cast<std::size_t>(i)];
            ASSERT_NEAR(steps[static_cast<std::size_t>(i) * count + r], slope,
                        4 * 0x1p-24 * std::abs(slope))
                << rungs << " rungs, row " << r << " of " << count << ", rung " << i + 1;
          }
        }
      }
    }
  });
}

TEST(TierSteps, NeverIncrease) {
  OnEveryTarget([] {
    const Rows rows = RandomRows(8, 1000, 7);
    const std::vector<float> steps = rows.Steps();
    for (std::size_t i = 1000; i < steps.size(); ++i) EXPECT_LE(steps[i], steps[i - 1000]) << i;
  });
}

TEST(TierSteps, RungsAboveTheHullHaveTheStepOfTheOneThatOvertakesThem) {
  OnEveryTarget([] {
    Rows rows;
    rows.ladder.rungs = 4;
    rows.ladder.bytes = {0, 8, 16, 32, 48};
    rows.ladder.key_errors = {0, 9, 8, 1, 0.5};
    rows.key = {1};
    rows.value = {0};
    rows.drop = {17};
    // 17 -> 9 over 8 bytes, 9 -> 1 over 24, which passes 8, then 1 -> 0.5 over 16.
    EXPECT_EQ(rows.Steps(), (std::vector<float>{1, 1.0F / 24 * 8, 1.0F / 24 * 8, 0.5F / 16}));
    rows.drop = {9.5};  // now the first rung is above the edge from nothing to the third
    const float edge = 8.5F * (1.0F / 32);
    EXPECT_EQ(rows.Steps(), (std::vector<float>{edge, edge, edge, 0.5F / 16}));
  });
}

TEST(TierSteps, ATierThatLosesMoreThanASmallerOneHasANegativeStep) {
  OnEveryTarget([] {
    Rows rows;
    rows.ladder.rungs = 2;
    rows.ladder.bytes = {0, 16, 32};
    rows.ladder.value_errors = {0, 1, 3};
    rows.key = {0};
    rows.value = {8};
    rows.drop = {40};
    EXPECT_EQ(rows.Steps(), (std::vector<float>{2, -1}));
  });
}

// Stand on rung #{steps >= price}: no other rung costs less, but for what rounding of steps leaves:
// 4 * 2^-24 of each slope, over all bytes.
TEST(TierSteps, CountTheRungThatCostsLeastAtAPrice) {
  const Rows rows = RandomRows(5, 300, 21);
  const std::vector<float> steps = rows.Steps();
  const double all_bytes = rows.ladder.bytes[5];
  for (std::size_t r = 0; r < rows.count(); ++r) {
    for (const float price : steps) {
      if (!(price >= 0)) continue;
      int rung = 0;
      for (std::size_t i = 0; i < 5; ++i) rung += steps[i * rows.count() + r] >= price ? 1 : 0;
      const auto cost = [&](int i) {
        return rows.LossOn(i, r) + double{price} * rows.ladder.bytes[static_cast<std::size_t>(i)];
      };
      for (int i = 0; i <= 5; ++i) {
        const double rounding = 8 * 0x1p-24 * (double{price} * all_bytes + rows.LossOn(i, r));
        ASSERT_LE(cost(rung), cost(i) + rounding) << "row " << r << ", price " << price;
      }
    }
  }
}

TEST(TierSteps, LargestLossesStayFinite) {
  OnEveryTarget([] {
    Rows rows = RandomRows(kMaxRungs, 40, 3);
    for (std::vector<float>* losses : {&rows.key, &rows.value, &rows.drop}) {
      std::fill(losses->begin(), losses->end(), 1e30F);
    }
    rows.ladder.key_errors.fill(1e6F);
    rows.ladder.value_errors.fill(1e6F);
    for (const float step : rows.Steps()) EXPECT_TRUE(std::isfinite(step));
  });
}

TEST(TierSteps, AreTheSameBitsOnEveryTargetAndAtEveryRemainder) {
  const Rows rows = RandomRows(6, 200, 5);
  const std::size_t count = rows.count();
  std::vector<float> expected;
  OnEveryTarget([&] {
    const std::vector<float> steps = rows.Steps();
    if (expected.empty()) expected = steps;
    const auto same = [](float a, float b) {
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    };
    ASSERT_TRUE(std::ranges::equal(steps, expected, same));
    for (std::size_t first = 0; first < 20; ++first) {
      Rows part;
      part.ladder = rows.ladder;
      const std::size_t size = first * 7 % 37;
      const auto cut = [&](const std::vector<float>& losses) {
        const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(first);
        return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(size));
      };
      part.key = cut(rows.key);
      part.value = cut(rows.value);
      part.drop = cut(rows.drop);
      const std::vector<float> of_part = part.Steps();
      for (std::size_t i = 0; i < of_part.size(); ++i) {
        const float whole = expected[i / size * count + first + i % size];
        ASSERT_TRUE(same(of_part[i], whole)) << first << ", " << size << ", " << i;
      }
    }
  });
}

TEST(CountAtLeast, CountsLikeALoop) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kinds[] = {-kInfinity, -2, -0.0F, 0, 1e-42F, 1, 3e38F, kInfinity};
  std::mt19937 random(9);
  OnEveryTarget([&] {
    for (std::size_t size = 0; size < 150; ++size) {
      std::vector<float> values(size);
      for (float& value : values) value = kinds[random() % std::size(kinds)];
      for (const float least : kinds) {
        const auto loop = std::ranges::count_if(values, [&](float v) { return v >= least; });
        ASSERT_EQ(CountAtLeast(values, least), loop) << size << " values, at least " << least;
      }
    }
  });
}

}  // namespace
}  // namespace kvsieve
