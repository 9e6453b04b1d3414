// Tokens taken back: what goes, what stays to the bit, and what later rows become.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

LayerSpec Layer() { return MakeLayer(4, 2, 64, 48); }

// Without what a trim does not take back, and memory held for later rows.
std::string HeldState(const Cache& cache) {
  return std::regex_replace(StateOf(cache, WithReserve::kNo), std::regex(" lifetime \\d+"), "");
}

void MustTrim(Cache& cache, TokenPos position, std::int64_t tokens, Trim trim = Trim::kExact) {
  const Result<std::int64_t> gone = cache.TrimToPosition(position, trim);
  ASSERT_TRUE(gone.ok()) << gone.message();
  EXPECT_EQ(*gone, tokens);
}

// Rows [first, first + count) of `prompt` and their queries; nothing but rows during decode.
struct Engine {
  Prompt prompt;
  std::vector<float> queries;

  Engine(const LayerSpec& layer, std::int64_t rows, std::uint64_t seed)
      : prompt(MakePrompt(layer, rows, seed)),
        queries(UniformRows(layer.query_heads * rows * layer.key_dim, seed + 100)) {}

  void Append(Cache& cache, Phase phase, std::int64_t first, std::int64_t count) const {
    ASSERT_TRUE(AppendRows(cache, 0, phase, prompt, first, count).ok());
    if (phase != Phase::kPrefill) return;
    HeadsView view =
        HeadsView::HeadMajor(queries.data() + first * prompt.layer.key_dim,
                             prompt.layer.query_heads, prompt.rows(), prompt.layer.key_dim);
    view.rows = count;
    ASSERT_TRUE(cache.Observe(0, prompt.PositionView(first, count), view).ok());
  }
};

// Stores whose rows depend on nothing but themselves.
constexpr const char* kPlainStores[] = {"kv=f16",    "kv=int8",   "k=int4, v=int4(group=row)",
                                        "kv=turbo4", "kv=turbo3", "k=hadamard+int8, v=turbo5"};

TEST(Trim, BeforeTheEndOfThePromptNothingRemindsOfTheRowsThatWent) {
  const Engine right(Layer(), 700, 1);
  const Engine wrong(Layer(), 700, 2);
  for (const char* spec : {"none | kv=int8", "snapkv(budget=100,window=32) | kv=f16 | tail=8",
                           "snapkv(budget=25%,window=16) | k=center+turbo4, v=int4"}) {
    SCOPED_TRACE(spec);
    for (const std::int64_t end : {0, 1, 255, 256, 300, 599}) {
      SCOPED_TRACE(end);
      Cache straight = MustCreate(spec, {Layer()});
      if (end > 0) right.Append(straight, Phase::kPrefill, 0, end);
      Cache trimmed = MustCreate(spec, {Layer()});
      if (end > 0) right.Append(trimmed, Phase::kPrefill, 0, end);
      wrong.Append(trimmed, Phase::kPrefill, end, 600 - end);
      MustTrim(trimmed, static_cast<TokenPos>(end), 600 - end);
      EXPECT_EQ(trimmed.next_position(), end);
      for (Cache* cache : {&straight, &trimmed}) {
        right.Append(*cache, Phase::kPrefill, end, 700 - end);
      }
      EXPECT_EQ(HeldState(trimmed), HeldState(straight));
      ASSERT_TRUE(trimmed.FinishPrefill().ok());
      ASSERT_TRUE(straight.FinishPrefill().ok());
      EXPECT_EQ(HeldState(trimmed), HeldState(straight));
    }
  }
}

