// The cache as an engine drives it: what does not depend on how rows came, and what rows become.
#include "kvsieve/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kvsieve/float16.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::MustParse;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::WithReserve;

// Appends and observes chunk by chunk; the queries are those of every prompt position.
Cache Prefilled(std::string_view spec, const LayerSpec& layer, const Prompt& prompt,
                std::int64_t chunk) {
  Cache cache = MustCreate(spec, {layer});
  const std::vector<float> queries =
      cache_test::UniformRows(layer.query_heads * prompt.rows() * layer.key_dim, 31);
  for (std::int64_t first = 0; first < prompt.rows(); first += chunk) {
    const std::int64_t count = std::min(chunk, prompt.rows() - first);
    HeadsView view = HeadsView::HeadMajor(queries.data() + first * layer.key_dim, layer.query_heads,
                                          prompt.rows(), layer.key_dim);
    view.rows = count;
    EXPECT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
    EXPECT_TRUE(cache.Observe(0, prompt.PositionView(first, count), view).ok());
  }
  return cache;
}

constexpr const char* kSpecs[] = {
    "none | kv=f16", "snapkv(budget=60,window=16) | k=int8, v=int4 | tail=10",
    "snapkv(budget=25%) | k=center+turbo4, v=turbo3", "random(budget=50) | kv=int8 | exact_sinks=4",
    "recency(budget=40) | k=hadamard+int4, v=f16"};

// Rows kept, their bytes and their codes do not depend on how the prompt was cut.
TEST(Cache, ChunksOfThePromptChangeNothing) {
  const LayerSpec layer = MakeLayer(6, 3, 64, 80);
  const Prompt prompt = MakePrompt(layer, 311, 1);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    Cache whole = Prefilled(spec, layer, prompt, prompt.rows());
    const std::string staged = StateOf(whole, WithReserve::kNo);
    ASSERT_TRUE(whole.FinishPrefill().ok());
    const std::string finished = StateOf(whole);
    for (const std::int64_t chunk : {1, 7, 50, 300}) {
      SCOPED_TRACE(chunk);
      Cache cut = Prefilled(spec, layer, prompt, chunk);
      EXPECT_EQ(StateOf(cut, WithReserve::kNo), staged);
      ASSERT_TRUE(cut.FinishPrefill().ok());
      EXPECT_EQ(StateOf(cut), finished);
    }
  }
}

TEST(Cache, ChunksOfDecodedRowsChangeNothing) {
  const LayerSpec layer = MakeLayer(6, 3, 64, 80);
  const Prompt prompt = MakePrompt(layer, 100, 2);
  const Prompt more = MakePrompt(layer, 150, 3, 100);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    std::string expected;
    for (const std::int64_t chunk : {150, 1, 7, 64}) {
      Cache cache = Prefilled(spec, layer, prompt, 100);
      ASSERT_TRUE(cache.FinishPrefill().ok());
      cache_test::MustAppend(cache, 0, more, chunk, Phase::kDecode);
      // Room for rows to come depends on the steps; what is held does not.
      const std::string state = StateOf(cache, WithReserve::kNo);
      if (expected.empty()) expected = state;
      EXPECT_EQ(state, expected) << "chunk " << chunk;
    }
  }
}

TEST(Cache, TheNumberOfWorkersChangesNothing) {
  const LayerSpec layer = MakeLayer(8, 4, 64, 64);
  const Prompt prompt = MakePrompt(layer, 500, 4);
  cache_test::Threads threads(3);
  CacheOptions options;
  options.parallel = &threads;
  const char* spec = "random(budget=200) | k=center+turbo4, v=int4";
  Cache serial = MustCreate(spec, {layer});
  Cache shared = MustCreate(spec, {layer}, options);
  for (Cache* cache : {&serial, &shared}) {
    cache_test::MustAppend(*cache, 0, prompt);
    ASSERT_TRUE(cache->FinishPrefill().ok());
  }
  EXPECT_EQ(StateOf(serial), StateOf(shared));
}

// The element types an engine may have; f32 rounded to the type gives the same bytes.
TEST(Cache, SourceTypesDifferOnlyByTheirOwnRounding) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 48);
  const Prompt prompt = MakePrompt(layer, 150, 5);
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    SCOPED_TRACE(ElementName(type));
    const cache_test::TypedRows keys(prompt.keys, type);
    const cache_test::TypedRows values(prompt.values, type);
    Prompt rounded = prompt;
    for (std::vector<float>* rows : {&rounded.keys, &rounded.values}) {
      for (float& x : *rows) {
        x = type == ElementType::kF16 ? ToFloat(ToF16(x)) : ToFloat(ToBF16(x));
      }
    }
    for (const char* spec : {"none | kv=int8 | tail=20", "none | kv=f16", "none | kv=int4"}) {
      SCOPED_TRACE(spec);
      Cache typed = MustCreate(spec, {layer});
      ASSERT_TRUE(typed
                      .Append(0, Phase::kPrefill, keys.HeadMajor(2, 150, 64),
                              values.HeadMajor(2, 150, 48), prompt.positions)
                      .ok());
      Cache plain = MustCreate(spec, {layer});
      cache_test::MustAppend(plain, 0, rounded);
      ASSERT_TRUE(typed.FinishPrefill().ok());
      ASSERT_TRUE(plain.FinishPrefill().ok());
      for (int head = 0; head < 2; ++head) {
        const oracle::HeadRows a = cache_test::GatherHead(typed, 0, head);
        const oracle::HeadRows b = cache_test::GatherHead(plain, 0, head);
        EXPECT_EQ(a.keys, b.keys);
        EXPECT_EQ(a.values, b.values);
      }
    }
  }
}

// Codes of a row depend on the row and on what was learnt, not on its neighbours: what Gather
// gives is what a cache holding that row alone gives.
TEST(Cache, ARowIsStoredAsItWouldBeAlone) {
  const LayerSpec layer = MakeLayer(2, 2, 64, 64);
  const Prompt prompt = MakePrompt(layer, 90, 6);
  for (const char* store :
       {"kv=f16", "kv=int8", "kv=int4", "kv=turbo4", "kv=turbo3", "k=hadamard+int8, v=turbo5"}) {
    SCOPED_TRACE(store);
    const std::string spec = std::string("none | ") + store;
    Cache all = MustCreate(spec, {layer});
    ASSERT_TRUE(cache_test::AppendRows(all, 0, Phase::kPrefill, prompt, 0, 33).ok());
    ASSERT_TRUE(all.FinishPrefill().ok());
    for (std::int64_t first = 33; first < 90; first += 19) {
      ASSERT_TRUE(cache_test::AppendRows(all, 0, Phase::kDecode, prompt, first, 19).ok());
    }
    const oracle::HeadRows stored = cache_test::GatherHead(all, 0, 1);
    for (std::int64_t row = 0; row < 90; ++row) {
      Cache one = MustCreate(spec, {layer});
      ASSERT_TRUE(cache_test::AppendRows(one, 0, Phase::kPrefill, prompt, row, 1).ok());
      ASSERT_TRUE(one.FinishPrefill().ok());
      const oracle::HeadRows alone = cache_test::GatherHead(one, 0, 1);
      ASSERT_EQ(alone.positions[0], stored.positions[row]);
      ASSERT_EQ(std::memcmp(alone.keys.data(), stored.keys.data() + row * 64, 64 * 4), 0) << row;
      ASSERT_EQ(std::memcmp(alone.values.data(), stored.values.data() + row * 64, 64 * 4), 0)
          << row;
    }
  }
}

// Growing the open block moves rows; it re-encodes none.
TEST(Cache, StoredRowsNeverChange) {
  const LayerSpec layer = MakeLayer(2, 1, 80, 80);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Prompt prompt = MakePrompt(layer, 70, 7);
    Cache cache = Prefilled(spec, layer, prompt, 70);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const Prompt more = MakePrompt(layer, 200, 8, 70);
    const auto tail = static_cast<std::size_t>(cache.rows(0, 0) >= 20 ? 20 : 0);
    oracle::HeadRows before = cache_test::GatherHead(cache, 0, 0);
    for (std::int64_t step = 0; step < 200; ++step) {
      ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, more, step, 1).ok());
      const oracle::HeadRows after = cache_test::GatherHead(cache, 0, 0);
      ASSERT_EQ(after.rows(), before.rows() + 1);
      // Rows of the exact tail are encoded once, when they leave it.
      const std::size_t sealed = before.positions.size() - tail;
      ASSERT_TRUE(
          std::equal(before.positions.begin(), before.positions.end(), after.positions.begin()));
      ASSERT_EQ(std::memcmp(before.keys.data(), after.keys.data(), sealed * 80 * 4), 0) << step;
      ASSERT_EQ(std::memcmp(before.values.data(), after.values.data(), sealed * 80 * 4), 0) << step;
      before = after;
    }
  }
}

