// Budgets in bytes: what is kept, measured by the byte report, against the budget.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "lib/position_list.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAppend;
using cache_test::MustCreate;
using cache_test::MustParse;
using cache_test::Prompt;

// The rows of every layer, and the last queries.
struct Model {
  std::vector<LayerSpec> layers;
  std::vector<Prompt> prompts;
  std::vector<std::vector<float>> queries;  // of the last 32 rows

  Model(std::vector<LayerSpec> specs, std::int64_t rows, std::uint64_t seed)
      : layers(std::move(specs)) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i].layer = static_cast<int>(i);
      prompts.push_back(MakePrompt(layers[i], rows, seed + 10 * i));
      queries.push_back(cache_test::UniformRows(
          std::int64_t{layers[i].query_heads} * Window(i) * layers[i].key_dim, seed + 10 * i + 5));
    }
  }

  std::int64_t Window(std::size_t i) const { return std::min<std::int64_t>(32, prompts[i].rows()); }

  Cache Finished(const std::string& spec, std::int64_t chunk = 0,
                 Parallel* parallel = nullptr) const {
    CacheOptions options;
    options.parallel = parallel;
    Cache cache = MustCreate(spec, layers, options);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const int index = static_cast<int>(i);
      MustAppend(cache, index, prompts[i], chunk);
      const auto window = std::span(prompts[i].positions).last(Window(i));
      const Status observed =
          cache.Observe(index, window,
                        HeadsView::HeadMajor(queries[i].data(), layers[i].query_heads, Window(i),
                                             layers[i].key_dim));
      EXPECT_TRUE(observed.ok()) << observed.message();
    }
    const Status finished = cache.FinishPrefill();
    EXPECT_TRUE(finished.ok()) << spec << ": " << finished.message();
    return cache;
  }
};

std::int64_t KeptBytes(const Cache& cache) { return cache.Report().kept_bytes(); }

std::int64_t KeptRows(const Cache& cache) { return cache.Report().rows_kept; }

// One row of every layer and head that is ranked, at the width of the next row it would get: what a
// budget may leave unused at most. A head whose rows all fit into sinks and tail, or that may still
// get an exact sink, takes f32 rows.
std::int64_t OneRowEach(const std::string& spec, const Cache& cache) {
  const auto pipeline = MustParse(spec);
  const int count = cache.layers();
  std::int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    const LayerSpec& layer = cache.layer(i);
    if (layer.sliding_window > 0) continue;
    const auto store = BuildStore(pipeline->StoreFor(i, count, 0), layer);
    EXPECT_TRUE(store.ok());
    const RowBytes key = store->key->codec().row_bytes();
    const RowBytes value = store->value->codec().row_bytes();
    for (int head = 0; head < layer.kv_heads; ++head) {
      const std::int64_t exact_rows = pipeline->exact_sinks() + pipeline->tail();
      const bool exact = cache.rows(i, head) <= exact_rows || pipeline->exact_sinks() > 4;
      bytes += exact ? 4 * (layer.key_dim + layer.value_dim)
                     : key.codes + key.scales + value.codes + value.scales;
    }
  }
  return bytes;
}

std::vector<LayerSpec> ThreeLayers() { return std::vector<LayerSpec>(3, MakeLayer(4, 2, 64, 64)); }

std::string WithBudget(const std::string& evict, std::int64_t bytes, const std::string& store) {
  return StrCat(evict, ",budget=", bytes, "B) | ", store);
}

class ByteBudgets : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    Stores, ByteBudgets,
    ::testing::Values("kv=f16", "kv=int8", "k=int8, v=int4", "kv=int4(group=row)",
                      "k=f16, v=int4(group=16,sym)", "kv=turbo4", "k=turbo5, v=turbo1",
                      "k=center+turbo3, v=turbo2", "k=center+int8, v=hadamard+int4 | tail=17",
                      "k=int8, v=turbo4 | tail=64",
                      "k=center+turbo4, v=int8 | exact_sinks=9, tail=3",
                      "kv=int4 | exact_sinks=4, tail=40", "kv=int8 | layers(0..0)={kv=f16}"));

TEST_P(ByteBudgets, AreMetAndLessThanOneRowOfEachHeadIsLeft) {
  const Model model(ThreeLayers(), 330, 71);
  const std::string store = GetParam();
  for (const char* evict :
       {"recency(sinks=4", "random(seed=3", "snapkv(window=16", "snapkv(window=8,split=pyramid",
        "snapkv(window=8,split=adaptive", "key_norm(split=adaptive(floor=0,scope=model)",
        "random(select=chunk:8", "snapkv(window=16,scope=layer,pool=none"}) {
    const std::int64_t full = KeptBytes(model.Finished("none | " + store));
    const std::int64_t least = KeptBytes(model.Finished(WithBudget(evict, 1, store)));
    for (const int percent : {13, 50, 81}) {
      const std::int64_t budget = least + (full - least) * percent / 100;
      const std::string spec = WithBudget(evict, budget, store);
      SCOPED_TRACE(spec);
      const Cache cache = model.Finished(spec);
      EXPECT_LE(KeptBytes(cache), budget);
      EXPECT_LT(budget - KeptBytes(cache), OneRowEach(spec, cache));
      // A small budget may keep fewer rows than the tail, and the note says that.
      EXPECT_EQ(cache.ReportLayer(0).note.find("budget"), std::string::npos);
    }
  }
}

