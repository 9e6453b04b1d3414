// Splits of a budget over layers and heads: exact totals, floors, protection.
#include "evict/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/evict.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using evict::RowSet;
using evict::Split;
using testing::LayerShape;
using testing::MustMake;
using testing::Observed;
using testing::RandomLayer;
using Rows = std::vector<std::int64_t>;

std::int64_t Sum(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

TEST(Split, ApportionsByLargestRemainderEarlierFirst) {
  const Rows roomy(3, 100);
  EXPECT_EQ(evict::Apportion(10, Rows{1, 1, 1}, roomy), Rows({4, 3, 3}));
  EXPECT_EQ(evict::Apportion(11, Rows{1, 1, 1}, roomy), Rows({4, 4, 3}));
  // Quotas 1.6, 3.2, 3.2: one row is left, and 0.6 is the largest remainder.
  EXPECT_EQ(evict::Apportion(8, Rows{1, 2, 2}, roomy), Rows({2, 3, 3}));
  EXPECT_EQ(evict::Apportion(0, Rows{1, 2, 2}, roomy), Rows({0, 0, 0}));
}

TEST(Split, WhatACappedShareCannotTakeGoesToTheOthers) {
  EXPECT_EQ(evict::Apportion(12, Rows{4, 1, 1}, Rows{5, 100, 100}), Rows({5, 4, 3}));
  // The second cap is passed only once the first one's rest comes.
  EXPECT_EQ(evict::Apportion(12, Rows{4, 1, 1}, Rows{5, 3, 100}), Rows({5, 3, 4}));
  EXPECT_EQ(evict::Apportion(1000, Rows{4, 1, 1}, Rows{5, 3, 2}), Rows({5, 3, 2}));
  EXPECT_EQ(evict::Apportion(7, Rows{4, 1}, Rows{0, 100}), Rows({0, 7}));
}

TEST(Split, ApportionedTotalsAreExactAndNobodyPassesItsCap) {
  std::mt19937_64 rng(31);
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE(round);
    const std::size_t n = 1 + rng() % 40;
    Rows weights(n);
    Rows caps(n);
    for (std::int64_t& weight : weights) weight = 1 + static_cast<std::int64_t>(rng() >> 31);
    for (std::int64_t& cap : caps) cap = static_cast<std::int64_t>(rng() % 3000);
    const auto total = static_cast<std::int64_t>(rng() % 60000);
    const Rows shares = evict::Apportion(total, weights, caps);
    EXPECT_EQ(Sum(shares), std::min(total, Sum(caps)));
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_GE(shares[i], 0);
      EXPECT_LE(shares[i], caps[i]);
    }
  }
}

RowSet Free(std::int64_t rows, std::int64_t budget, std::int64_t protected_count) {
  RowSet set;
  set.rows = rows;
  set.budget = budget;
  set.share = budget;
  set.protected_count = protected_count;
  return set;
}

// PyramidKV: the last layer has 1/beta of the mean beyond the protected rows, the first 2 - 1/beta.
TEST(Split, APyramidFallsLinearlyOverTheLayers) {
  Split split{.kind = evict::SplitKind::kPyramid, .beta = 20};
  const std::vector<RowSet> two(2, Free(10000, 1036, 36));
  EXPECT_EQ(evict::PyramidRows(split, two, std::vector<int>{0, 1}, 2), Rows({1986, 86}));
  const std::vector<RowSet> three(3, Free(10000, 1036, 36));
  EXPECT_EQ(evict::PyramidRows(split, three, std::vector<int>{0, 1, 2}, 3), Rows({1986, 1036, 86}));
  split.beta = 1;
  EXPECT_EQ(evict::PyramidRows(split, three, std::vector<int>{0, 1, 2}, 3),
            Rows({1036, 1036, 1036}));
}

TEST(Split, APyramidOfOneLayerIsUniform) {
  const Split split{.kind = evict::SplitKind::kPyramid, .beta = 20};
  const std::vector<RowSet> heads(3, Free(500, 101, 36));
  EXPECT_EQ(evict::PyramidRows(split, heads, std::vector<int>{0, 0, 0}, 1), Rows({101, 101, 101}));
}

TEST(Split, APyramidLeavesWholeAndOverfullSetsAlone) {
  const Split split{.kind = evict::SplitKind::kPyramid, .beta = 20};
  std::vector<RowSet> sets = {Free(500, 100, 36), Free(500, 100, 36), Free(500, 100, 120),
                              Free(60, 60, 60)};
  sets.back().whole = true;
  EXPECT_EQ(evict::PyramidRows(split, sets, std::vector<int>{0, 1, 2, 3}, 4)[2], 100);
  EXPECT_EQ(evict::PyramidRows(split, sets, std::vector<int>{0, 1, 2, 3}, 4)[3], 60);
}

