// Eviction more than once: after chunks of the prompt, and during decode over stored rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

constexpr std::int64_t kBudget = 48;

LayerSpec Layer() { return MakeLayer(4, 2, 64, 80); }

std::vector<TokenPos> StoredPositions(const Cache& cache, int head) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(cache.rows(0, head)));
  EXPECT_TRUE(cache.Gather(0, head, positions, {}, {}).ok());
  return positions;
}

// Appends the prompt in chunks with an Evict after each.
void AppendEvicting(Cache& cache, const Prompt& prompt, std::int64_t chunk) {
  for (std::int64_t first = 0; first < prompt.rows(); first += chunk) {
    const std::int64_t count = std::min(chunk, prompt.rows() - first);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
    const Status evicted = cache.Evict(0);
    ASSERT_TRUE(evicted.ok()) << evicted.message();
  }
}

// The rows of `positions`, from the prompt itself.
void ExpectRowsOfPrompt(const Cache& cache, const Prompt& prompt) {
  const auto whole = prompt.Heads();
  for (int head = 0; head < prompt.layer.kv_heads; ++head) {
    const oracle::HeadRows rows = GatherHead(cache, 0, head);
    ASSERT_TRUE(std::is_sorted(rows.positions.begin(), rows.positions.end()));
    for (std::size_t r = 0; r < rows.positions.size(); ++r) {
      const auto token = static_cast<std::size_t>(rows.positions[r]);
      for (int d = 0; d < prompt.layer.key_dim; ++d) {
        ASSERT_EQ(rows.keys[r * prompt.layer.key_dim + d],
                  whole[head].keys[token * prompt.layer.key_dim + d]);
      }
    }
  }
}

// U05: the budget holds after every chunk, and sinks are the first rows of the sequence.
TEST(Cases, U05_BudgetHoldsOverTheWholePromptNotPerChunk) {
  const Prompt prompt = MakePrompt(Layer(), 512, 1);
  for (const std::int64_t chunk : {512, 256, 128, 100, 33}) {
    SCOPED_TRACE(chunk);
    Cache cache = MustCreate("random(budget=48,sinks=4,recent=8) | schedule=per_chunk", {Layer()});
    for (std::int64_t first = 0; first < prompt.rows(); first += chunk) {
      const std::int64_t count = std::min(chunk, prompt.rows() - first);
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
      ASSERT_TRUE(cache.Evict(0).ok());
      ASSERT_EQ(cache.rows(0, 0), std::min(kBudget, first + count));
    }
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const std::vector<TokenPos> kept = StoredPositions(cache, 1);
    ASSERT_EQ(kept.size(), static_cast<std::size_t>(kBudget));
    EXPECT_EQ(std::vector<TokenPos>(kept.begin(), kept.begin() + 4),
              (std::vector<TokenPos>{0, 1, 2, 3}));
    EXPECT_EQ(kept.back(), 511);
    const ByteReport report = cache.Report();
    EXPECT_EQ(report.tokens_seen, 512 * 2);
    EXPECT_EQ(report.rows_kept, kBudget * 2);
    EXPECT_DOUBLE_EQ(report.keep_rate(), kBudget / 512.0);
    EXPECT_EQ(cache.next_position(), 512);
    EXPECT_EQ(cache.oldest_exact_position(), 512);
  }
}

// The case's own numbers; the first rows of later chunks are no sinks.
TEST(Cases, U05_SinksAreThoseOfTheSequenceNotOfAChunk) {
  const LayerSpec layer = MakeLayer(1, 1, 32, 32);
  const Prompt prompt = MakePrompt(layer, 2048, 14);
  std::vector<TokenPos> expected = {0, 1, 2, 3};
  for (TokenPos p = 2048 - 508; p < 2048; ++p) expected.push_back(p);
  for (const std::vector<std::int64_t>& chunks : std::vector<std::vector<std::int64_t>>{
           {2048}, {1024, 1024}, {512, 512, 512, 512}, {100, 900, 48, 700, 300}}) {
    Cache cache = MustCreate("recency(budget=512,sinks=4,recent=32) | schedule=per_chunk", {layer});
    std::int64_t first = 0;
    for (const std::int64_t count : chunks) {
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
      first += count;
      ASSERT_TRUE(cache.Evict(0).ok());
      ASSERT_EQ(cache.rows(0, 0), std::min<std::int64_t>(512, first));
    }
    ASSERT_TRUE(cache.FinishPrefill().ok());
    EXPECT_EQ(StoredPositions(cache, 0), expected);  // 512 to 515 are not among them
    const ByteReport report = cache.Report();
    EXPECT_EQ(report.tokens_seen, 2048);
    EXPECT_EQ(report.rows_kept, 512);
    EXPECT_DOUBLE_EQ(report.keep_rate(), 0.25);
    EXPECT_DOUBLE_EQ(*report.eviction_ratio(), 4.0);
  }
}

