// Sums of scorers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "evict/scorers.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using testing::Decide;
using testing::Kept;
using testing::Observed;
using testing::RandomLayer;

Scores ScoreWith(std::string_view spec, const Observation& observation,
                 const evict::Selection& selection = {}, Parallel* parallel = nullptr) {
  const SpecCall call = testing::ParseCall(spec);
  ArgReader args(call);
  const auto make = evict::FindScorer(call);
  if (!make.ok()) {
    ADD_FAILURE() << make.message();
    return {};
  }
  const evict::ScorerParts parts = (*make)(args, selection);
  const Status read = args.Finish();
  EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.message());
  SerialParallel serial;
  Scores scores;
  const Status status =
      parts.scorer->Score(observation, parallel != nullptr ? *parallel : serial, nullptr, &scores);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return scores;
}

// The definition in f64: (score - low) / (mean - low) over rows [begin, end) of one head.
std::vector<double> Normalised(const std::vector<float>& scores, std::size_t begin,
                               std::size_t end) {
  double low = std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) {
    low = std::min<double>(low, scores[i]);
    sum += scores[i];
  }
  const double mean = sum / static_cast<double>(end - begin);
  std::vector<double> out;
  for (const float score : scores) out.push_back((score - low) / (mean - low));
  return out;
}

TEST(Mix, IsTheWeightedSumOfNormalisedScores) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 200, 32}, 301));
  const Observation observation = observed.observation();
  const Scores attention = ScoreWith("window_attention(window=16)", observation);
  const Scores norm = ScoreWith("key_norm()", observation);
  const Scores mixed =
      ScoreWith("mix(0.75*window_attention(window=16),0.25*key_norm)", observation);
  const std::vector<float> Scores::*const kinds[] = {&Scores::raw, &Scores::smoothed};
  for (const auto kind : kinds) {
    // After 4 sinks, before a window of 16 rows.
    const auto a = Normalised(attention.*kind, 4, 184);
    const auto b = Normalised(norm.*kind, 4, 184);
    for (std::size_t i = 0; i < 200; ++i) {
      // Each addend is rounded once and their sum once: 2 units of the largest magnitude.
      const double magnitude = std::abs(0.75 * a[i]) + std::abs(0.25 * b[i]);
      EXPECT_NEAR((mixed.*kind)[i], 0.75 * a[i] + 0.25 * b[i], 2 * 0x1p-24 * magnitude) << i;
    }
  }
}

TEST(Mix, OfOneTermKeepsWhatTheTermKeeps) {
  const Observed observed(RandomLayer({4, 2, 16, 16, 300, 32}, 302));
  for (const std::string_view term :
       {"window_attention", "output_perturbation", "key_proxy", "key_norm", "key_diff", "recency",
        "random(seed=3)", "expected_attention", "lag"}) {
    const std::string alone(term.substr(0, term.find('(')));
    const std::string args = term.find('(') == std::string_view::npos ? "" : std::string("seed=3,");
    const LayerDecision expected =
        Decide(alone + "(" + args + "budget=80)", observed.observation());
    const LayerDecision mixed =
        Decide("mix(3*" + std::string(term) + ",budget=80)", observed.observation());
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(Kept(mixed, head), Kept(expected, head)) << term;
    }
  }
}

// Neither the unit nor the zero of a term's scores matters, nor how large the sinks' are.
TEST(Mix, TheUnitOfATermDoesNotMatter) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 200, 32}, 303));
  Observation observation = observed.observation();
  std::vector<float> given(200);
  for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<float>(i * 37 % 101);
  observation.external_scores = given;
  constexpr std::string_view kSpec = "mix(1*external,1*window_attention,budget=60)";
  const auto expected = Kept(Decide(kSpec, observation), 0);
  for (float& score : given) score = score * 1024 - 65536;  // exact
  given[0] = 1e30F;
  given[199] = 1e30F;
  EXPECT_EQ(Kept(Decide(kSpec, observation), 0), expected);
}

TEST(Mix, AHeavierTermDecidesMore) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 200, 32}, 304));
  const Observation observation = observed.observation();
  const auto newest = Kept(Decide("recency(budget=60)", observation), 0);
  EXPECT_EQ(Kept(Decide("mix(1000*recency,0.001*random,budget=60)", observation), 0), newest);
  EXPECT_NE(Kept(Decide("mix(0.001*recency,1000*random,budget=60)", observation), 0), newest);
}

TEST(Mix, AConstantTermSaysNothing) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 200, 32}, 305));
  Observation observation = observed.observation();
  const std::vector<float> constant(200, -7.0F);
  observation.external_scores = constant;
  EXPECT_EQ(Kept(Decide("mix(100*external,1*key_norm,budget=60)", observation), 0),
            Kept(Decide("key_norm(budget=60)", observation), 0));
}

TEST(Mix, InfinitiesAndNaNOfATermDecide) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 20, 20}, 306));
  Observation observation = observed.observation();
  std::vector<float> given(20, 0.5F);
  given[2] = 1.0F;
  given[5] = std::numeric_limits<float>::infinity();
  given[6] = -std::numeric_limits<float>::infinity();
  given[7] = std::nanf("");
  observation.external_scores = given;
  EXPECT_EQ(Kept(Decide("mix(1*external,1*key_norm,budget=1,sinks=0)", observation), 0),
            std::vector<TokenPos>{5});
  const auto kept = Kept(Decide("mix(1*external,1*key_norm,budget=18,sinks=0)", observation), 0);
  EXPECT_EQ(kept.size(), 18U);
  for (const TokenPos lost : {6, 7}) {
    EXPECT_EQ(std::count(kept.begin(), kept.end(), lost), 0) << lost;
  }
}

TEST(Mix, ProtectsTheWidestWindowOfItsTerms) {
  const Observed observed(RandomLayer({1, 1, 16, 16, 200, 64}, 307));
  const auto kept = Kept(
      Decide("mix(1*snapkv(window=8),1*key_proxy(window=50),budget=60)", observed.observation()),
      0);
  EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](TokenPos p) { return p >= 150; }), 50);
}

TEST(Mix, WorkersDoNotChangeABit) {
  const Observed observed(RandomLayer({8, 4, 24, 40, 300, 64}, 308));
  constexpr std::string_view kSpec = "mix(0.5*snapkv,0.3*key_diff,0.2*lag(lag=20))";
  testing::ThreadedParallel threads(4);
  EXPECT_EQ(ScoreWith(kSpec, observed.observation()).smoothed,
            ScoreWith(kSpec, observed.observation(), {}, &threads).smoothed);
}

}  // namespace
}  // namespace kvsieve