TEST(Trim, AfterThePromptRowsOfPlainStoresAreThoseOfACacheThatNeverSawMore) {
  const Engine right(Layer(), 400, 3);
  const Engine wrong(Layer(), 400, 4);
  for (const char* evict : {"none", "random(budget=60)"}) {
    for (const char* store : kPlainStores) {
      const std::string spec = std::string(evict) + " | " + store;
      SCOPED_TRACE(spec);
      for (const std::int64_t end : {100, 101, 127, 128, 163, 164, 229}) {
        SCOPED_TRACE(end);
        Cache straight = MustCreate(spec, {Layer()});
        Cache trimmed = MustCreate(spec, {Layer()});
        for (Cache* cache : {&straight, &trimmed}) {
          right.Append(*cache, Phase::kPrefill, 0, 100);
          ASSERT_TRUE(cache->FinishPrefill().ok());
          if (end > 100) right.Append(*cache, Phase::kDecode, 100, end - 100);
        }
        wrong.Append(trimmed, Phase::kDecode, end, 230 - end);
        MustTrim(trimmed, static_cast<TokenPos>(end), 230 - end);
        EXPECT_EQ(HeldState(trimmed), HeldState(straight));
        for (Cache* cache : {&straight, &trimmed}) right.Append(*cache, Phase::kDecode, end, 90);
        EXPECT_EQ(HeldState(trimmed), HeldState(straight));
      }
    }
  }
}

// What left the tail stays encoded, so the tail is short until as many rows came as went.
TEST(Trim, TheTailIsWholeAgainOnceAsManyRowsCameAsWent) {
  const Engine right(Layer(), 400, 5);
  const Engine wrong(Layer(), 400, 6);
  for (const std::int64_t gone : {1, 5, 20, 21, 60}) {
    SCOPED_TRACE(gone);
    Cache straight = MustCreate("none | kv=int4 | exact_sinks=4 | tail=20", {Layer()});
    Cache trimmed = MustCreate("none | kv=int4 | exact_sinks=4 | tail=20", {Layer()});
    const std::int64_t end = 200 - gone;
    for (Cache* cache : {&straight, &trimmed}) {
      right.Append(*cache, Phase::kPrefill, 0, 100);
      ASSERT_TRUE(cache->FinishPrefill().ok());
      right.Append(*cache, Phase::kDecode, 100, end - 100);
    }
    wrong.Append(trimmed, Phase::kDecode, end, gone);
    const oracle::HeadRows before = GatherHead(trimmed, 0, 1);
    MustTrim(trimmed, static_cast<TokenPos>(end), gone);
    const oracle::HeadRows after = GatherHead(trimmed, 0, 1);
    EXPECT_TRUE(std::equal(after.keys.begin(), after.keys.end(), before.keys.begin()));
    EXPECT_TRUE(std::equal(after.values.begin(), after.values.end(), before.values.begin()));
    for (Cache* cache : {&straight, &trimmed}) right.Append(*cache, Phase::kDecode, end, gone);
    EXPECT_EQ(HeldState(trimmed), HeldState(straight));
  }
}

TEST(Trim, BackIntoTheSinksTheNextRowsAreSinksAgain) {
  const Engine right(Layer(), 100, 7);
  const Engine wrong(Layer(), 100, 8);
  const char* spec = "none | kv=int8 | exact_sinks=4";
  Cache straight = MustCreate(spec, {Layer()});
  Cache trimmed = MustCreate(spec, {Layer()});
  for (Cache* cache : {&straight, &trimmed}) {
    right.Append(*cache, Phase::kPrefill, 0, 2);
    ASSERT_TRUE(cache->FinishPrefill().ok());
  }
  wrong.Append(trimmed, Phase::kDecode, 2, 50);
  MustTrim(trimmed, 2, 50);
  for (Cache* cache : {&straight, &trimmed}) right.Append(*cache, Phase::kDecode, 2, 70);
  EXPECT_EQ(HeldState(trimmed), HeldState(straight));
}

// Queries go with their tokens; the window is full again once as many came as went.
TEST(Trim, QueriesOfTokensThatWentAreForgotten) {
  const Engine right(Layer(), 200, 9);
  const Engine wrong(Layer(), 200, 10);
  const char* spec = "snapkv(budget=40,window=16) | kv=f16";
  Cache straight = MustCreate(spec, {Layer()});
  Cache trimmed = MustCreate(spec, {Layer()});
  for (Cache* cache : {&straight, &trimmed}) {
    for (std::int64_t first = 0; first < 90; first += 10) {
      right.Append(*cache, Phase::kPrefill, first, 10);
    }
  }
  wrong.Append(trimmed, Phase::kPrefill, 90, 7);
  MustTrim(trimmed, 90, 7);
  Cache short_window = *trimmed.Fork();
  const Status missing = short_window.FinishPrefill();
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.message().find("74"), std::string::npos) << missing.message();
  for (Cache* cache : {&straight, &trimmed}) {
    right.Append(*cache, Phase::kPrefill, 90, 7);
    ASSERT_TRUE(cache->FinishPrefill().ok());
  }
  EXPECT_EQ(HeldState(trimmed), HeldState(straight));
}

