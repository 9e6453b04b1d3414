// What waterfill says of each row, on every target.
#include "evict/waterfill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "kvsieve/targets.h"
#include "tests/evict/fixtures.h"
#include "tests/evict/loss_oracle.h"

namespace kvsieve {
namespace {

using oracle::LossOptions;
using testing::LayerShape;
using testing::Observed;
using testing::RandomLayer;
using testing::Storage;

class WaterfillTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(SelectTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SelectTarget({}).ok()); }
};

INSTANTIATE_TEST_SUITE_P(Targets, WaterfillTest, ::testing::ValuesIn(SupportedTargets()),
                         [](const auto& target) { return std::string(target.param); });

std::string SpecOf(const LossOptions& options) {
  std::string pool = "none";
  if (options.pool.pool != "none") {
    pool = StrCat(options.pool.pool, ":", options.pool.width,
                  ",pool_pad=", options.pool.pad_zero ? "zero" : "exclude");
  }
  std::string follow;
  if (options.follow > 0) {
    follow = StrCat(",follow=", options.follow,
                    ",follow_weight=", std::to_string(options.follow_weight));
  }
  return StrCat("waterfill(budget=8x,window=", options.window, ",pool=", pool,
                ",power=", std::to_string(options.power),
                ",drop_weight=", std::to_string(options.drop_weight), ",sinks=", options.sinks,
                ",level=", std::to_string(options.level), ",floor=", std::to_string(options.floor),
                follow, ")");
}

RowLosses Estimate(const LossOptions& options, Observation observation,
                   ScoreScratch* scratch = nullptr, Parallel* parallel = nullptr) {
  observation.exact_before = options.exact_before;
  const auto evictor = testing::MustMake(SpecOf(options));
  SerialParallel serial;
  RowLosses losses;
  const Status status = evictor->loss_estimator()->Estimate(
      observation, parallel != nullptr ? *parallel : serial, scratch, &losses);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return losses;
}

void ExpectSame(const RowLosses& a, const RowLosses& b) {
  EXPECT_EQ(a.head_begin, b.head_begin);
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.value, b.value);
  EXPECT_EQ(a.drop, b.drop);
}

void ExpectNearOracle(const oracle::Layer& layer, const LossOptions& options,
                      const Storage& storage = {}) {
  const RowLosses losses = Estimate(options, Observed(layer, storage).observation());
  const auto expected = oracle::Losses(layer, options);
  ASSERT_EQ(losses.drop.size(), static_cast<std::size_t>(layer.rows * layer.spec.kv_heads));
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    for (std::int64_t j = 0; j < layer.rows; ++j) {
      const auto at = static_cast<std::size_t>(losses.head_begin[h] + j);
      const auto near = [&](float loss, const oracle::Range& range, const char* what) {
        ASSERT_TRUE(loss >= range.least && loss <= range.most)
            << what << " of head " << h << " row " << j << ": " << loss << " not in ["
            << range.least << ", " << range.most << "]";
      };
      near(losses.key[at], expected[h].key[j], "key");
      near(losses.value[at], expected[h].value[j], "value");
      near(losses.drop[at], expected[h].drop[j], "drop");
    }
  }
}

// The bounds would let nothing through: most rows are known to a part in 10^3, and with the mean
// to the power of 1 beside the row's 0.5, to three times that.
TEST(LossOracle, IsNarrow) {
  for (const LossOptions& options :
       {LossOptions(), LossOptions{.level = 1, .floor = 1, .follow = 9, .follow_weight = 1}}) {
    const double width = 0.001 * (options.power + options.level) / 0.5;
    int narrow = 0;
    int all = 0;
    for (const oracle::HeadLosses& head :
         oracle::Losses(RandomLayer({4, 2, 64, 48, 200, 32}, 3), options)) {
      for (const auto* ranges : {&head.key, &head.value, &head.drop}) {
        for (const oracle::Range& range : *ranges) {
          narrow += range.most < range.least * (1 + width) ? 1 : 0;
          ++all;
        }
      }
    }
    EXPECT_GT(narrow, all * 4 / 5);
  }
}

TEST_P(WaterfillTest, EqualsTheOracleForEveryHeadLayout) {
  for (const auto& [query_heads, kv_heads] :
       std::vector<std::pair<int, int>>{{1, 1}, {9, 3}, {8, 1}, {14, 2}}) {
    SCOPED_TRACE(::testing::Message() << query_heads << "/" << kv_heads);
    ExpectNearOracle(RandomLayer({query_heads, kv_heads, 33, 48, 130, 40}, 11), {.window = 9});
  }
}

TEST_P(WaterfillTest, EqualsTheOracleForEveryDim) {
  for (const int dim : {1, 33, 64, 80, 128, 192, 256}) {
    SCOPED_TRACE(dim);
    ExpectNearOracle(RandomLayer({4, 2, dim, dim == 192 ? 128 : dim + 7, 120, 16}, 21),
                     {.window = 16});
  }
}

// Windows longer than the prompt are clipped.
TEST_P(WaterfillTest, EqualsTheOracleForEveryLength) {
  for (const int rows : {0, 1, 2, 15, 16, 31, 32, 33, 47, 63, 64, 65, 500}) {
    SCOPED_TRACE(rows);
    ExpectNearOracle(RandomLayer({2, 1, 40, 24, rows, 32}, 31), {});
  }
}

TEST_P(WaterfillTest, EqualsTheOracleForEveryOption) {
  const oracle::Layer layer = RandomLayer({6, 2, 48, 32, 150, 48}, 41);
  for (const int window : {1, 2, 17, 48}) ExpectNearOracle(layer, {.window = window});
  for (const double power : {0.0, 0.25, 1.0, 2.0}) ExpectNearOracle(layer, {.power = power});
  for (const double weight : {0.0, 0.5, 16.0}) ExpectNearOracle(layer, {.drop_weight = weight});
  for (const oracle::Options& pool :
       std::vector<oracle::Options>{{.pool = "none"},
                                    {.pool = "max", .width = 1},
                                    {.pool = "max", .width = 301},
                                    {.pool = "avg", .width = 5},
                                    {.pool = "avg", .width = 9, .pad_zero = true}}) {
    ExpectNearOracle(layer, {.pool = pool});
    ExpectNearOracle(layer, {.pool = pool, .power = 1.0});
  }
}

// Also where no row is left to take the mean of: 36 rows and fewer.
TEST_P(WaterfillTest, EqualsTheOracleForEveryLevelAndFloor) {
  for (const int rows : {20, 36, 37, 150}) {
    SCOPED_TRACE(rows);
    const oracle::Layer layer = RandomLayer({6, 2, 48, 32, rows, 32}, 121);
    for (const double level : {0.25, 0.5, 2.0}) ExpectNearOracle(layer, {.level = level});
    for (const double floor : {0.01, 1.0, 10.0}) ExpectNearOracle(layer, {.floor = floor});
    for (const int sinks : {0, 70, 1000}) {
      ExpectNearOracle(layer, {.power = 1, .sinks = sinks, .level = 1, .floor = 0.1});
    }
  }
}

// Windows within a block, over several, and no multiples of 4; sinks that end inside a block and
// behind one; a reach that passes the prompt.
TEST_P(WaterfillTest, EqualsTheOracleForWhatFollows) {
  for (const auto& [query_heads, kv_heads] :
       std::vector<std::pair<int, int>>{{1, 1}, {9, 3}, {14, 2}}) {
    const oracle::Layer layer = RandomLayer({query_heads, kv_heads, 33, 48, 200, 70}, 131);
    for (const int window : {1, 2, 7, 32, 67}) {
      SCOPED_TRACE(::testing::Message() << query_heads << "/" << kv_heads << " " << window);
      ExpectNearOracle(layer, {.window = window, .follow = 17, .follow_weight = 1});
    }
    for (const int sinks : {0, 3, 70, 150}) {
      ExpectNearOracle(layer, {.window = 9, .sinks = sinks, .follow = 64, .follow_weight = 1});
    }
    for (const int follow : {1, 2, 65, 1000}) {
      ExpectNearOracle(layer, {.window = 5, .pool = {.pool = "none"}, .follow = follow});
      ExpectNearOracle(layer, {.window = 5,
                               .power = 1,
                               .level = 0.5,
                               .floor = 1,
                               .follow = follow,
                               .follow_weight = 0.7});
    }
  }
}

TEST_P(WaterfillTest, EqualsTheOracleForWhatFollowsInEveryLength) {
  for (const int rows : {0, 1, 2, 15, 31, 33, 63, 64, 65, 66, 128, 129}) {
    SCOPED_TRACE(rows);
    const oracle::Layer layer = RandomLayer({4, 2, 40, 24, rows, 66}, 141);
    for (const int window : {6, 66}) {
      ExpectNearOracle(layer, {.window = window, .sinks = 1, .follow = 5, .follow_weight = 1});
    }
  }
}

// Each of the last 16 queries reads one row further than the one before, from row 20 on, and row
// 100 as much: keys have one length, so that both have the same logit, about 8; those of other rows
// are of variance 2.
oracle::Layer CopyingLayer() {
  oracle::Layer layer = RandomLayer({2, 1, 64, 64, 160, 16}, 151);
  for (auto key = layer.k.begin(); key != layer.k.end(); key += 64) {
    const float length = std::sqrt(std::inner_product(key, key + 64, key, 0.0F));
    for (auto value = key; value != key + 64; ++value) *value *= 8 / length;
  }
  for (std::size_t i = 0; i < layer.q.size(); ++i) {
    const std::size_t w = i / 64 % 16;
    layer.q[i] = layer.k[(20 + w) * 64 + i % 64] + layer.k[100 * 64 + i % 64];
  }
  return layer;
}

// With p |v - o| = x for each query and both of its rows, row 100 has x^2, the rows behind the
// passage 0.1 x^2, those behind row 100, to which one query of 16 lends, 0.1 (x / 16)^2. That is to
// the power of 0.5: the second is 16 times the third, or half of it with the noise of other rows,
// and the third 0.02 of the first.
TEST_P(WaterfillTest, WhatACopyReadsNextIsWorthMore) {
  const Observed observed(CopyingLayer());
  const LossOptions without{.window = 16, .pool = {.pool = "none"}};
  LossOptions with = without;
  with.follow = 24;
  const RowLosses before = Estimate(without, observed.observation());
  const RowLosses after = Estimate(with, observed.observation());
  const auto mean_behind = [](const std::vector<float>& losses, std::ptrdiff_t row) {
    return std::accumulate(losses.begin() + row + 1, losses.begin() + row + 25, 0.0) / 24;
  };
  for (const auto loss : {&RowLosses::key, &RowLosses::value, &RowLosses::drop}) {
    EXPECT_GT(mean_behind(after.*loss, 35), 10 * mean_behind(before.*loss, 35));
    EXPECT_GT(mean_behind(after.*loss, 35), 8 * mean_behind(after.*loss, 100));
    for (std::size_t j = 0; j < 160; ++j) ASSERT_GE((after.*loss)[j], (before.*loss)[j]) << j;
    EXPECT_LT(mean_behind(after.*loss, 100), 0.04 * (after.*loss)[100]);
  }
}

TEST_P(WaterfillTest, AppliesTheSoftcap) {
  oracle::Layer layer = RandomLayer({4, 2, 64, 64, 150, 32}, 51);
  for (const float softcap : {0.5F, 3.0F, 20.0F}) {
    SCOPED_TRACE(softcap);
    layer.spec.softcap = softcap;
    ExpectNearOracle(layer, {});
  }
}

// The mean of the keys is over rows that a tier may hold. Keys with a mean far from 0, as a bias
// leaves them; positions with gaps.
TEST_P(WaterfillTest, ExactRowsDoNotMoveTheMean) {
  oracle::Layer layer = RandomLayer({4, 2, 64, 40, 150, 32}, 61);
  for (std::size_t i = 0; i < layer.k.size(); ++i) layer.k[i] += i % 64 < 3 ? 6.0F : 0.0F;
  for (TokenPos& position : layer.positions) position *= 3;
  for (int h = 0; h < 2; ++h) {
    for (int d = 0; d < 64; ++d) layer.k[static_cast<std::size_t>(h * 150 * 64 + d)] *= 30.0F;
  }
  for (const TokenPos exact_before : {0, 1, 4, 100, 1000}) {
    SCOPED_TRACE(exact_before);
    ExpectNearOracle(layer, {.exact_before = exact_before});
  }
}

// No query looks at it: its logit is 10 below theirs, or more. At length 40, five times that of the
// others, it moves the first element of the mean by 40 / 150, which squares of about 64 may feel by
// 2 * 0.27 * 3.5; at greater lengths it does not count.
TEST_P(WaterfillTest, AKeyFarLongerThanTheOthersMovesNoOther) {
  oracle::Layer layer = RandomLayer({2, 1, 64, 40, 150, 32}, 161);
  for (std::size_t q = 0; q < layer.q.size(); q += 64) layer.q[q] = 2;
  std::fill_n(layer.k.begin() + 70 * 64, 64, 0.0F);
  layer.k[70 * 64] = -40;
  ExpectNearOracle(layer, {});
  const RowLosses before = Estimate({}, Observed(layer).observation());
  for (const float element : {-100.0F, -1e10F, -1e18F, -1e30F}) {
    layer.k[70 * 64] = element;
    const RowLosses after = Estimate({}, Observed(layer).observation());
    for (std::size_t j = 0; j < 150; ++j) {
      if (j == 70) continue;
      EXPECT_NEAR(after.key[j], before.key[j], 0.1F * before.key[j]) << j;
      EXPECT_NEAR(after.drop[j], before.drop[j], 1e-3F * before.drop[j]) << j;
    }
  }
}

TEST_P(WaterfillTest, SourcesOfTheSameValuesGiveTheSameLosses) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    oracle::Layer layer = RandomLayer({6, 2, 75, 83, 233, 32}, 71);
    for (auto* values : {&layer.k, &layer.v}) {
      for (float& value : *values) {
        value = type == ElementType::kF16 ? ToFloat(ToF16(value)) : ToFloat(ToBF16(value));
      }
    }
    ExpectNearOracle(layer, {}, {type, 5, true});
    const RowLosses plain = Estimate({}, Observed(layer).observation());
    for (const Storage& storage :
         {Storage{type, 0, true}, Storage{type, 3, false}, Storage{ElementType::kF32, 9, true},
          Storage{ElementType::kF32, 0, false}}) {
      ExpectSame(plain, Estimate({}, Observed(layer, storage).observation()));
    }
  }
}

// Values of the window's rows are huge: without pooling their losses are, and the rows before them
// see nothing of it.
TEST_P(WaterfillTest, WindowRowsNeitherLendNorBorrow) {
  const oracle::Layer layer = RandomLayer({4, 2, 32, 32, 120, 16}, 81);
  const LossOptions plain{.window = 16, .pool = {.pool = "none"}, .power = 1.0};
  LossOptions pooled = plain;
  pooled.pool = {.pool = "max", .width = 41};
  const RowLosses raw = Estimate(plain, Observed(layer).observation());
  const RowLosses smooth = Estimate(pooled, Observed(layer).observation());
  for (const std::int64_t begin : {0, 120}) {
    const auto value = [&](std::int64_t j) { return raw.value[static_cast<std::size_t>(j)]; };
    for (std::int64_t j = begin; j < begin + 120; ++j) {
      float most = value(j);
      const std::int64_t end = begin + 104;  // of the rows before the window
      for (std::int64_t i = std::max(begin, j - 20); j < end && i < std::min(end, j + 21); ++i) {
        most = std::max(most, value(i));
      }
      ASSERT_EQ(smooth.value[static_cast<std::size_t>(j)], most) << j;
    }
  }
}

TEST_P(WaterfillTest, NeitherScratchNorWorkersChangeABit) {
  const Observed observed(RandomLayer({12, 3, 64, 40, 700, 32}, 91));
  for (const LossOptions& options : {LossOptions(), LossOptions{.window = 31, .follow = 40}}) {
    ScoreScratch one_head;
    const RowLosses expected = Estimate(options, observed.observation(), &one_head);
    EXPECT_FALSE(one_head.recomputed);
    for (const std::int64_t limit : {std::int64_t{1}, one_head.peak_bytes - 1, one_head.peak_bytes,
                                     100 * one_head.peak_bytes}) {
      for (const int workers : {1, 3}) {
        testing::ThreadedParallel threads(workers);
        ScoreScratch scratch{.limit_bytes = limit};
        ExpectSame(expected, Estimate(options, observed.observation(), &scratch, &threads));
        if (workers == 1) {
          EXPECT_EQ(scratch.recomputed, limit < one_head.peak_bytes);
        }
      }
    }
  }
}

// Up to the largest numbers of bf16 and f32. What passes f32 loses most, never nothing.
TEST_P(WaterfillTest, HugeValuesStayFinite) {
  for (const float huge : {1e15F, 1e19F, 1e25F, 3e38F}) {
    for (const int which : {0, 1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << huge << " " << which);
      oracle::Layer layer = RandomLayer({4, 2, 16, 24, 100, 16}, 101);
      const auto scale = [&](std::vector<float>* values) {
        for (float& value : *values) value = std::clamp(value, -1.0F, 1.0F) * huge;
      };
      if (which == 0 || which == 3) scale(&layer.k);
      if (which == 1 || which == 3) scale(&layer.v);
      if (which == 2) scale(&layer.q);
      for (const LossOptions& options :
           {LossOptions{.window = 16},
            LossOptions{.window = 16, .power = 2, .level = 2, .follow = 9},
            LossOptions{.window = 16, .level = 2, .floor = 10}}) {
        const RowLosses losses = Estimate(options, Observed(layer).observation());
        for (const auto* loss : {&losses.key, &losses.value, &losses.drop}) {
          for (const float one : *loss) ASSERT_TRUE(one >= 0 && one <= 1e30F) << one;
        }
      }
    }
  }
}

TEST_P(WaterfillTest, AKeyWhoseSquarePassesF32LosesMost) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 100, 16}, 111);
  for (int d = 0; d < 16; ++d) layer.k[50 * 16 + static_cast<std::size_t>(d)] = 1e25F;
  for (float& q : layer.q) q = std::abs(q) * 1e-30F;  // so that the key's weight is like others'
  const RowLosses losses = Estimate({.window = 16}, Observed(layer).observation());
  EXPECT_GE(losses.key[50], *std::ranges::max_element(losses.key));
  EXPECT_GT(losses.key[50], 0.0F);
}

}  // namespace
}  // namespace kvsieve