TEST(Schedule, PerChunkKeepsRowsBitForBit) {
  const Prompt prompt = MakePrompt(Layer(), 300, 2);
  Cache cache = MustCreate("random(budget=48) | schedule=per_chunk", {Layer()});
  AppendEvicting(cache, prompt, 70);
  ExpectRowsOfPrompt(cache, prompt);  // staged in the prompt's own f32
  ASSERT_EQ(cache.rows(0, 0), kBudget);
}

// Never more than the kept rows and one chunk, whatever the prompt's length.
TEST(Schedule, PerChunkBoundsThePeak) {
  constexpr std::int64_t kChunk = 256;
  const Prompt prompt = MakePrompt(Layer(), 4096, 3);
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  Cache cache = MustCreate("recency(budget=48) | schedule=per_chunk", {Layer()}, options);
  AppendEvicting(cache, prompt, kChunk);
  // While a selection is swapped in: rows kept before, one chunk, and the rows kept now; positions
  // and growth by half are the slack.
  const std::int64_t row_bytes = 2 * (64 + 80) * 4;
  EXPECT_LE(allocator.peak_bytes, (kBudget * 2 + kChunk) * row_bytes * 5 / 4);
}

TEST(Schedule, PerChunkAttendsOverTheStagedRowsThatStayed) {
  const Prompt prompt = MakePrompt(Layer(), 200, 4);
  Cache cache = MustCreate("random(budget=48,seed=3) | schedule=per_chunk", {Layer()});
  AppendEvicting(cache, prompt, 64);
  const std::vector<float> queries = UniformRows(4 * 64, 5);
  const std::vector<TokenPos> position = {200};
  const auto exact = oracle::Attend(Layer(), GatherLayer(cache, 0), queries, position);
  ExpectAttentionNear(MustAttend(cache, 0, queries, position), exact, 80, 1e-5, 1e-5);
}

// The prompt is longer than min_tokens, whatever few rows are left of it.
TEST(Schedule, MinTokensCountsTheTokensOfThePromptNotTheRowsLeft) {
  const Prompt prompt = MakePrompt(Layer(), 512, 21);
  for (const std::int64_t chunk : {512, 100, 33}) {
    SCOPED_TRACE(chunk);
    Cache cache = MustCreate("recency(budget=48,min_tokens=128) | schedule=per_chunk", {Layer()});
    for (std::int64_t first = 0; first < prompt.rows(); first += chunk) {
      const std::int64_t count = std::min(chunk, prompt.rows() - first);
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
      ASSERT_TRUE(cache.Evict(0).ok());
      ASSERT_EQ(cache.rows(0, 0), first + count > 128 ? kBudget : first + count);
    }
    ASSERT_TRUE(cache.FinishPrefill().ok());
    EXPECT_EQ(cache.rows(0, 0), kBudget);
  }
}

TEST(Schedule, OnceIgnoresEvict) {
  const Prompt prompt = MakePrompt(Layer(), 100, 6);
  Cache cache = MustCreate("random(budget=48)", {Layer()});
  AppendEvicting(cache, prompt, 30);
  EXPECT_EQ(cache.rows(0, 0), 100);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.rows(0, 0), kBudget);
}

// U13: positions go on counting while the row count stays bounded.
TEST(Cases, U13_EveryKeepsTheRowCountBoundedAndPositionsTrue) {
  const Prompt prompt = MakePrompt(Layer(), 264, 7);
  Cache cache =
      MustCreate("recency(budget=32,sinks=4) | k=int8, v=int4 | schedule=every(16)", {Layer()});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 64).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t token = 64; token < 264; ++token) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, token, 1).ok());
    ASSERT_TRUE(cache.Evict(0).ok());
    ASSERT_LE(cache.rows(0, 0), 32 + 15);
  }
  EXPECT_EQ(cache.next_position(), 264);
  const std::vector<TokenPos> kept = StoredPositions(cache, 0);
  EXPECT_EQ(kept.front(), 0);
  EXPECT_EQ(kept.back(), 263);
}