TEST(Trim, BelowTheLastEvictionIsNotExactAndChangesNothing) {
  const Engine engine(Layer(), 200, 10);
  Cache cache = MustCreate("recency(budget=20,sinks=4,recent=16) | kv=int8 | tail=4", {Layer()});
  engine.Append(cache, Phase::kPrefill, 0, 100);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  engine.Append(cache, Phase::kDecode, 100, 30);
  EXPECT_EQ(cache.oldest_exact_position(), 100);
  const std::string before = StateOf(cache);
  for (const TokenPos position : {-5, 0, 50, 99}) {
    const Result<std::int64_t> gone = cache.TrimToPosition(position);
    ASSERT_FALSE(gone.ok());
    EXPECT_EQ(gone.error().code, ErrorCode::kNotExact);
    EXPECT_NE(gone.message().find(std::to_string(position)), std::string::npos) << gone.message();
    EXPECT_NE(gone.message().find("100"), std::string::npos) << gone.message();
    EXPECT_EQ(StateOf(cache), before);
  }
  MustTrim(cache, 130, 0);
  MustTrim(cache, 2000, 0);
  EXPECT_EQ(StateOf(cache), before);
  MustTrim(cache, 100, 30);
  EXPECT_EQ(cache.rows(0, 0), 20);

  // Allowed, it leaves what was kept below; from there on trims are exact again.
  MustTrim(cache, 90, 10, Trim::kAllowInexact);
  EXPECT_EQ(GatherHead(cache, 0, 0).positions,
            (std::vector<TokenPos>{0, 1, 2, 3, 84, 85, 86, 87, 88, 89}));
  EXPECT_EQ(cache.next_position(), 90);
  EXPECT_EQ(cache.oldest_exact_position(), 90);
  engine.Append(cache, Phase::kDecode, 90, 25);
  MustTrim(cache, 95, 20);
  EXPECT_FALSE(cache.TrimToPosition(89).ok());
}

// A token taken back may be read again only while its whole window is held.
TEST(Trim, RowsThatFellOutOfAWindowMakeATrimInexact) {
  LayerSpec layer = Layer();
  layer.sliding_window = 100;
  for (const char* spec : {"none | kv=int8", "none | kv=int8 | exact_sinks=4 | tail=10"}) {
    SCOPED_TRACE(spec);
    const Engine engine(layer, 1000, 11);
    Cache cache = MustCreate(spec, {layer});
    engine.Append(cache, Phase::kPrefill, 0, 90);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    EXPECT_EQ(cache.oldest_exact_position(), 0);
    for (std::int64_t token = 90; token < 600; ++token) {
      engine.Append(cache, Phase::kDecode, token, 1);
      const TokenPos exact = cache.oldest_exact_position();
      ASSERT_LE(exact, token);  // the last token can always be taken back
      Cache trimmed = *cache.Fork();
      ASSERT_TRUE(trimmed.TrimToPosition(exact).ok());
      const std::vector<TokenPos> left = GatherHead(trimmed, 0, 0).positions;
      // The query at `exact` sees the 99 positions before its own.
      const std::int64_t seen = std::min<std::int64_t>(exact, 99);
      ASSERT_GE(std::ssize(left), seen);
      EXPECT_EQ(std::vector<TokenPos>(left.end() - seen, left.end()),
                Positions(static_cast<TokenPos>(exact - seen), seen));
      if (exact > 0) {
        EXPECT_EQ(trimmed.TrimToPosition(exact - 1).error().code, ErrorCode::kNotExact);
      }
    }
    EXPECT_GT(cache.oldest_exact_position(), 400);
  }
}

