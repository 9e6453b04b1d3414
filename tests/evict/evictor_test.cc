// Decisions: budgets, protection, scope, notes, errors, properties.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/targets.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using testing::Decide;
using testing::Kept;
using testing::LayerShape;
using testing::MustMake;
using testing::Observed;
using testing::RandomLayer;
using Positions = std::vector<TokenPos>;

Positions Range(TokenPos first, TokenPos last) {
  Positions positions;
  for (TokenPos p = first; p <= last; ++p) positions.push_back(p);
  return positions;
}

Positions operator+(Positions a, const Positions& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// One head of `rows` rows for scorers that look at positions only.
class PlainLayer {
 public:
  explicit PlainLayer(std::int64_t rows) : observed_(RandomLayer({1, 1, 4, 4, rows, 64}, 5)) {}
  LayerDecision Decide(std::string_view spec) const {
    return testing::Decide(spec, observed_.observation());
  }
  Positions Kept(std::string_view spec) const { return testing::Kept(Decide(spec), 0); }

 private:
  Observed observed_;
};

TEST(Evictor, AnEmptyPromptGivesAnEmptySet) {
  for (const char* spec : {"recency(budget=8)", "snapkv(budget=50%)", "random(budget=8)",
                           "output_perturbation(budget=40,scope=model)"}) {
    EXPECT_EQ(PlainLayer(0).Kept(spec), Positions{}) << spec;
  }
}

TEST(Evictor, OneRowStays) {
  for (const char* spec : {"recency(budget=8)", "snapkv(budget=1%)", "random(budget=8)"}) {
    EXPECT_EQ(PlainLayer(1).Kept(spec), Positions{0}) << spec;
  }
}

TEST(Evictor, ABudgetThatHoldsEverythingScoresNothing) {
  const LayerDecision decision = PlainLayer(200).Decide("snapkv(budget=512)");
  EXPECT_EQ(Kept(decision, 0), Range(0, 199));
  EXPECT_FALSE(decision.scored);
  EXPECT_EQ(decision.note, "budget not reached: 200 of 512 rows");
  EXPECT_EQ(PlainLayer(200).Decide("snapkv(budget=200)").note,
            "budget not reached: 200 of 200 rows");
  EXPECT_EQ(PlainLayer(200).Decide("snapkv(budget=100%)").note,
            "budget not reached: 200 of 200 rows");
}

TEST(Evictor, OneRowLessThanEverythingDropsTheWorst) {
  EXPECT_EQ(PlainLayer(100).Kept("recency(budget=99)"), Range(0, 3) + Range(5, 99));
}

TEST(Evictor, PromptsUpToMinTokensStay) {
  const LayerDecision decision = PlainLayer(100).Decide("recency(budget=10,min_tokens=100)");
  EXPECT_EQ(Kept(decision, 0), Range(0, 99));
  EXPECT_EQ(decision.note, "min_tokens not passed: 100 of 100 rows");
  EXPECT_EQ(PlainLayer(101).Decide("recency(budget=10,min_tokens=100)").keep.rows(), 10);
}

TEST(Evictor, PercentagesAreExactAndAtLeastOneRow) {
  const auto kept = [](std::int64_t rows, const char* percent) {
    const std::string spec = std::string("recency(sinks=0,budget=") + percent + ")";
    return PlainLayer(rows).Decide(spec).keep.rows();
  };
  EXPECT_EQ(kept(1000, "10%"), 100);
  EXPECT_EQ(kept(5, "20%"), 1);
  EXPECT_EQ(kept(10, "10%"), 1);
  EXPECT_EQ(kept(3, "0.000000001%"), 1);
  EXPECT_EQ(kept(1000, "33.4%"), 334);
  EXPECT_EQ(kept(1001, "33.4%"), 335);
}

TEST(Evictor, AnAutomaticBudgetIsAQuarterRoundedUpWithinItsBounds) {
  const auto kept = [](std::int64_t rows) {
    return PlainLayer(rows).Decide("recency(budget=auto)").keep.rows();
  };
  EXPECT_EQ(kept(2000), 1024);
  EXPECT_EQ(kept(4097), 1025);
  EXPECT_EQ(kept(4100), 1025);
  EXPECT_EQ(kept(4101), 1026);
  EXPECT_EQ(kept(17000), 4096);
}

TEST(Evictor, RecencyKeepsSinksAndTheNewest) {
  EXPECT_EQ(PlainLayer(100).Kept("recency(budget=10)"), Range(0, 3) + Range(94, 99));
  EXPECT_EQ(PlainLayer(100).Kept("recency(budget=4)"), Range(0, 3));
}

TEST(Evictor, OverlappingProtectionCountsOnce) {
  EXPECT_EQ(PlainLayer(7).Kept("recency(budget=6,sinks=4,recent=4,over_budget=protected)"),
            Positions({0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(PlainLayer(20).Kept("random(budget=10,sinks=4,recent=2,protect=[2..5])").size(), 10U);
  const Positions kept = PlainLayer(20).Kept("recency(budget=9,recent=2,protect=[2..5,4..6])");
  EXPECT_EQ(kept, Range(0, 6) + Range(18, 19));
  EXPECT_EQ(PlainLayer(20).Kept("recency(budget=10,recent=2,protect=[2..5,4..6])"),
            Range(0, 6) + Range(17, 19));
}

TEST(Evictor, ProtectedRangesBeyondThePromptAreCut) {
  EXPECT_EQ(PlainLayer(20).Kept("recency(budget=6,sinks=1,protect=[17..900])"),
            Positions({0, 15, 16, 17, 18, 19}));
}

TEST(Evictor, RecentMayFollowTheBudget) {
  EXPECT_EQ(PlainLayer(100).Kept("random(budget=16,sinks=14,recent=budget/8)"),
            Range(0, 13) + Range(98, 99));
  EXPECT_EQ(PlainLayer(100).Kept("random(budget=3%,sinks=2,recent=budget/8)"),
            Positions({0, 1, 99}));
}

TEST(Evictor, ASmallPercentageKeepsAllProtectedRowsAndSaysSo) {
  const LayerDecision decision = PlainLayer(100).Decide("snapkv(budget=10%)");
  EXPECT_EQ(Kept(decision, 0), Range(0, 3) + Range(68, 99));
  EXPECT_EQ(decision.note,
            "budget 10 is smaller than the 36 protected rows: all of them stay "
            "(over_budget=protected)");
  EXPECT_FALSE(decision.scored);
}

TEST(Evictor, OverBudgetBudgetKeepsSinksThenTheNewest) {
  EXPECT_EQ(PlainLayer(100).Kept("snapkv(budget=10%,over_budget=budget)"),
            Range(0, 3) + Range(94, 99));
  EXPECT_EQ(PlainLayer(100).Kept("snapkv(budget=3,over_budget=budget)"), Range(0, 2));
  // The newest of the protected rows, not of all.
  EXPECT_EQ(PlainLayer(100).Kept("recency(budget=8,protect=[10..19,50..51],over_budget=budget)"),
            Range(0, 3) + Positions({18, 19, 50, 51}));
}

TEST(Evictor, MissingQueriesAreNamed) {
  Observed observed(RandomLayer({2, 1, 16, 16, 100, 64}, 6));
  observed.window_positions.erase(observed.window_positions.begin() + 60);  // position 96
  const auto evictor = MustMake("snapkv(budget=50%)");
  SerialParallel serial;
  Observation observation = observed.observation();
  auto decided = evictor->Decide({&observation, 1}, serial, nullptr);
  ASSERT_FALSE(decided.ok());
  EXPECT_EQ(decided.message(),
            "layer 0: the queries of 1 window positions were not observed: 96 (option window=32); "
            "observe queries up to the last row, or take a scorer without queries");
  observation.window_positions = {};
  decided = evictor->Decide({&observation, 1}, serial, nullptr);
  ASSERT_FALSE(decided.ok());
  EXPECT_NE(decided.message().find("32 window positions were not observed: 68..99"),
            std::string::npos);
}

TEST(Evictor, ObservationsThatContradictThemselvesAreErrors) {
  const Observed observed(RandomLayer({2, 2, 16, 8, 100, 64}, 6));
  SerialParallel serial;
  const auto evictor = MustMake("output_perturbation(budget=50%)");
  const auto message = [&](auto&& change) {
    Observation observation = observed.observation();
    std::vector<HeadObservation> heads(observation.heads.begin(), observation.heads.end());
    change(observation, heads);
    observation.heads = heads;
    const auto decided = evictor->Decide({&observation, 1}, serial, nullptr);
    return decided.ok() ? std::string("no error") : decided.message();
  };
  EXPECT_EQ(message([](auto&, auto&) {}), "no error");
  EXPECT_EQ(message([](auto& o, auto&) { o.layer.query_heads = 3; }),
            "layer 0: 3 query heads are not a multiple of 2 KV heads");
  EXPECT_EQ(message([](auto&, auto& heads) { heads.pop_back(); }),
            "layer 0: 1 heads observed, expected 2");
  EXPECT_EQ(message([](auto&, auto& heads) { heads[1].values = nullptr; }),
            "layer 0 head 1: no values");
  EXPECT_EQ(message([](auto& o, auto&) { o.layer.key_dim = 17; }),
            "layer 0 head 0: keys are 100 x 16, expected 100 x 17");
  EXPECT_EQ(message([](auto&, auto& heads) { heads[1].values = heads[1].keys; }),
            "layer 0 head 1: values are 100 x 16, expected 100 x 8");
  const auto with_position = [&](std::size_t row, TokenPos position) {
    std::vector<TokenPos> positions(observed.observation().heads[0].positions.begin(),
                                    observed.observation().heads[0].positions.end());
    positions[row] = position;
    return message([&](auto&, auto& heads) { heads[1].positions = positions; });
  };
  EXPECT_EQ(with_position(0, -1),
            "layer 0 head 1: position -1 is negative or not greater than the one before");
  EXPECT_EQ(with_position(9, 8),
            "layer 0 head 1: position 8 is negative or not greater than the one before");
}

// Bytes are the cache's to turn into rows: an evictor knows none.
TEST(Evictor, ABudgetInBytesIsNotDecidedHere) {
  const Observed observed(RandomLayer({2, 2, 16, 8, 100, 64}, 6));
  SerialParallel serial;
  const Observation observation = observed.observation();
  const auto decided = MustMake("key_norm(budget=4x)")->Decide({&observation, 1}, serial, nullptr);
  ASSERT_FALSE(decided.ok());
  EXPECT_EQ(decided.message(),
            "budget 4x is in bytes: rank first, then select the rows that fit (option budget)");
}

// Heads that an earlier eviction left with different rows, one of them with none.
TEST(Evictor, HeadsMayHaveDifferentRows) {
  const oracle::Layer layer = RandomLayer({2, 2, 16, 16, 100, 64}, 11);
  const Observed observed(layer);
  oracle::Layer newest = RandomLayer({1, 1, 16, 16, 40, 32}, 12);
  newest.positions = Range(60, 99);
  const Observed short_head(newest);
  const testing::TestSource none(nullptr, 0, 16, {});
  for (const char* spec : {"snapkv(budget=48%)", "output_perturbation(budget=50%,window=8)"}) {
    Observation observation = observed.observation();
    observation.layer.query_heads = observation.layer.kv_heads = 3;
    std::vector<float> queries = layer.q;
    queries.insert(queries.end(), layer.q.begin(), layer.q.begin() + 64 * 16);
    observation.window_queries = queries.data();
    const std::vector<HeadObservation> heads = {
        observation.heads[0], {&none, &none, {}}, short_head.observation().heads[0]};
    observation.heads = heads;
    const LayerDecision ragged = Decide(spec, observation);
    EXPECT_EQ(Kept(ragged, 0), Kept(Decide(spec, observed.observation()), 0));
    EXPECT_EQ(Kept(ragged, 1), Positions{});
    Observation alone = short_head.observation();
    alone.window_queries = layer.q.data();
    alone.window_positions = observation.window_positions;
    EXPECT_EQ(Kept(ragged, 2), Kept(Decide(spec, alone), 0));
  }
}

TEST(Evictor, SlidingWindowLayersStayWhole) {
  oracle::Layer layer = RandomLayer({2, 1, 16, 16, 100, 64}, 6);
  layer.spec.sliding_window = 64;
  const LayerDecision decision = Decide("snapkv(budget=50%)", Observed(layer).observation());
  EXPECT_EQ(Kept(decision, 0), Range(0, 99));
  EXPECT_EQ(decision.note, "sliding-window layers are not scored");
}

TEST(Evictor, TheWindowCanBeEvictedWhenItIsNotProtected) {
  oracle::Layer layer = RandomLayer({1, 1, 16, 16, 100, 64}, 8);
  // Queries that love row 50 and nothing else.
  for (std::size_t i = 0; i < layer.q.size(); ++i) layer.q[i] = 20.0F * layer.k[50 * 16 + i % 16];
  const Observed observed(layer);
  const Positions kept =
      Kept(Decide("snapkv(budget=7,sinks=0,protect_window=false)", observed.observation()), 0);
  EXPECT_EQ(kept, Range(47, 53));
}

// scope=layer ranks the mean over heads; scope=model over all layers' heads.
TEST(Evictor, ScopesShareOneSet) {
  std::vector<Observed> observed;
  for (int i = 0; i < 3; ++i) observed.emplace_back(RandomLayer({4, 2, 16, 16, 120, 32}, 70 + i));
  std::vector<Observation> layers;
  for (const Observed& layer : observed) layers.push_back(layer.observation());
  SerialParallel serial;
  const auto by_layer = MustMake("snapkv(budget=48,scope=layer)")->Decide(layers, serial, nullptr);
  const auto by_model = MustMake("snapkv(budget=48,scope=model)")->Decide(layers, serial, nullptr);
  ASSERT_TRUE(by_layer.ok() && by_model.ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Kept((*by_layer)[i], 0), Kept((*by_layer)[i], 1));
    EXPECT_EQ(Kept((*by_model)[i], 0), Kept((*by_model)[0], 0));
    EXPECT_EQ(Kept((*by_model)[i], 1), Kept((*by_model)[0], 0));
    EXPECT_EQ((*by_layer)[i].keep.rows(0), 48);
  }
  EXPECT_NE(Kept((*by_layer)[0], 0), Kept((*by_layer)[1], 0));
}

TEST(Evictor, ASharedSetNeedsTheSameRows) {
  std::vector<Observed> observed;
  observed.emplace_back(RandomLayer({2, 1, 8, 8, 120, 32}, 1));
  observed.emplace_back(RandomLayer({2, 1, 8, 8, 121, 32}, 2));
  const std::vector<Observation> layers = {observed[0].observation(), observed[1].observation()};
  SerialParallel serial;
  const auto decided = MustMake("snapkv(budget=48,scope=model)")->Decide(layers, serial, nullptr);
  ASSERT_FALSE(decided.ok());
  EXPECT_NE(decided.message().find("option scope"), std::string::npos);
}

TEST(Evictor, RandomSetsDependOnSeedLayerAndHeadOnly) {
  const Observed observed(RandomLayer({2, 2, 8, 8, 200, 8}, 3));
  Observation observation = observed.observation();
  const LayerDecision first = Decide("random(budget=50,seed=1)", observation);
  EXPECT_EQ(Kept(first, 0), Kept(Decide("random(budget=50,seed=1)", observation), 0));
  EXPECT_NE(Kept(first, 0), Kept(first, 1));
  EXPECT_NE(Kept(first, 0), Kept(Decide("random(budget=50,seed=2)", observation), 0));
  observation.layer.layer = 7;
  EXPECT_NE(Kept(first, 0), Kept(Decide("random(budget=50,seed=1)", observation), 0));
}

// -- properties, every scorer -----------------------------------------------------------------

class EvictorProperty : public ::testing::TestWithParam<std::string_view> {
 protected:
  static std::string Spec(std::string_view name, const std::string& args) {
    return std::string(name) + "(" + args + ")";
  }
};

INSTANTIATE_TEST_SUITE_P(Scorers, EvictorProperty,
                         ::testing::Values("window_attention", "output_perturbation", "recency",
                                           "random", "key_proxy", "key_norm", "key_diff", "lag",
                                           "expected_attention"),
                         [](const auto& name) { return std::string(name.param); });

TEST_P(EvictorProperty, KeepsTheBudgetItsProtectedRowsAndLargerBudgetsKeepMore) {
  const Observed observed(RandomLayer({6, 3, 24, 40, 500, 64}, 101));
  std::vector<Positions> smaller(3);
  for (const int budget : {40, 41, 64, 100, 250, 499, 500}) {
    const LayerDecision decision = Decide(
        Spec(GetParam(), "recent=32,budget=" + std::to_string(budget)), observed.observation());
    for (int head = 0; head < 3; ++head) {
      const Positions kept = Kept(decision, head);
      const Positions must = Range(0, 3) + Range(468, 499);
      EXPECT_EQ(kept.size(), static_cast<std::size_t>(budget));
      EXPECT_TRUE(std::includes(kept.begin(), kept.end(), must.begin(), must.end()));
      EXPECT_TRUE(
          std::includes(kept.begin(), kept.end(), smaller[head].begin(), smaller[head].end()));
      smaller[head] = kept;
    }
  }
}

TEST_P(EvictorProperty, DoesNotDependOnTheNumberOfWorkers) {
  const Observed observed(RandomLayer({16, 8, 24, 40, 300, 64}, 102));
  const Observation observation = observed.observation();
  const auto evictor = MustMake(Spec(GetParam(), "budget=25%"));
  const LayerDecision serial = Decide(Spec(GetParam(), "budget=25%"), observation);
  for (const int workers : {2, 3, 16}) {
    testing::ThreadedParallel threads(workers);
    const auto decided = evictor->Decide({&observation, 1}, threads, nullptr);
    ASSERT_TRUE(decided.ok());
    for (int head = 0; head < 8; ++head) {
      EXPECT_EQ(Kept(decided->front(), head), Kept(serial, head));
    }
  }
}

TEST_P(EvictorProperty, PositionsWithGapsArePreserved) {
  oracle::Layer layer = RandomLayer({2, 1, 16, 16, 100, 64}, 103);
  const Observed dense(layer);
  for (TokenPos& position : layer.positions) position = 3 * position + 7;
  const Observed sparse(layer);
  Positions expected = Kept(Decide(Spec(GetParam(), "budget=50"), dense.observation()), 0);
  for (TokenPos& position : expected) position = 3 * position + 7;
  const Positions kept = Kept(Decide(Spec(GetParam(), "budget=50"), sparse.observation()), 0);
  if (GetParam() == "random") {
    EXPECT_EQ(kept.size(), expected.size());  // drawn by position
  } else {
    EXPECT_EQ(kept, expected);
  }
}

// More than one layer at once: each is decided as if alone (scope=kv_head).
TEST_P(EvictorProperty, LayersDoNotTouchEachOther) {
  std::vector<Observed> observed;
  observed.emplace_back(RandomLayer({4, 2, 16, 24, 200, 64}, 104));
  observed.emplace_back(RandomLayer({3, 1, 40, 8, 90, 64}, 105));
  const std::vector<Observation> layers = {observed[0].observation(), observed[1].observation()};
  SerialParallel serial;
  const auto both = MustMake(Spec(GetParam(), "budget=45%"))->Decide(layers, serial, nullptr);
  ASSERT_TRUE(both.ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Kept((*both)[i], 0), Kept(Decide(Spec(GetParam(), "budget=45%"), layers[i]), 0));
  }
}

}  // namespace
}  // namespace kvsieve
