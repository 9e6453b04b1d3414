// Scores of the window scorers against the f64 oracle, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "evict/scorers.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/targets.h"
#include "tests/evict/fixtures.h"
#include "tests/evict/oracle.h"

namespace kvsieve {
namespace {

using testing::LayerShape;
using testing::Observed;
using testing::RandomLayer;
using testing::Storage;

class ScoringTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(SelectTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SelectTarget({}).ok()); }
};

INSTANTIATE_TEST_SUITE_P(Targets, ScoringTest, ::testing::ValuesIn(SupportedTargets()),
                         [](const auto& target) { return std::string(target.param); });

Scores ScoreWith(const oracle::Options& options, const Observation& observation,
                 ScoreScratch* scratch = nullptr, Parallel* parallel = nullptr) {
  const std::string pad = options.pad_zero ? "zero" : "exclude";
  const std::string pool =
      options.pool == "none" ? "none" : StrCat(options.pool, ":", options.width, ",pool_pad=", pad);
  const std::string spec =
      StrCat("x(window=", options.window, ",queries=", options.queries, ",group=", options.group,
             ",pool=", pool, ",causal=", options.causal ? "true" : "false", ")");
  const SpecCall call = testing::ParseCall(spec);
  ArgReader args(call);
  evict::Selection selection;
  selection.protect_window = !options.pool_window;
  const auto make =
      options.perturbation ? evict::MakeOutputPerturbation : evict::MakeWindowAttention;
  const evict::ScorerParts parts = make(args, selection);
  EXPECT_TRUE(args.Finish().ok());
  SerialParallel serial;
  Scores scores;
  const Status status =
      parts.scorer->Score(observation, parallel != nullptr ? *parallel : serial, scratch, &scores);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return scores;
}

void ExpectNearOracle(const oracle::Layer& layer, const oracle::Options& options) {
  const Observed observed(layer);
  const Scores scores = ScoreWith(options, observed.observation());
  const auto expected = oracle::Score(layer, options);
  ASSERT_EQ(scores.raw.size(), static_cast<std::size_t>(layer.rows * layer.spec.kv_heads));
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    for (std::int64_t j = 0; j < layer.rows; ++j) {
      const std::int64_t at = scores.head_begin[h] + j;
      ASSERT_NEAR(scores.raw[at], expected[h].raw[j], expected[h].raw_bound[j])
          << "head " << h << " row " << j;
      ASSERT_NEAR(scores.smoothed[at], expected[h].smoothed[j], expected[h].smoothed_bound[j])
          << "head " << h << " row " << j;
    }
  }
}

TEST_P(ScoringTest, EqualsTheOracleForEveryHeadLayout) {
  for (const auto& [query_heads, kv_heads] :
       std::vector<std::pair<int, int>>{{1, 1}, {9, 3}, {32, 8}, {28, 4}, {71, 1}}) {
    const LayerShape shape{query_heads, kv_heads, 33, 48, 130, 40};
    SCOPED_TRACE(::testing::Message() << query_heads << "/" << kv_heads);
    ExpectNearOracle(RandomLayer(shape, 11), {.window = 9});
    ExpectNearOracle(RandomLayer(shape, 12), {.window = 9, .perturbation = true});
  }
}

TEST_P(ScoringTest, EqualsTheOracleForEveryDim) {
  for (const int dim : {1, 33, 64, 80, 96, 128, 192, 256}) {
    const LayerShape shape{4, 2, dim, dim == 192 ? 128 : dim + 7, 200, 32};
    SCOPED_TRACE(dim);
    ExpectNearOracle(RandomLayer(shape, 21), {});
    ExpectNearOracle(RandomLayer(shape, 22), {.perturbation = true});
  }
}

TEST_P(ScoringTest, EqualsTheOracleForEveryLength) {
  for (const int rows : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 4096}) {
    const LayerShape shape{2, 1, 40, 24, rows, 32};
    SCOPED_TRACE(rows);
    ExpectNearOracle(RandomLayer(shape, 31), {});
    if (rows <= 1000) ExpectNearOracle(RandomLayer(shape, 32), {.perturbation = true});
  }
}

TEST_P(ScoringTest, EqualsTheOracleForEveryReduction) {
  const oracle::Layer layer = RandomLayer({6, 2, 48, 32, 150, 48}, 41);
  for (const char* queries : {"mean", "sum", "max"}) {
    for (const char* group : {"mean", "max", "sum"}) {
      for (const bool perturbation : {false, true}) {
        oracle::Options options{.window = 24, .queries = queries, .group = group};
        options.perturbation = perturbation;
        ExpectNearOracle(layer, options);
      }
    }
  }
  for (const int window : {1, 2, 3, 5, 17, 48}) ExpectNearOracle(layer, {.window = window});
  ExpectNearOracle(layer, {.pool = "avg", .width = 5, .pad_zero = true});
  ExpectNearOracle(layer, {.pool = "none"});
  ExpectNearOracle(layer, {.pool_window = true});
  ExpectNearOracle(layer, {.causal = false});
}

TEST_P(ScoringTest, AppliesTheSoftcap) {
  oracle::Layer layer = RandomLayer({4, 2, 64, 64, 200, 32}, 51);
  for (const float softcap : {0.5F, 3.0F, 20.0F, 1000.0F}) {
    SCOPED_TRACE(softcap);
    layer.spec.softcap = softcap;
    ExpectNearOracle(layer, {});
  }
}

