#include "evict/smoothing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/evict/oracle.h"

namespace kvsieve {
namespace {

using evict::Pool;
using evict::PoolKind;
using evict::PoolPad;

std::vector<float> Smoothed(const Pool& pool, const std::vector<float>& raw) {
  std::vector<float> smoothed(raw.size(), -1.0F);
  evict::Smooth(pool, raw, smoothed);
  return smoothed;
}

using Scores = std::vector<float>;

TEST(Smoothing, ASpikeBecomesAPlateau) {
  const Pool pool{PoolKind::kMax, 5, PoolPad::kExclude};
  EXPECT_EQ(Smoothed(pool, {0, 0, 0, 7, 0, 0, 0}), (Scores{0, 7, 7, 7, 7, 7, 0}));
}

// 0.6, 0.8, 1 ... are the nearest f32 of k/5: one division each.
TEST(Smoothing, ZeroPaddingCountsAndExcludedPaddingDoesNot) {
  const Scores constant(6, 1.0F);
  EXPECT_EQ(Smoothed({PoolKind::kAverage, 5, PoolPad::kZero}, constant),
            (Scores{0.6F, 0.8F, 1, 1, 0.8F, 0.6F}));
  EXPECT_EQ(Smoothed({PoolKind::kAverage, 5, PoolPad::kExclude}, constant), constant);
  EXPECT_EQ(Smoothed({PoolKind::kMax, 3, PoolPad::kZero}, {-1, -2, -3, -4}),
            (Scores{0, -1, -2, 0}));
  EXPECT_EQ(Smoothed({PoolKind::kMax, 3, PoolPad::kExclude}, {-1, -2, -3, -4}),
            (Scores{-1, -1, -2, -3}));
}

TEST(Smoothing, WidthOneIsTheIdentity) {
  const Scores raw = {3, 1, 2};
  EXPECT_EQ(Smoothed({PoolKind::kMax, 1, PoolPad::kExclude}, raw), raw);
  EXPECT_EQ(Smoothed({PoolKind::kAverage, 1, PoolPad::kZero}, raw), raw);
  EXPECT_EQ(Smoothed({PoolKind::kNone, 7, PoolPad::kExclude}, raw), raw);
}

TEST(Smoothing, EqualsTheOracleAtEveryWidthAndLength) {
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (const int rows : {0, 1, 2, 6, 7, 8, 63, 100}) {
    Scores raw(rows);
    for (float& score : raw) score = uniform(rng);
    for (const int width : {1, 3, 7, 15, 101, 1023}) {
      for (const PoolKind kind : {PoolKind::kNone, PoolKind::kMax, PoolKind::kAverage}) {
        for (const PoolPad pad : {PoolPad::kExclude, PoolPad::kZero}) {
          oracle::Options options;
          options.pool = kind == PoolKind::kNone ? "none" : kind == PoolKind::kMax ? "max" : "avg";
          options.width = width;
          options.pad_zero = pad == PoolPad::kZero;
          const auto expected = oracle::Smooth({raw.begin(), raw.end()}, options);
          const Scores actual = Smoothed({kind, width, pad}, raw);
          for (int i = 0; i < rows; ++i) {
            // A sum of min(width, rows) terms and one division, 2^-24 relative each.
            const double bound = expected[i] * (std::min(width, rows) + 1) * 0x1p-24;
            ASSERT_NEAR(actual[i], expected[i], bound) << rows << " rows, width " << width;
          }
        }
      }
    }
  }
}

// Values repeat, so that equal ones meet; a reach of 0 sees no row, one past the start all before.
TEST(Smoothing, TrailingMaxEqualsTheLargestOfTheRowsBefore) {
  constexpr std::uint64_t kSeed = 5;
  std::mt19937_64 rng(kSeed);
  for (const int rows : {0, 1, 2, 3, 64, 200}) {
    for (const int values : {1, 3, 1000}) {
      Scores raw(rows);
      for (float& score : raw) score = static_cast<float>(rng() % values);
      for (const int reach : {0, 1, 2, 3, 15, 64, 199, 200, 100000}) {
        Scores trailing(raw.size(), -1.0F);
        evict::TrailingMax(raw, reach, trailing);
        for (int i = 0; i < rows; ++i) {
          float largest = 0;
          for (int j = std::max(0, i - reach); j < i; ++j) largest = std::max(largest, raw[j]);
          ASSERT_EQ(trailing[i], largest)
              << "seed " << kSeed << ", " << rows << " rows, reach " << reach << ", row " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvsieve
