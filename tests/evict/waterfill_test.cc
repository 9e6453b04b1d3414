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
  return StrCat("waterfill(budget=8x,window=", options.window, ",pool=", pool,
                ",power=", std::to_string(options.power),
                ",drop_weight=", std::to_string(options.drop_weight), ")");
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

// The bounds would let nothing through: most rows are known to a part in 10^3.
TEST(LossOracle, IsNarrow) {
  const auto heads = oracle::Losses(RandomLayer({4, 2, 64, 48, 200, 32}, 3), {});
  int narrow = 0;
  int all = 0;
  for (const oracle::HeadLosses& head : heads) {
    for (const auto* ranges : {&head.key, &head.value, &head.drop}) {
      for (const oracle::Range& range : *ranges) {
        narrow += range.most < range.least * 1.001 ? 1 : 0;
        ++all;
      }
    }
  }
  EXPECT_GT(narrow, all * 4 / 5);
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
  ScoreScratch one_head;
  const RowLosses expected = Estimate({}, observed.observation(), &one_head);
  EXPECT_FALSE(one_head.recomputed);
  for (const std::int64_t limit :
       {std::int64_t{1}, one_head.peak_bytes - 1, one_head.peak_bytes, 100 * one_head.peak_bytes}) {
    for (const int workers : {1, 3}) {
      testing::ThreadedParallel threads(workers);
      ScoreScratch scratch{.limit_bytes = limit};
      ExpectSame(expected, Estimate({}, observed.observation(), &scratch, &threads));
      if (workers == 1) EXPECT_EQ(scratch.recomputed, limit < one_head.peak_bytes);
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
      const RowLosses losses = Estimate({.window = 16}, Observed(layer).observation());
      for (const auto* loss : {&losses.key, &losses.value, &losses.drop}) {
        for (const float one : *loss) ASSERT_TRUE(one >= 0 && one <= 1e30F) << one;
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

TEST(Waterfill, QueriesThatWereNotObservedAreNamed) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 100, 20}, 1));
  const auto evictor = testing::MustMake("waterfill(budget=8x)");
  SerialParallel serial;
  RowLosses losses;
  const Status status =
      evictor->loss_estimator()->Estimate(observed.observation(), serial, nullptr, &losses);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("68..79"), std::string_view::npos) << status.message();
  EXPECT_NE(status.message().find("window=32"), std::string_view::npos) << status.message();
}

TEST(Waterfill, ValuesAreNeeded) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 100, 32}, 1));
  std::vector<HeadObservation> heads(observed.observation().heads.begin(),
                                     observed.observation().heads.end());
  heads[0].values = nullptr;
  Observation observation = observed.observation();
  observation.heads = heads;
  SerialParallel serial;
  RowLosses losses;
  EXPECT_FALSE(testing::MustMake("waterfill(budget=8x)")
                   ->loss_estimator()
                   ->Estimate(observation, serial, nullptr, &losses)
                   .ok());
}

TEST(Waterfill, RanksNoRows) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 100, 32}, 1));
  const Observation observation = observed.observation();
  const auto evictor = testing::MustMake("waterfill(budget=64MiB)");
  SerialParallel serial;
  EXPECT_FALSE(evictor->Decide({&observation, 1}, serial, nullptr).ok());
  EXPECT_FALSE(evictor->Rank({&observation, 1}, {}, serial, nullptr).ok());
  EXPECT_FALSE(evictor->Foresee({}).ok());
  EXPECT_FALSE(evictor->CheckRepeatable().ok());
  EXPECT_EQ(evictor->byte_budget()->bytes, std::int64_t{64} << 20);
}

TEST(Waterfill, WritesOutItsDefaults) {
  EXPECT_EQ(testing::Canonical("waterfill(budget=8x)"),
            "waterfill(budget=8x,scope=model,power=0.5,pool=max:15,pool_pad=exclude,drop_weight=4,"
            "window=32,sinks=4)");
}

}  // namespace
}  // namespace kvsieve