// All budgets in rows, one after the other: the largest that fits is what the bytes find, and the
// heads differ by one row at most, the first ones having it.
TEST(ByteBudget, FindsTheLargestUniformBudget) {
  const Model model({MakeLayer(2, 2, 32, 32), MakeLayer(3, 1, 48, 16)}, 90, 72);
  const std::string store = "k=center+turbo4, v=int8 | tail=5";
  std::vector<std::int64_t> bytes_of = {0};  // by rows per head
  for (int rows = 1; rows < 90; ++rows) {
    bytes_of.push_back(KeptBytes(
        model.Finished(StrCat("random(over_budget=protected,budget=", rows, ") | ", store))));
  }
  for (const std::int64_t budget : {bytes_of[20], bytes_of[20] - 1, bytes_of[57] + 1,
                                    bytes_of[33] + 100, bytes_of[88], bytes_of[5]}) {
    SCOPED_TRACE(budget);
    const Cache cache = model.Finished(WithBudget("random(sinks=4", budget, store));
    const std::int64_t last = cache.rows(1, 0);
    EXPECT_LE(bytes_of[last], budget);
    EXPECT_GT(bytes_of[last + 1], budget);
    std::int64_t before = last + 1;
    for (const std::int64_t rows : {cache.rows(0, 0), cache.rows(0, 1), last}) {
      EXPECT_LE(rows, before);
      EXPECT_GE(rows, last);
      before = rows;
    }
  }
}

TEST(ByteBudget, AFactorCountsTheF16BytesOfEveryToken) {
  for (const bool slides : {false, true}) {
    std::vector<LayerSpec> layers = ThreeLayers();
    layers[1].sliding_window = slides ? 64 : 0;
    const Model sliding(layers, 400, 73);
    const std::string spec = "random(budget=2.5x) | kv=int8";
    const Cache cache = sliding.Finished(spec);
    const ByteReport report = cache.Report();
    EXPECT_LE(static_cast<double>(report.kept_bytes()),
              static_cast<double>(report.full_bytes()) / 2.5);
    EXPECT_LT(
        static_cast<double>(report.full_bytes()) / 2.5 - static_cast<double>(report.kept_bytes()),
        static_cast<double>(OneRowEach(spec, cache)));
    EXPECT_EQ(cache.rows(1, 0) == 64, slides);
  }
}

TEST(ByteBudget, WhatFitsStaysUnscored) {
  const Model model(ThreeLayers(), 100, 74);
  const std::int64_t all = KeptBytes(model.Finished("none | kv=int8"));
  const Cache cache = model.Finished(WithBudget("snapkv(window=8", all, "kv=int8"));
  EXPECT_EQ(KeptRows(cache), 600);
  EXPECT_EQ(cache.ReportLayer(2).note, StrCat("budget not reached: ", all, " of ", all, " bytes"));
  EXPECT_EQ(cache.oldest_exact_position(), 0);
  EXPECT_LT(KeptRows(model.Finished(WithBudget("snapkv(window=8", all - 1, "kv=int8"))), 600);
}

TEST(ByteBudget, ProtectedRowsStayWhenTheyDoNotFitAndTheReportSaysSo) {
  const Model model(ThreeLayers(), 100, 75);
  const Cache cache = model.Finished("snapkv(window=16,budget=1kB) | kv=int8");
  for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(cache.rows(layer, 1), 20);
  EXPECT_EQ(cache.ReportLayer(0).note,
            StrCat("budget 1000B allows 1000 bytes, ", KeptBytes(cache),
                   " must stay: the 20 protected rows of a head do not fit: all of them stay "
                   "(over_budget=protected)"));
  const Cache held = model.Finished("snapkv(window=16,budget=1kB,over_budget=budget) | kv=int8");
  EXPECT_LE(KeptBytes(held), 1000);
  const Cache least = model.Finished("snapkv(window=16,budget=10B,over_budget=budget) | kv=int8");
  EXPECT_EQ(KeptRows(least), 6);
  EXPECT_NE(least.ReportLayer(0).note.find("allows 10 bytes"), std::string::npos);
}

