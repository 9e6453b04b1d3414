// Scores of the scorers that look at rows one by one against the f64 oracle, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "evict/scorers.h"
#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/targets.h"
#include "tests/evict/fixtures.h"
#include "tests/evict/row_oracle.h"

namespace kvsieve {
namespace {

using testing::LayerShape;
using testing::Observed;
using testing::RandomLayer;
using testing::Storage;

class RowScorers : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(SelectTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SelectTarget({}).ok()); }
};

INSTANTIATE_TEST_SUITE_P(Targets, RowScorers, ::testing::ValuesIn(SupportedTargets()),
                         [](const auto& target) { return std::string(target.param); });

Scores ScoreWith(evict::ScorerFactory make, std::string_view spec, const Observation& observation,
                 Parallel* parallel = nullptr) {
  const SpecCall call = testing::ParseCall(spec);
  ArgReader args(call);
  const evict::ScorerParts parts = make(args, evict::Selection());
  const Status read = args.Finish();
  EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.message());
  SerialParallel serial;
  Scores scores;
  const Status status =
      parts.scorer->Score(observation, parallel != nullptr ? *parallel : serial, nullptr, &scores);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return scores;
}

void ExpectNear(const Scores& scores, const std::vector<oracle::HeadScores>& expected) {
  for (std::size_t h = 0; h < expected.size(); ++h) {
    ASSERT_EQ(scores.head_begin[h + 1] - scores.head_begin[h],
              static_cast<std::int64_t>(expected[h].raw.size()));
    for (std::size_t j = 0; j < expected[h].raw.size(); ++j) {
      const std::size_t at = static_cast<std::size_t>(scores.head_begin[h]) + j;
      ASSERT_NEAR(scores.raw[at], expected[h].raw[j], expected[h].raw_bound[j])
          << "head " << h << " row " << j;
    }
  }
}

// Dims around vector lengths, lengths around blocks.
std::vector<LayerShape> Shapes() {
  std::vector<LayerShape> shapes;
  for (const int dim : {1, 2, 33, 64, 80, 128, 192, 256}) {
    shapes.push_back({4, 2, dim, dim == 192 ? 128 : dim + 7, 150, 32});
  }
  for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 128, 1000, 4096}) {
    shapes.push_back({2, 1, 40, 24, rows, 32});
  }
  return shapes;
}

TEST_P(RowScorers, KeyNormEqualsTheOracle) {
  for (const LayerShape& shape : Shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.key_dim);
    const oracle::Layer layer = RandomLayer(shape, 211);
    const Observed observed(layer);
    ExpectNear(ScoreWith(evict::MakeKeyNorm, "key_norm()", observed.observation()),
               oracle::KeyNorm(layer));
  }
}

TEST_P(RowScorers, KeyDiffEqualsTheOracle) {
  for (const LayerShape& shape : Shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.key_dim);
    oracle::Layer layer = RandomLayer(shape, 212);
    for (float& value : layer.k) value += 0.5F;  // an anchor that is not all cancellation
    const Observed observed(layer);
    ExpectNear(ScoreWith(evict::MakeKeyDiff, "key_diff()", observed.observation()),
               oracle::KeyDiff(layer));
  }
}

TEST_P(RowScorers, KeyProxyIsWindowAttentionWithKeysAsQueries) {
  for (const LayerShape& shape : Shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.key_dim);
    const oracle::Layer layer = RandomLayer(shape, 213);
    const Observed observed(layer);
    for (const bool causal : {true, false}) {
      const oracle::Options options{.window = 9, .causal = causal};
      const auto expected = oracle::Score(oracle::KeysAsQueries(layer, 9), options);
      const Scores scores = ScoreWith(
          evict::MakeKeyProxy, causal ? "key_proxy(window=9)" : "key_proxy(window=9,causal=false)",
          observed.observation());
      ExpectNear(scores, expected);
      for (std::size_t j = 0; j < expected[0].smoothed.size(); ++j) {
        ASSERT_NEAR(scores.smoothed[j], expected[0].smoothed[j], expected[0].smoothed_bound[j]);
      }
    }
  }
}

TEST_P(RowScorers, LagEqualsTheOracle) {
  std::vector<LayerShape> shapes = Shapes();
  shapes.push_back({2, 2, 33, 17, 300, 32});
  for (const LayerShape& shape : shapes) {
    const oracle::Layer layer = RandomLayer(shape, 221);
    const Observed observed(layer);
    for (const int lag : {2, 5, 64, 100, 128}) {
      SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.key_dim << " lag " << lag);
      ExpectNear(ScoreWith(evict::MakeLag, StrCat("lag(across=score,lag=", lag, ")"),
                           observed.observation()),
                 oracle::Lag(layer, lag, 4));
    }
  }
}

