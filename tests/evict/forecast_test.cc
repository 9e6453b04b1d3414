// What is told of a decision beforehand, against the decision.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kvsieve/evict.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using testing::LayerShape;
using testing::MustMake;
using testing::Observed;
using testing::RandomLayer;

// Layers of unlike shapes; the second slides, which takes it out of the ranking.
struct Model {
  std::vector<std::unique_ptr<Observed>> observed;
  std::vector<Observation> observations;
  std::vector<LayerSpec> layers;

  Model(std::int64_t rows, std::uint64_t seed) {
    for (int i = 0; i < 4; ++i) {
      LayerShape shape;
      shape.kv_heads = i == 2 ? 1 : 2;
      shape.key_dim = shape.value_dim = 16;
      shape.rows = rows;
      observed.push_back(
          std::make_unique<Observed>(RandomLayer(shape, seed + static_cast<std::uint64_t>(i))));
      observations.push_back(observed.back()->observation());
      observations.back().layer.layer = i;
      if (i == 1) observations.back().layer.sliding_window = 40;
      layers.push_back(observations.back().layer);
    }
  }
};

void ExpectBounds(const RowBounds& bounds, std::int64_t rows) {
  EXPECT_LE(bounds.least, rows);
  EXPECT_GE(bounds.most, rows);
}

void ExpectForecast(const Forecast& forecast, const std::vector<LayerDecision>& decisions,
                    const Model& model) {
  std::int64_t all = 0;
  ASSERT_EQ(forecast.layers.size(), decisions.size());
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    SCOPED_TRACE("layer " + std::to_string(i));
    const LayerForecast& layer = forecast.layers[i];
    const KeepSet& keep = decisions[i].keep;
    if (model.layers[i].sliding_window > 0) {
      EXPECT_TRUE(layer.heads.empty());
      continue;
    }
    ASSERT_EQ(layer.heads.size(), static_cast<std::size_t>(keep.kv_heads()));
    for (int head = 0; head < keep.kv_heads(); ++head) {
      ExpectBounds(layer.heads[head].rows, keep.rows(head));
      const auto kept = keep.positions(head);
      for (const PositionRange& range : layer.heads[head].certain) {
        for (TokenPos p = range.begin; p < range.end; ++p) {
          EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), p)) << p;
        }
      }
    }
    ExpectBounds(layer.rows, keep.rows());
    all += keep.rows();
  }
  ExpectBounds(forecast.rows, all);
}

Forecast MustForesee(const Evictor& evictor, const Model& model, std::int64_t tokens,
                     std::int64_t total) {
  ForecastCall call;
  call.layers = model.layers;
  call.tokens = tokens;
  call.total_rows = total;
  Result<Forecast> forecast = evictor.Foresee(call);
  EXPECT_TRUE(forecast.ok());
  return *std::move(forecast);
}

TEST(Forecast, HoldsWhatIsDecided) {
  for (const char* spec :
       {"snapkv(budget=64)", "snapkv(budget=25%,recent=10%)", "random(budget=7)",
        "snapkv(budget=500)", "snapkv(budget=40,over_budget=budget,sinks=20)",
        "snapkv(budget=10%,protect=[50..90])", "snapkv(budget=30%,split=pyramid(beta=10))",
        "snapkv(budget=30%,split=adaptive)",
        "snapkv(budget=30%,split=adaptive(floor=0.5,scope=model))",
        "snapkv(budget=30%,split=adaptive(floor=0),select=top_p:0.5)",
        "random(budget=50%,select=threshold:0.8)", "random(budget=33%,select=chunk:7)",
        "snapkv(budget=33%,scope=layer)", "snapkv(budget=33%,scope=model)", "recency(budget=auto)",
        "random(budget=20%,min_tokens=200)"}) {
    SCOPED_TRACE(spec);
    const auto evictor = MustMake(spec);
    for (const std::int64_t rows : {1, 90, 300}) {
      SCOPED_TRACE(rows);
      const Model model(rows, 5);
      SerialParallel serial;
      const auto decisions = evictor->Decide(model.observations, serial, nullptr);
      ASSERT_TRUE(decisions.ok()) << decisions.error().message;
      ExpectForecast(MustForesee(*evictor, model, rows, 0), *decisions, model);
    }
  }
}

TEST(Forecast, HoldsWhatARankingSelects) {
  const Model model(200, 6);
  for (const char* spec : {"snapkv(budget=1MiB)", "snapkv(budget=2x,split=adaptive)",
                           "random(budget=2x,split=pyramid)", "snapkv(budget=2x,scope=model)"}) {
    SCOPED_TRACE(spec);
    const auto evictor = MustMake(spec);
    SerialParallel serial;
    const auto ranking = evictor->Rank(model.observations, {}, serial, nullptr);
    ASSERT_TRUE(ranking.ok());
    for (const std::int64_t total : {5, 303, 900}) {
      const auto decisions = (*ranking)->Select(total, serial);
      ASSERT_TRUE(decisions.ok());
      ExpectForecast(MustForesee(*evictor, model, 200, total), *decisions, model);
    }
  }
}

// Bounds are numbers wherever scores choose rows but not how many.
TEST(Forecast, IsExactWhereScoresDoNotChooseHowMany) {
  const Model model(200, 7);
  const Forecast plain = MustForesee(*MustMake("snapkv(budget=25%)"), model, 200, 0);
  EXPECT_EQ(plain.rows.least, 5 * 50);
  EXPECT_EQ(plain.rows.most, 5 * 50);
  ASSERT_EQ(plain.layers[0].heads[1].certain.size(), 2U);
  EXPECT_EQ(plain.layers[0].heads[1].certain[1].begin, 168);

  // Heads differ, their layer does not.
  const Forecast adaptive =
      MustForesee(*MustMake("snapkv(budget=25%,split=adaptive)"), model, 200, 0);
  EXPECT_LT(adaptive.layers[0].heads[0].rows.least, adaptive.layers[0].heads[0].rows.most);
  EXPECT_EQ(adaptive.layers[0].rows.least, 100);
  EXPECT_EQ(adaptive.layers[0].rows.most, 100);
  // A lone head has nobody to compete with.
  EXPECT_EQ(adaptive.layers[2].heads[0].rows.least, 50);

  // Nor do layers, where all of them compete.
  const Forecast model_wide =
      MustForesee(*MustMake("snapkv(budget=25%,split=adaptive(scope=model))"), model, 200, 0);
  EXPECT_LT(model_wide.layers[2].rows.least, model_wide.layers[2].rows.most);
  EXPECT_EQ(model_wide.rows.least, 250);
  EXPECT_EQ(model_wide.rows.most, 250);
}

}  // namespace
}  // namespace kvsieve