TEST(Trim, BytesFollowAndMemoryIsGivenBack) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const Engine engine(Layer(), 1000, 12);
  Cache cache = MustCreate("none | kv=int8 | tail=16", {Layer()}, options);
  engine.Append(cache, Phase::kPrefill, 0, 100);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const std::int64_t resident = cache.Report().resident_bytes();
  engine.Append(cache, Phase::kDecode, 100, 900);
  MustTrim(cache, 100, 900);
  const ByteReport report = cache.Report();
  EXPECT_EQ(report.resident_bytes(), allocator.live_bytes);
  EXPECT_EQ(report.tokens_seen, 100 * 2);
  EXPECT_EQ(report.lifetime_tokens, 1000 * 2);
  EXPECT_EQ(report.rows_kept, 100 * 2);
  EXPECT_EQ(report.full_bytes(), 100 * 2 * (64 + 48) * 2);
  // Of the blocks that were added at most the open one stays: 64 rows of codes and scales, per
  // head.
  EXPECT_LE(report.resident_bytes(), resident + 2 * (64 * (64 + 48 + 4) + 128));
  MustTrim(cache, 0, 100);
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
  EXPECT_EQ(allocator.live_bytes, 0);  // nothing was learnt either
}

TEST(Trim, LayersThatAreAStepAheadGoBackToTheSamePosition) {
  const Engine engine(Layer(), 100, 13);
  Cache cache = MustCreate("none | kv=f16", {Layer(), Layer()});
  for (const int i : {0, 1}) {
    ASSERT_TRUE(AppendRows(cache, i, Phase::kPrefill, engine.prompt, 0, 50).ok());
  }
  ASSERT_TRUE(cache.FinishPrefill().ok());
  ASSERT_TRUE(AppendRows(cache, 1, Phase::kDecode, engine.prompt, 50, 1).ok());
  MustTrim(cache, 50, 1);
  EXPECT_EQ(cache.rows(1, 0), 50);
  MustTrim(cache, 40, 10);
  EXPECT_EQ(cache.rows(0, 1), 40);
  EXPECT_EQ(cache.rows(1, 1), 40);
}

// Only rows that went make a trim inexact.
TEST(Trim, AnEvictThatDropsNothingStaysExact) {
  const Engine engine(Layer(), 200, 21);
  Cache cache = MustCreate("recency(budget=32) | kv=f16 | schedule=per_chunk", {Layer()});
  engine.Append(cache, Phase::kPrefill, 0, 64);
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.oldest_exact_position(), 64);
  MustTrim(cache, 20, 44, Trim::kAllowInexact);
  engine.Append(cache, Phase::kPrefill, 20, 10);
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.oldest_exact_position(), 20);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.oldest_exact_position(), 20);
  MustTrim(cache, 25, 5);
}

// An engine observes before it appends, and the append is refused: the step is taken back.
TEST(Trim, TakesBackQueriesThatAreAheadOfTheRows) {
  const LayerSpec layer = Layer();
  const Engine engine(layer, 40, 22);
  Cache cache = MustCreate("snapkv(budget=24,window=8) | kv=f16", {layer});
  engine.Append(cache, Phase::kPrefill, 0, 30);
  const std::vector<float> query(static_cast<std::size_t>(layer.query_heads * layer.key_dim));
  const HeadsView view = HeadsView::HeadMajor(query.data(), layer.query_heads, 1, layer.key_dim);
  const TokenPos step = 30;
  ASSERT_TRUE(cache.Observe(0, {&step, 1}, view).ok());
  EXPECT_FALSE(cache.Observe(0, {&step, 1}, view).ok());
  MustTrim(cache, step, 0);
  EXPECT_TRUE(cache.Observe(0, {&step, 1}, view).ok());
}