// A rank counts the rows of the partition that are smaller for sure, and none that is larger for
// sure.
TEST_P(RowScorers, LagRanksWithinAPartition) {
  constexpr int kLag = 40;
  const oracle::Layer layer = RandomLayer({4, 2, 64, 80, 500, 32}, 222);
  const Observed observed(layer);
  const Scores scores =
      ScoreWith(evict::MakeLag, StrCat("lag(lag=", kLag, ")"), observed.observation());
  const auto expected = oracle::Lag(layer, kLag, 4);
  for (int h = 0; h < 2; ++h) {
    const auto& [raw, bound, smoothed, smoothed_bound] = expected[h];
    for (int begin = 4; begin + 2 * kLag <= 500; begin += kLag) {
      for (int i = begin; i < begin + kLag; ++i) {
        int surely = 0;
        int perhaps = 0;
        for (int j = begin; j < begin + kLag; ++j) {
          surely += raw[j] + bound[j] < raw[i] - bound[i];
          perhaps += j != i && raw[j] - bound[j] < raw[i] + bound[i];
        }
        const float rank = scores.raw[h * 500 + i] * kLag;
        EXPECT_GE(rank, static_cast<float>(surely) - 0.01F) << "row " << i;
        EXPECT_LE(rank, static_cast<float>(perhaps) + 0.01F) << "row " << i;
      }
    }
  }
}

TEST_P(RowScorers, ExpectedAttentionEqualsTheOracle) {
  for (const LayerShape& shape : Shapes()) {
    const oracle::Layer layer = RandomLayer(shape, 223);
    const Observed observed(layer);
    for (const char* group : {"mean", "sum", "max"}) {
      SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.key_dim << " " << group);
      ExpectNear(ScoreWith(evict::MakeExpectedAttention,
                           StrCat("expected_attention(window=9,group=", group, ")"),
                           observed.observation()),
                 oracle::ExpectedAttention(layer, 9, group));
    }
  }
  for (const auto& [query_heads, kv_heads] :
       std::vector<std::pair<int, int>>{{1, 1}, {9, 3}, {32, 8}, {71, 1}}) {
    const oracle::Layer layer = RandomLayer({query_heads, kv_heads, 33, 48, 130, 40}, 224);
    const Observed observed(layer);
    ExpectNear(
        ScoreWith(evict::MakeExpectedAttention, "expected_attention()", observed.observation()),
        oracle::ExpectedAttention(layer, 32, "mean"));
  }
}

// Exponents near 1e12 and past f32: all of the weight is on one row, nothing is NaN.
TEST_P(RowScorers, ExpectedAttentionOfHugeQueriesIsFinite) {
  for (const float factor : {1e6F, 1e12F, 1e18F}) {
    oracle::Layer layer = RandomLayer({2, 1, 64, 64, 300, 8}, 225);
    for (float& value : layer.q) value *= factor;
    const Observed observed(layer);
    for (const float score : ScoreWith(evict::MakeExpectedAttention, "expected_attention(window=8)",
                                       observed.observation())
                                 .raw) {
      ASSERT_TRUE(std::isfinite(score)) << factor;
    }
  }
}

TEST_P(RowScorers, ExternalScoresRankAsGiven) {
  const Observed observed(RandomLayer({2, 2, 8, 8, 100, 8}, 226));
  std::vector<float> given(200);
  for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<float>(i * 37 % 101) - 50;
  Observation observation = observed.observation();
  observation.external_scores = given;
  EXPECT_EQ(ScoreWith(evict::MakeExternal, "external()", observation).raw, given);
  const Scores pooled = ScoreWith(evict::MakeExternal, "external(pool=max:3)", observation);
  EXPECT_EQ(pooled.smoothed[100], std::max(given[100], given[101]));  // not of the other head
}