// Down the list of all free rows, best first; a set's own best rows up to its floor are taken
// before.
Rows Competed(const Split& split, const std::vector<RowSet>& sets,
              const std::vector<std::vector<std::uint64_t>>& free_keys) {
  struct Row {
    std::uint64_t key;
    std::size_t set;
  };
  Rows rows;
  std::vector<Row> left;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const double floor = std::ceil(split.floor * static_cast<double>(sets[i].budget) - 1e-9);
    rows.push_back(std::max(sets[i].protected_count, static_cast<std::int64_t>(floor)));
    total += sets[i].budget - rows.back();
    std::vector<std::uint64_t> keys = free_keys[i];
    std::sort(keys.rbegin(), keys.rend());
    for (auto k = static_cast<std::size_t>(rows.back() - sets[i].protected_count); k < keys.size();
         ++k) {
      left.push_back({keys[k], i});
    }
  }
  std::stable_sort(left.begin(), left.end(),
                   [](const Row& a, const Row& b) { return a.key > b.key; });
  for (std::int64_t i = 0; i < total; ++i) ++rows[left[static_cast<std::size_t>(i)].set];
  return rows;
}

TEST(Split, AdaptiveSetsCompeteAsInOneSortedList) {
  std::mt19937_64 rng(32);
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(round);
    const std::size_t n = 1 + rng() % 6;
    const Split split{.kind = evict::SplitKind::kAdaptive,
                      .floor = static_cast<double>(rng() % 11) / 10};
    std::vector<RowSet> sets;
    std::vector<std::vector<std::uint64_t>> all(n);
    std::vector<std::vector<std::uint64_t>> of_protected(n);
    std::vector<std::vector<std::uint64_t>> free_keys(n);
    std::vector<evict::SetKeys> keys;
    const std::uint64_t values = round % 3 == 0 ? 4 : 1000;  // few values: many ties
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t rows = 1 + static_cast<std::int64_t>(rng() % 50);
      const std::int64_t protected_count = static_cast<std::int64_t>(rng() % rows);
      const std::int64_t budget =
          protected_count + static_cast<std::int64_t>(rng() % (rows - protected_count + 1));
      sets.push_back(Free(rows, budget, protected_count));
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::uint64_t key = (rng() % values) << 40 | (round % 2 ? rng() % values : 0);
        all[i].push_back(key);
        (r < protected_count ? of_protected : free_keys)[i].push_back(key);
      }
      std::sort(all[i].rbegin(), all[i].rend());
      std::sort(of_protected[i].rbegin(), of_protected[i].rend());
    }
    for (std::size_t i = 0; i < n; ++i) keys.push_back({all[i], of_protected[i]});
    EXPECT_EQ(evict::AdaptiveRows(split, sets, keys), Competed(split, sets, free_keys));
  }
}

TEST(Split, AFloorOfOneIsUniform) {
  const Split split{.kind = evict::SplitKind::kAdaptive, .floor = 1};
  const std::vector<RowSet> sets = {Free(5, 3, 1), Free(5, 2, 1)};
  const std::vector<std::uint64_t> high = {90, 80, 70, 60, 50};
  const std::vector<std::uint64_t> low = {9, 8, 7, 6, 5};
  const std::vector<evict::SetKeys> keys = {{high, std::span(high).first(1)},
                                            {low, std::span(low).first(1)}};
  EXPECT_EQ(evict::AdaptiveRows(split, sets, keys), Rows({3, 2}));
}

// -- through the evictor ----------------------------------------------------------------------

struct Model {
  std::vector<Observed> observed;
  std::vector<Observation> layers;
};

Model MakeModel(int layers, int kv_heads, std::int64_t rows, std::uint64_t seed) {
  Model model;
  for (int i = 0; i < layers; ++i) {
    model.observed.emplace_back(RandomLayer({kv_heads, kv_heads, 8, 8, rows, 32}, seed + i));
  }
  for (const Observed& layer : model.observed) model.layers.push_back(layer.observation());
  for (int i = 0; i < layers; ++i) model.layers[static_cast<std::size_t>(i)].layer.layer = i;
  return model;
}

std::vector<LayerDecision> DecideAll(const std::string& spec, const Model& model,
                                     Parallel& parallel) {
  const auto decided = MustMake(spec)->Decide(model.layers, parallel, nullptr);
  EXPECT_TRUE(decided.ok()) << (decided.ok() ? "" : decided.message());
  return decided.ok() ? *decided : std::vector<LayerDecision>(model.layers.size());
}