TEST(Cache, SinksAndTailStayExact) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  const Prompt prompt = MakePrompt(layer, 100, 9);
  Cache cache = MustCreate("none | kv=int4 | exact_sinks=3, tail=7", {layer});
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 2).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  // The third sink is the first decoded row.
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 2, 98).ok());
  const oracle::HeadRows rows = cache_test::GatherHead(cache, 0, 0);
  ASSERT_EQ(rows.positions, prompt.positions);
  for (std::size_t row = 0; row < 100; ++row) {
    const bool exact = std::equal(rows.keys.begin() + static_cast<std::ptrdiff_t>(row * 64),
                                  rows.keys.begin() + static_cast<std::ptrdiff_t>((row + 1) * 64),
                                  prompt.keys.begin() + static_cast<std::ptrdiff_t>(row * 64));
    EXPECT_EQ(exact, row < 3 || row >= 93) << row;
  }
}

TEST(Cache, ExactDecodeRowsAreNeverEncoded) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  CacheOptions options;
  options.decode_rows = DecodeRows::kExact;
  Cache cache = MustCreate("none | kv=int4", {layer}, options);
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 50, 10));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Prompt more = MakePrompt(layer, 150, 11, 50);
  cache_test::MustAppend(cache, 0, more, 1, Phase::kDecode);
  const oracle::HeadRows rows = cache_test::GatherHead(cache, 0, 0);
  ASSERT_EQ(rows.rows(), 200);
  EXPECT_TRUE(std::equal(more.keys.begin(), more.keys.end(), rows.keys.begin() + 50 * 64));
  EXPECT_TRUE(std::equal(more.values.begin(), more.values.end(), rows.values.begin() + 50 * 64));
}

TEST(Cache, ClearGivesTheStateAfterCreate) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Prompt prompt = MakePrompt(layer, 200, 12);
    Cache fresh = Prefilled(spec, layer, prompt, 200);
    ASSERT_TRUE(fresh.FinishPrefill().ok());
    Cache cache = Prefilled(spec, layer, MakePrompt(layer, 100, 13), 30);
    cache.Clear();  // before the prompt is finished
    EXPECT_EQ(StateOf(cache), StateOf(MustCreate(spec, {layer})));
    cache = Prefilled(spec, layer, MakePrompt(layer, 100, 13), 30);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    cache.Clear();
    EXPECT_EQ(StateOf(cache), StateOf(MustCreate(spec, {layer})));
    EXPECT_EQ(cache.Report().scratch_peak_bytes, 0);
    cache = Prefilled(spec, layer, prompt, 30);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    EXPECT_EQ(StateOf(cache), StateOf(fresh));
  }
}

TEST(Cache, ALayerWithoutRowsIsNotScored) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = MustCreate("random(budget=20) | k=center+int8, v=int8", {layer, layer});
  cache_test::MustAppend(cache, 1, MakePrompt(layer, 50, 15));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.rows(0, 0), 0);
  EXPECT_EQ(cache.rows(1, 0), 20);
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 10, 16), 1, Phase::kDecode);
  EXPECT_EQ(cache.rows(0, 1), 10);
}

TEST(Cache, LayersMayDifferInShapeAndStore) {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 64, 64), MakeLayer(9, 3, 128, 96),
                                   MakeLayer(1, 1, 32, 32)};
  for (int i = 0; i < 3; ++i) layers[static_cast<std::size_t>(i)].layer = 10 + i;
  Cache cache = MustCreate("random(budget=50) | kv=int4 | layers(0..0)={kv=int8}", layers);
  for (int i = 0; i < 3; ++i) {
    cache_test::MustAppend(cache, i, MakePrompt(layers[static_cast<std::size_t>(i)], 100, 14));
  }
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_NE(cache.ReportLayer(0).applied.find("k=int8"), std::string::npos);
  EXPECT_NE(cache.ReportLayer(1).applied.find("k=int4"), std::string::npos);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cache.ReportLayer(i).layer, 10 + i);
    for (const oracle::HeadRows& head : cache_test::GatherLayer(cache, i)) {
      EXPECT_EQ(head.rows(), 50);
    }
  }
}

}  // namespace
}  // namespace kvsieve