// A key inside the window that later keys point at: earlier keys of the window do not see it.
TEST_P(RowScorers, KeyProxyHidesLaterKeysUnlessToldOtherwise) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 40, 8}, 214);
  for (int r = 32; r < 40; ++r) {
    for (int d = 0; d < 16; ++d) layer.k[r * 16 + d] = d == 0 ? 1.0F : 0.0F;
  }
  layer.k[39 * 16] = 100.0F;
  const Observed observed(layer);
  const auto last = [&](std::string_view spec) {
    return ScoreWith(evict::MakeKeyProxy, spec, observed.observation()).raw[39];
  };
  EXPECT_LE(last("key_proxy(window=8,queries=sum)"), 1.0F);
  EXPECT_GT(last("key_proxy(window=8,queries=sum,causal=false)"), 7.9F);
}

struct RowScorer {
  const char* spec;
  evict::ScorerFactory make;
};

std::vector<RowScorer> AllRowScorers() {
  return {{"key_norm()", evict::MakeKeyNorm},
          {"key_diff(pool=avg:5)", evict::MakeKeyDiff},
          {"key_proxy()", evict::MakeKeyProxy},
          {"lag(lag=7)", evict::MakeLag},
          {"lag(lag=64,across=score)", evict::MakeLag},
          {"expected_attention(window=16,pool=max:3)", evict::MakeExpectedAttention}};
}

// f16 and bf16 rows, padded rows, rows that can only be read: bit for bit the scores of the same
// values in f32; and any number of workers.
TEST_P(RowScorers, NeitherStorageNorWorkersChangeABit) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    oracle::Layer layer = RandomLayer({15, 5, 75, 83, 333, 32}, 215);
    for (auto* values : {&layer.k, &layer.v}) {
      for (float& value : *values) {
        value = type == ElementType::kF16 ? ToFloat(ToF16(value)) : ToFloat(ToBF16(value));
      }
    }
    const Observed plain(layer);
    for (const RowScorer& scorer : AllRowScorers()) {
      SCOPED_TRACE(scorer.spec);
      const Scores expected = ScoreWith(scorer.make, scorer.spec, plain.observation());
      for (const Storage& storage :
           {Storage{type, 0, true}, Storage{type, 5, true}, Storage{type, 3, false},
            Storage{ElementType::kF32, 9, true}, Storage{ElementType::kF32, 0, false}}) {
        const Observed stored(layer, storage);
        const Scores other = ScoreWith(scorer.make, scorer.spec, stored.observation());
        EXPECT_EQ(expected.raw, other.raw);
        EXPECT_EQ(expected.smoothed, other.smoothed);
      }
      testing::ThreadedParallel threads(4);
      const Scores parallel = ScoreWith(scorer.make, scorer.spec, plain.observation(), &threads);
      EXPECT_EQ(expected.raw, parallel.raw);
      EXPECT_EQ(expected.smoothed, parallel.smoothed);
    }
  }
}

// Heads that an earlier eviction left with different rows are scored as if alone.
TEST_P(RowScorers, HeadsMayHaveDifferentRows) {
  oracle::Layer newest = RandomLayer({1, 1, 16, 16, 20, 20}, 216);
  for (TokenPos& position : newest.positions) position += 80;
  const oracle::Layer all = RandomLayer({1, 1, 16, 16, 100, 64}, 217);
  const Observed short_head(newest);
  const Observed long_head(all);
  const testing::TestSource none(nullptr, 0, 16, {});
  Observation ragged = long_head.observation();
  ragged.layer.query_heads = ragged.layer.kv_heads = 3;
  std::vector<float> queries;
  for (int h = 0; h < 3; ++h) queries.insert(queries.end(), all.q.begin(), all.q.end());
  ragged.window_queries = queries.data();
  const std::vector<HeadObservation> heads = {
      short_head.observation().heads[0], {&none, &none, {}}, long_head.observation().heads[0]};
  ragged.heads = heads;
  for (const RowScorer& scorer : AllRowScorers()) {
    SCOPED_TRACE(scorer.spec);
    const Scores scores = ScoreWith(scorer.make, scorer.spec, ragged);
    EXPECT_EQ(scores.head_begin, (std::vector<std::int64_t>{0, 20, 20, 120}));
    Observation alone = short_head.observation();
    alone.window_queries = all.q.data();
    alone.window_positions = ragged.window_positions;
    std::vector<float> expected = ScoreWith(scorer.make, scorer.spec, alone).raw;
    const Scores other = ScoreWith(scorer.make, scorer.spec, long_head.observation());
    expected.insert(expected.end(), other.raw.begin(), other.raw.end());
    EXPECT_EQ(scores.raw, expected);
  }
}