Rows RowsPerHead(const std::vector<LayerDecision>& decisions) {
  Rows rows;
  for (const LayerDecision& decision : decisions) {
    for (int head = 0; head < decision.keep.kv_heads(); ++head) {
      rows.push_back(decision.keep.rows(head));
    }
  }
  return rows;
}

TEST(Split, TotalsAreExactForManyShapes) {
  SerialParallel serial;
  for (const int layers : {1, 2, 3, 7}) {
    for (const int kv_heads : {1, 3}) {
      for (const std::int64_t rows : {33, 150}) {
        const Model model = MakeModel(layers, kv_heads, rows, 40 + rows);
        for (const std::int64_t budget : {21, 29, 32, 33, 77, 149, 200}) {
          for (const char* split : {"uniform", "pyramid", "pyramid(beta=2)", "adaptive",
                                    "adaptive(floor=0)", "adaptive(floor=0.7,scope=model)"}) {
            const std::string spec =
                "snapkv(window=16,budget=" + std::to_string(budget) + ",split=" + split + ")";
            SCOPED_TRACE(spec + " of " + std::to_string(layers) + " layers x " +
                         std::to_string(kv_heads) + " x " + std::to_string(rows));
            const Rows kept = RowsPerHead(DecideAll(spec, model, serial));
            EXPECT_EQ(Sum(kept), std::min(budget, rows) * layers * kv_heads);
            for (const std::int64_t head : kept) EXPECT_GE(head, std::min<std::int64_t>(20, rows));
          }
        }
      }
    }
  }
}

TEST(Split, AdaptiveHeadsKeepTheirFloorAndTheLayerItsTotal) {
  SerialParallel serial;
  const Model model = MakeModel(3, 4, 300, 50);
  const Rows kept = RowsPerHead(
      DecideAll("snapkv(window=8,budget=100,split=adaptive(floor=0.5))", model, serial));
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const Rows heads(kept.begin() + static_cast<std::ptrdiff_t>(4 * layer),
                     kept.begin() + static_cast<std::ptrdiff_t>(4 * layer + 4));
    EXPECT_EQ(Sum(heads), 400);
    for (const std::int64_t head : heads) EXPECT_GE(head, 50);
    EXPECT_NE(*std::max_element(heads.begin(), heads.end()), 100) << "nobody competed";
  }
}

TEST(Split, EveryHeadKeepsItsOwnBestRows) {
  SerialParallel serial;
  const Model model = MakeModel(2, 3, 300, 51);
  for (const char* split : {"pyramid", "adaptive", "adaptive(scope=model)"}) {
    const auto ragged =
        DecideAll(std::string("snapkv(window=8,budget=60,split=") + split + ")", model, serial);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 3; ++head) {
        const auto rows = ragged[layer].keep.rows(head);
        const auto alone =
            DecideAll("snapkv(window=8,budget=" + std::to_string(rows) + ")", model, serial);
        EXPECT_EQ(testing::Kept(ragged[layer], head), testing::Kept(alone[layer], head)) << split;
      }
    }
  }
}

TEST(Split, DoesNotDependOnTheNumberOfWorkers) {
  SerialParallel serial;
  const Model model = MakeModel(3, 3, 200, 52);
  for (const char* split : {"pyramid", "adaptive", "adaptive(scope=model)"}) {
    const std::string spec = std::string("snapkv(budget=25%,split=") + split + ")";
    const auto expected = DecideAll(spec, model, serial);
    for (const int workers : {2, 5}) {
      testing::ThreadedParallel threads(workers);
      const auto decided = DecideAll(spec, model, threads);
      for (std::size_t layer = 0; layer < 3; ++layer) {
        for (int head = 0; head < 3; ++head) {
          EXPECT_EQ(testing::Kept(decided[layer], head), testing::Kept(expected[layer], head));
        }
      }
    }
  }
}

TEST(Split, SlidingLayersTakeNoPart) {
  SerialParallel serial;
  Model model = MakeModel(3, 2, 200, 53);
  model.layers[1].layer.sliding_window = 64;
  for (const char* split : {"pyramid", "adaptive(scope=model)"}) {
    const Rows kept =
        RowsPerHead(DecideAll(std::string("snapkv(budget=60,split=") + split + ")", model, serial));
    EXPECT_EQ(kept[2] + kept[3], 400);
    EXPECT_EQ(Sum(kept), 400 + 4 * 60);
  }
}

}  // namespace
}  // namespace kvsieve
