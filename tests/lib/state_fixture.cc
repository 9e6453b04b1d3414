#include "tests/lib/state_fixture.h"

#include <algorithm>
#include <cstring>

#include "kvsieve/byte_stream.h"

namespace kvsieve::state_test {

using cache_test::MakePrompt;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::TypedRows;
using cache_test::UniformRows;
using cache_test::WithReserve;

void Life::Step(Cache& cache, Phase phase, std::int64_t first, std::int64_t count) const {
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerSpec& layer = layers[i];
    const auto seed = static_cast<std::uint64_t>(1000 * i + first);
    const Prompt rows = MakePrompt(layer, count, seed, static_cast<TokenPos>(first));
    const TypedRows keys(rows.keys, type);
    const TypedRows values(rows.values, type);
    HeadsView value_view;
    if (!layer.value_is_key_prefix) {
      value_view = values.HeadMajor(layer.kv_heads, count, layer.value_dim);
    }
    const Status added = cache.Append(
        i, phase, keys.HeadMajor(layer.kv_heads, count, layer.key_dim), value_view, rows.positions);
    ASSERT_TRUE(added.ok()) << added.message();
    const std::vector<float> queries = UniformRows(layer.query_heads * count * layer.key_dim, seed);
    const Status observed = cache.Observe(
        i, rows.positions,
        HeadsView::HeadMajor(queries.data(), layer.query_heads, count, layer.key_dim));
    const bool refused = phase == Phase::kDecode && observed.ok() == false;
    ASSERT_TRUE(observed.ok() || refused) << observed.message();
    const Status evicted = cache.Evict(i);
    ASSERT_TRUE(evicted.ok()) << evicted.message();
  }
}

// Decode leaves out a position now and then.
Cache Life::At(Stage stage) const {
  Cache cache = Empty();
  if (stage == Stage::kEmpty) return cache;
  const std::int64_t chunk = 70;
  const std::int64_t rows = stage == Stage::kPrompt ? prompt_rows - 30 : prompt_rows;
  for (std::int64_t first = 0; first < rows; first += chunk) {
    Step(cache, Phase::kPrefill, first, std::min(chunk, rows - first));
  }
  if (stage == Stage::kPrompt) return cache;
  const Status finished = cache.FinishPrefill();
  EXPECT_TRUE(finished.ok()) << finished.message();
  if (stage == Stage::kFinished) return cache;
  for (std::int64_t i = 0; i < 25; ++i) Step(cache, Phase::kDecode, prompt_rows + 6 * i, 5);
  if (stage == Stage::kDecoded) return cache;
  const auto end = static_cast<TokenPos>(prompt_rows + 101);
  EXPECT_TRUE(cache.TrimToPosition(end, Trim::kAllowInexact).ok());
  return cache;
}

void Life::GoOn(Cache& cache, Stage stage) const {
  if (stage == Stage::kEmpty || stage == Stage::kPrompt) {
    Step(cache, Phase::kPrefill, prompt_rows - 30, 30);
    const Status finished = cache.FinishPrefill();
    ASSERT_TRUE(finished.ok()) << finished.message();
  }
  const std::int64_t next = cache.next_position();
  for (std::int64_t i = 0; i < 20; ++i) Step(cache, Phase::kDecode, next + 4 * i, 3);
  ASSERT_TRUE(cache.TrimToPosition(static_cast<TokenPos>(next + 50), Trim::kAllowInexact).ok());
  for (std::int64_t i = 50; i < 90; ++i) Step(cache, Phase::kDecode, next + i, 1);
}

Bytes Saved(const Cache& cache, std::string_view identity) {
  MemorySink sink;
  const Status status = cache.Save(identity, sink);
  EXPECT_TRUE(status.ok()) << status.message();
  return sink.bytes();
}

Status LoadBytes(const Bytes& state, Cache& cache, std::string_view identity) {
  MemorySource source(state);
  return cache.Load(source, identity);
}

void ExpectSame(const Cache& loaded, const Cache& cache) {
  ASSERT_EQ(StateOf(loaded, WithReserve::kNo), StateOf(cache, WithReserve::kNo));
  EXPECT_EQ(loaded.Report().scratch_peak_bytes, cache.Report().scratch_peak_bytes);
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerSpec& layer = cache.layer(i);
    const std::vector<float> queries = UniformRows(layer.query_heads * 3 * layer.key_dim, 5);
    const TokenPos next = cache.next_position();
    const std::vector<TokenPos> positions = {next / 2, next, next + 1};
    const cache_test::Attended of_loaded = cache_test::MustAttend(loaded, i, queries, positions);
    const cache_test::Attended of_cache = cache_test::MustAttend(cache, i, queries, positions);
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    };
    EXPECT_TRUE(same(of_loaded.out, of_cache.out)) << "layer " << i;
    EXPECT_TRUE(same(of_loaded.lse, of_cache.lse)) << "layer " << i;
  }
  EXPECT_TRUE(Saved(loaded) == Saved(cache));
}

void ExpectRefused(const Bytes& state, Cache& cache, const std::vector<std::string>& parts) {
  const std::string before = StateOf(cache);
  const Status status = LoadBytes(state, cache);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(status.message().starts_with("saved state: ")) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "'" << status.message() << "' does not name '" << part << "'";
  }
  ASSERT_EQ(StateOf(cache), before);
}

}  // namespace kvsieve::state_test