// Rows that stay are moved, never encoded again: they decode to the same bits.
TEST(Schedule, EveryMovesStoredRowsBitForBit) {
  const Prompt prompt = MakePrompt(Layer(), 400, 8);
  for (const std::string store :
       {"kv=f16", "kv=int8", "k=int4, v=int4(group=row)", "k=center+turbo(bits=4), v=turbo(bits=4)",
        "kv=turbo(bits=3)", "kv=int8 | tail=20", "kv=f16 | exact_sinks=4 | tail=5"}) {
    SCOPED_TRACE(store);
    Cache cache = MustCreate("random(budget=100) | " + store + " | schedule=every(50)", {Layer()});
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 300).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    for (std::int64_t token = 300; token < 350; ++token) {
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, token, 1).ok());
    }
    const oracle::HeadRows before = GatherHead(cache, 0, 1);
    ASSERT_TRUE(cache.Evict(0).ok());
    const oracle::HeadRows after = GatherHead(cache, 0, 1);
    ASSERT_EQ(after.positions.size(), 100U);
    for (std::size_t r = 0; r < after.positions.size(); ++r) {
      const auto at =
          std::lower_bound(before.positions.begin(), before.positions.end(), after.positions[r]) -
          before.positions.begin();
      for (int d = 0; d < 64; ++d) ASSERT_EQ(after.keys[r * 64 + d], before.keys[at * 64 + d]);
      for (int d = 0; d < 80; ++d) ASSERT_EQ(after.values[r * 80 + d], before.values[at * 80 + d]);
    }
  }
}

// U06: after 200 steps the most recent rows are always there.
TEST(Cases, U06_TwoHundredStepsKeepTheNewestRows) {
  const Prompt prompt = MakePrompt(Layer(), 264, 9);
  Cache cache = MustCreate("random(budget=32,sinks=4,recent=8) | schedule=every(1)", {Layer()});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 64).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t token = 64; token < 264; ++token) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, token, 1).ok());
    ASSERT_TRUE(cache.Evict(0).ok());
    ASSERT_EQ(cache.rows(0, 0), 32);
    const std::vector<TokenPos> kept = StoredPositions(cache, 0);
    for (int i = 1; i <= 8; ++i) ASSERT_EQ(kept[kept.size() - i], token + 1 - i);
  }
}

TEST(Schedule, EveryScoresWithTheQueriesOfDecode) {
  const Prompt prompt = MakePrompt(Layer(), 96, 10);
  const std::vector<float> queries = UniformRows(4 * 96 * 64, 11);
  Cache cache = MustCreate("snapkv(budget=40,window=8) | kv=int8 | schedule=every(8)", {Layer()});
  const auto view = [&](std::int64_t first, std::int64_t count) {
    HeadsView all = HeadsView::HeadMajor(queries.data(), 4, 96, 64);
    all.data = queries.data() + first * 64;
    all.rows = count;
    return all;
  };
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 64).ok());
  ASSERT_TRUE(cache.Observe(0, prompt.PositionView(0, 64), view(0, 64)).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t token = 64; token < 72; ++token) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, token, 1).ok());
  }
  // Without the queries of the last eight tokens the scorer says which are missing.
  const std::string before = StateOf(cache);
  const Status missing = cache.Evict(0);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.message().find("64"), std::string::npos) << missing.message();
  EXPECT_EQ(StateOf(cache), before);
  ASSERT_TRUE(cache.Observe(0, prompt.PositionView(64, 8), view(64, 8)).ok());
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.rows(0, 0), 40);
  EXPECT_EQ(StoredPositions(cache, 0).back(), 71);
}

TEST(Schedule, RefusedMemoryDuringEvictChangesNothing) {
  const Prompt prompt = MakePrompt(Layer(), 200, 12);
  for (const bool decode : {false, true}) {
    TestAllocator allocator;
    CacheOptions options;
    options.allocator = &allocator;
    const std::string schedule = decode ? "every(1)" : "per_chunk";
    Cache cache =
        MustCreate("random(budget=48) | kv=int8 | exact_sinks=4 | tail=8 | schedule=" + schedule,
                   {Layer()}, options);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 150).ok());
    if (decode) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 150, 30).ok());
    }
    const std::string before = StateOf(cache);
    Status evicted = Status::Invalid("not tried");
    int refused = 0;
    for (int n = 0; !evicted.ok(); ++n) {
      ASSERT_LT(n, 1000);
      allocator.fail_at = n;
      evicted = cache.Evict(0);
      allocator.fail_at = -1;
      if (evicted.ok()) break;
      ++refused;
      ASSERT_EQ(StateOf(cache), before) << n;
    }
    EXPECT_GT(refused, 4);
    EXPECT_EQ(cache.rows(0, 0), kBudget);
    EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
  }
}

TEST(Schedule, ResidentBytesFollowEveryEviction) {
  const Prompt prompt = MakePrompt(Layer(), 600, 13);
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  Cache cache =
      MustCreate("random(budget=100) | kv=int8 | tail=10 | schedule=every(40)", {Layer()}, options);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 300).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t token = 300; token < 600; ++token) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, token, 1).ok());
    ASSERT_TRUE(cache.Evict(0).ok());
    ASSERT_EQ(cache.Report().resident_bytes(), allocator.live_bytes) << token;
  }
  EXPECT_LE(cache.rows(0, 0), 139);
}

}  // namespace
}  // namespace kvsieve::cache_test