TEST(ByteBudget, SlidingLayersAreInsideTheBudget) {
  std::vector<LayerSpec> layers = ThreeLayers();
  layers[0].sliding_window = 50;
  const Model model(layers, 200, 76);
  const Cache all = model.Finished("none | kv=int8");
  const std::int64_t budget = KeptBytes(all) * 6 / 10;
  const std::string spec = WithBudget("random(seed=1", budget, "kv=int8");
  const Cache cache = model.Finished(spec);
  EXPECT_EQ(cache.rows(0, 0), 50);
  EXPECT_LE(KeptBytes(cache), budget);
  EXPECT_LT(budget - KeptBytes(cache), OneRowEach(spec, cache));
}

// Where no layer is ranked nothing can go, and that is said.
TEST(ByteBudget, SlidingLayersAloneSayWhatTheBudgetDoesNotHold) {
  std::vector<LayerSpec> layers = ThreeLayers();
  for (LayerSpec& layer : layers) layer.sliding_window = 50;
  const Model model(layers, 200, 78);
  const Cache cache = model.Finished("snapkv(window=8,budget=1kB) | kv=int8");
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(cache.ReportLayer(layer).note,
              StrCat("sliding window: rows fall away by age, none are scored; budget 1000B allows "
                     "1000 bytes, ",
                     KeptBytes(cache), " must stay"));
  }
  const Cache roomy = model.Finished("snapkv(window=8,budget=1MB) | kv=int8");
  EXPECT_EQ(roomy.ReportLayer(0).note.find("budget"), std::string::npos);
}

// Heads hold what their rows take, no more: a ragged split frees memory where rows are few.
TEST(ByteBudget, MemoryFollowsRaggedHeads) {
  const Model model(ThreeLayers(), 400, 77);
  const Cache cache =
      model.Finished("snapkv(window=8,budget=25%,split=pyramid(beta=10)) | kv=int8");
  EXPECT_EQ(KeptRows(cache), 600);
  EXPECT_GT(cache.rows(0, 0), cache.rows(2, 0));
  for (int layer = 0; layer < 3; ++layer) {
    const LayerReport report = cache.ReportLayer(layer);
    for (int head = 0; head < 2; ++head) {
      const ByteReport& bytes = report.heads[static_cast<std::size_t>(head)];
      EXPECT_EQ(bytes.rows_kept, cache.rows(layer, head));
      EXPECT_EQ(bytes.payload_bytes + bytes.scale_bytes, cache.rows(layer, head) * 2 * (64 + 2));
      // The open block is allocated by panels of 16 rows.
      EXPECT_LT(bytes.reserved_bytes, 16 * 2 * (64 + 2) + 100);
    }
  }
}

TEST(ByteBudget, IsTheSameForAnyChunksAndWorkers) {
  const Model model(ThreeLayers(), 330, 78);
  for (const char* split : {"uniform", "pyramid", "adaptive", "adaptive(scope=model)"}) {
    const std::string spec =
        StrCat("snapkv(budget=3x,split=", split, ") | k=center+turbo4, v=int4");
    const std::string expected = cache_test::StateOf(model.Finished(spec));
    for (const std::int64_t chunk : {7, 64}) {
      EXPECT_EQ(cache_test::StateOf(model.Finished(spec, chunk)), expected) << chunk;
    }
    for (const int workers : {2, 5}) {
      cache_test::Threads threads(workers);
      // Scratch grows with the workers; it is not part of the state.
      EXPECT_EQ(cache_test::StateOf(model.Finished(spec, 0, &threads)), expected) << workers;
    }
  }
}

TEST(ByteBudget, AThresholdMayKeepLess) {
  const Model model(ThreeLayers(), 300, 79);
  const Cache cache = model.Finished("random(budget=1GiB,select=threshold:0.75) | kv=int8");
  EXPECT_LT(KeptRows(cache), 6 * 120);
  EXPECT_GT(KeptRows(cache), 6 * 40);
  EXPECT_NE(cache.ReportLayer(0).note.find("budget not reached: "), std::string::npos);
}

TEST(ByteBudget, PositionsAreSizedBeforehandAsTheyWillBe) {
  std::mt19937 random(80);
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenPos> positions;
    const unsigned gap = 1 + random() % 60;
    const unsigned rows = random() % 300;
    for (TokenPos next = static_cast<TokenPos>(random() % 9); positions.size() < rows;) {
      positions.push_back(next);
      next += 1 + static_cast<TokenPos>(round % 5 == 0 ? 0 : random() % gap);
    }
    const auto list = PositionList::Build(DefaultAllocator(), positions);
    ASSERT_TRUE(list.ok());
    const PositionSpan span = positions.empty() ? PositionSpan()
                                                : PositionSpan{static_cast<std::int64_t>(rows),
                                                               positions.front(), positions.back()};
    EXPECT_EQ(PositionList::BytesFor(span).live, list->bytes().live) << "round " << round;
    EXPECT_EQ(PositionList::BytesFor(span).resident, list->bytes().resident) << "round " << round;
  }
}

}  // namespace
}  // namespace kvsieve