TEST(Trim, CountsThatDependOnTokensGoBackWithThem) {
  const Engine engine(Layer(), 200, 15);
  Cache cache = MustCreate("recency(budget=32) | kv=f16 | schedule=every(16)", {Layer()});
  engine.Append(cache, Phase::kPrefill, 0, 64);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  engine.Append(cache, Phase::kDecode, 64, 10);
  MustTrim(cache, 70, 4);
  engine.Append(cache, Phase::kDecode, 70, 9);
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.rows(0, 0), 32 + 15);  // 15 of 16 tokens came since
  engine.Append(cache, Phase::kDecode, 79, 1);
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.rows(0, 0), 32);

  // Scores were handed in for rows that are gone.
  Cache external = MustCreate("external(budget=8) | kv=f16", {Layer()});
  const std::vector<float> scores(2 * 20);
  engine.Append(external, Phase::kPrefill, 0, 20);
  ASSERT_TRUE(external.SetExternalScores(0, scores).ok());
  MustTrim(external, 10, 10);
  engine.Append(external, Phase::kPrefill, 10, 10);
  EXPECT_FALSE(external.FinishPrefill().ok());

  // An empty cache takes rows of any type again.
  Cache typed = MustCreate("none | kv=f16", {Layer()});
  engine.Append(typed, Phase::kPrefill, 0, 20);
  MustTrim(typed, 0, 20);
  const TypedRows keys(engine.prompt.keys, ElementType::kBF16);
  const TypedRows values(engine.prompt.values, ElementType::kBF16);
  HeadsView key = keys.HeadMajor(2, 200, 64);
  HeadsView value = values.HeadMajor(2, 200, 48);
  key.rows = value.rows = 1;
  EXPECT_TRUE(typed.Append(0, Phase::kPrefill, key, value, Positions(0, 1)).ok());
}

TEST(Trim, BackToNothingAfterASelectionTheLayerIsEmpty) {
  const Engine engine(Layer(), 200, 16);
  const char* spec = "random(budget=32) | k=center+int8, v=int8 | schedule=per_chunk";
  Cache trimmed = MustCreate(spec, {Layer()});
  engine.Append(trimmed, Phase::kPrefill, 0, 100);
  ASSERT_TRUE(trimmed.Evict(0).ok());
  engine.Append(trimmed, Phase::kPrefill, 100, 50);
  MustTrim(trimmed, 20, 130, Trim::kAllowInexact);
  EXPECT_LT(trimmed.rows(0, 0), 20);
  MustTrim(trimmed, 0, 20, Trim::kAllowInexact);
  EXPECT_EQ(trimmed.Report().resident_bytes(), 0);
  Cache straight = MustCreate(spec, {Layer()});
  for (Cache* cache : {&straight, &trimmed}) engine.Append(*cache, Phase::kPrefill, 0, 20);
  EXPECT_EQ(trimmed.Report().payload_bytes, straight.Report().payload_bytes);
  MustTrim(trimmed, 0, 20, Trim::kAllowInexact);
  EXPECT_TRUE(trimmed.FinishPrefill().ok());
  EXPECT_EQ(trimmed.rows(0, 1), 0);
  EXPECT_EQ(trimmed.ReportLayer(0).note, "");  // as of a layer that never had rows
}

// Every request of memory that a trim makes is refused once; it needs some where positions with
// gaps take another form.
TEST(Trim, RefusedMemoryChangesNothing) {
  for (const bool staged : {false, true}) {
    SCOPED_TRACE(staged);
    TestAllocator allocator;
    CacheOptions options;
    options.allocator = &allocator;
    const Prompt prompt = MakePrompt(Layer(), 700, 14);
    Cache cache =
        MustCreate("random(budget=8,sinks=0) | kv=int8 | schedule=per_chunk", {Layer()}, options);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 400).ok());
    ASSERT_TRUE(cache.Evict(0).ok());
    if (!staged) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
    }
    const Phase phase = staged ? Phase::kPrefill : Phase::kDecode;
    ASSERT_TRUE(AppendRows(cache, 0, phase, prompt, 400, 300).ok());
    int refused = 0;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 100);
      const std::string before = StateOf(cache);
      allocator.fail_at = n;
      const Result<std::int64_t> gone = cache.TrimToPosition(300, Trim::kAllowInexact);
      allocator.fail_at = -1;
      EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
      if (gone.ok()) break;
      ++refused;
      EXPECT_EQ(gone.error().code, ErrorCode::kOutOfMemory);
      ASSERT_EQ(StateOf(cache), before) << n;
    }
    EXPECT_EQ(refused > 0, !staged);
    EXPECT_EQ(cache.next_position(), 300);
  }
}

}  // namespace
}  // namespace kvsieve::cache_test