// All keys equal, keys of zero, keys whose squares pass f32: finite scores, equal rows equal.
TEST_P(RowScorers, DegenerateRowsScoreFinite) {
  for (const float value : {0.5F, 0.0F, 1e25F}) {
    oracle::Layer layer = RandomLayer({2, 1, 16, 16, 700, 32}, 218);
    std::fill(layer.k.begin(), layer.k.end(), value);
    std::fill(layer.v.begin(), layer.v.end(), value);
    const Observed observed(layer);
    for (const RowScorer& scorer : AllRowScorers()) {
      SCOPED_TRACE(::testing::Message() << scorer.spec << " of " << value);
      const Scores scores = ScoreWith(scorer.make, scorer.spec, observed.observation());
      for (const float score : scores.raw) {
        ASSERT_FALSE(std::isnan(score));
        ASSERT_TRUE(value > 1 || std::isfinite(score));
      }
    }
    if (value == 1e25F) continue;
    const Scores diff = ScoreWith(evict::MakeKeyDiff, "key_diff()", observed.observation());
    EXPECT_TRUE(std::all_of(diff.raw.begin(), diff.raw.end(),
                            [&](float score) { return score == diff.raw[0]; }));
  }
}

TEST(RowScorerMeaning, ShortKeysRankFirst) {
  oracle::Layer layer = RandomLayer({1, 1, 8, 8, 100, 8}, 219);
  for (int d = 0; d < 8; ++d) layer.k[50 * 8 + d] *= 1e-3F;
  EXPECT_EQ(testing::Kept(
                testing::Decide("key_norm(budget=1,sinks=0)", Observed(layer).observation()), 0),
            std::vector<TokenPos>{50});
}

TEST(RowScorerMeaning, TheKeyThatPointsElsewhereRanksFirst) {
  oracle::Layer layer = RandomLayer({1, 1, 8, 8, 100, 8}, 220);
  for (float& value : layer.k) value = std::abs(value);
  for (int d = 0; d < 8; ++d) layer.k[50 * 8 + d] *= -1;
  EXPECT_EQ(testing::Kept(
                testing::Decide("key_diff(budget=1,sinks=0)", Observed(layer).observation()), 0),
            std::vector<TokenPos>{50});
}

// Every partition that another follows keeps the same share, the rest stays whole.
TEST(RowScorerMeaning, LagKeepsTheSameShareOfEveryPartition) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 4 + 5 * 20 + 7, 8}, 227));
  const auto kept = testing::Kept(testing::Decide("lag(lag=20,budget=51)", observed.observation()),
                                  0);  // 4 + 4 * 5 + 27
  for (int begin = 4; begin < 84; begin += 20) {
    EXPECT_EQ(std::count_if(kept.begin(), kept.end(),
                            [&](TokenPos p) { return p >= begin && p < begin + 20; }),
              5);
  }
  EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](TokenPos p) { return p >= 84; }), 27);
}

TEST(RowScorerMeaning, APromptTooShortForLagKeepsItsNewestRows) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 100, 8}, 228));
  const auto kept = testing::Kept(testing::Decide("lag(budget=10)", observed.observation()), 0);
  EXPECT_EQ(kept, (std::vector<TokenPos>{0, 1, 2, 3, 94, 95, 96, 97, 98, 99}));
}

TEST(RowScorerMeaning, ExternalScoresThatDoNotFitAreErrors) {
  const Observed observed(RandomLayer({2, 2, 8, 8, 100, 8}, 229));
  SerialParallel serial;
  const auto evictor = testing::MustMake("external(budget=50)");
  Observation observation = observed.observation();
  EXPECT_EQ(evictor->Decide({&observation, 1}, serial, nullptr).message(),
            "layer 0: no external scores were handed in (scorer external)");
  const std::vector<float> few(199);
  observation.external_scores = few;
  EXPECT_EQ(evictor->Decide({&observation, 1}, serial, nullptr).message(),
            "layer 0: 199 external scores were handed in, its KV heads have 200 rows (scorer "
            "external)");
  EXPECT_TRUE(evictor->needs().external_scores);
}

TEST(RowScorerMeaning, NaNFromOutsideRanksLast) {
  const Observed observed(RandomLayer({1, 1, 8, 8, 10, 8}, 230));
  std::vector<float> given(10, 0.0F);
  given[3] = std::nanf("");
  given[4] = -std::numeric_limits<float>::infinity();
  Observation observation = observed.observation();
  observation.external_scores = given;
  EXPECT_EQ(testing::Kept(testing::Decide("external(budget=9,sinks=0)", observation), 0),
            (std::vector<TokenPos>{0, 1, 2, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace kvsieve