// Logits below 10 under a cap of 1e5 shrink by x^3 / (3 cap^2) = 3e-8, which f32 does not see.
TEST_P(ScoringTest, SoftcapFarAboveTheLogitsChangesNothing) {
  oracle::Layer layer = RandomLayer({4, 2, 64, 64, 200, 32}, 51);
  const Scores plain = ScoreWith({}, Observed(layer).observation());
  for (const float softcap : {1e5F, 1e8F, 3e38F}) {
    layer.spec.softcap = softcap;
    const Scores capped = ScoreWith({}, Observed(layer).observation());
    for (std::size_t i = 0; i < plain.raw.size(); ++i) {
      ASSERT_NEAR(capped.raw[i], plain.raw[i], 1e-6F * plain.raw[i]) << softcap << " row " << i;
    }
  }
}

// f16 and bf16 rows, padded rows, rows that can only be read: bit for bit the scores of the same
// values in f32.
TEST_P(ScoringTest, SourcesOfTheSameValuesGiveTheSameScores) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    oracle::Layer layer = RandomLayer({6, 2, 75, 83, 333, 32}, 61);
    for (auto* values : {&layer.k, &layer.v}) {
      for (float& value : *values) {
        value = type == ElementType::kF16 ? ToFloat(ToF16(value)) : ToFloat(ToBF16(value));
      }
    }
    for (const bool perturbation : {false, true}) {
      const oracle::Options options{.perturbation = perturbation};
      const Scores plain = ScoreWith(options, Observed(layer).observation());
      for (const Storage& storage :
           {Storage{type, 0, true}, Storage{type, 5, true}, Storage{type, 3, false},
            Storage{ElementType::kF32, 9, true}, Storage{ElementType::kF32, 0, false}}) {
        const Scores other = ScoreWith(options, Observed(layer, storage).observation());
        EXPECT_EQ(plain.raw, other.raw);
        EXPECT_EQ(plain.smoothed, other.smoothed);
      }
    }
  }
}

TEST_P(ScoringTest, NeitherScratchNorWorkersChangeABit) {
  const oracle::Layer layer = RandomLayer({12, 3, 64, 40, 1000, 32}, 71);
  const Observed observed(layer);
  for (const bool perturbation : {false, true}) {
    const oracle::Options options{.perturbation = perturbation};
    ScoreScratch one_head;
    const Scores expected = ScoreWith(options, observed.observation(), &one_head);
    EXPECT_FALSE(one_head.recomputed);
    for (const std::int64_t limit : {std::int64_t{1}, one_head.peak_bytes - 1, one_head.peak_bytes,
                                     2 * one_head.peak_bytes, 100 * one_head.peak_bytes}) {
      ScoreScratch scratch{.limit_bytes = limit};
      EXPECT_EQ(expected.raw, ScoreWith(options, observed.observation(), &scratch).raw);
      EXPECT_EQ(scratch.recomputed, limit < one_head.peak_bytes);
      EXPECT_LE(scratch.peak_bytes, scratch.recomputed ? one_head.peak_bytes - 1 : limit);
      testing::ThreadedParallel threads(4);
      EXPECT_EQ(expected.raw, ScoreWith(options, observed.observation(), &scratch, &threads).raw);
    }
  }
}

TEST_P(ScoringTest, PermutingHeadsPermutesScores) {
  const oracle::Layer layer = RandomLayer({6, 3, 32, 32, 100, 16}, 81);
  oracle::Layer turned = layer;  // KV head h of `turned` is (h + 1) % 3 of `layer`
  const auto turn = [](std::vector<float>* values) {
    std::rotate(values->begin(), values->begin() + static_cast<std::ptrdiff_t>(values->size() / 3),
                values->end());
  };
  turn(&turned.k);
  turn(&turned.v);
  turn(&turned.q);
  Scores expected = ScoreWith({.window = 16}, Observed(layer).observation());
  turn(&expected.raw);
  EXPECT_EQ(expected.raw, ScoreWith({.window = 16}, Observed(turned).observation()).raw);
}

// Logits near 1e4: the maximum is subtracted, all of the weight is on one row.
TEST_P(ScoringTest, HugeLogitsStayFinite) {
  oracle::Layer layer = RandomLayer({1, 1, 64, 64, 300, 4}, 91);
  for (float& value : layer.q) value *= 3000.0F;
  const Scores scores = ScoreWith({.window = 4, .pool = "none"}, Observed(layer).observation());
  double sum = 0;
  for (const float score : scores.raw) {
    ASSERT_TRUE(std::isfinite(score));
    sum += score;
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);  // means over 4 queries of weights that sum to 1; exp: 1e-6
}

// The first query of a prompt as long as the window sees one key: all of its weight is there, and
// dropping that key cannot move an output that equals its value.
TEST_P(ScoringTest, AQueryWithOneVisibleKeyGivesItEverything) {
  const oracle::Layer layer = RandomLayer({1, 1, 16, 16, 8, 8}, 92);
  const oracle::Options options{.window = 8, .queries = "max", .pool = "none"};
  EXPECT_EQ(ScoreWith(options, Observed(layer).observation()).raw[0], 1.0F);
  ExpectNearOracle(layer, {.window = 8, .perturbation = true});
}

TEST_P(ScoringTest, FutureKeysInsideTheWindowDoNotCount) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 40, 8}, 93);
  for (int d = 0; d < 16; ++d) layer.k[39 * 16 + d] *= 100.0F;  // only the last query sees it
  const oracle::Options causal{.window = 8, .queries = "sum", .pool = "none"};
  oracle::Options open = causal;
  open.causal = false;
  EXPECT_LE(ScoreWith(causal, Observed(layer).observation()).raw[39], 1.0F);
  ExpectNearOracle(layer, causal);
  ExpectNearOracle(layer, open);
  EXPECT_GT(ScoreWith(open, Observed(layer).observation()).raw[39], 1.0F);
}

}  // namespace
}  // namespace kvsieve
