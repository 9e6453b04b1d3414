// Cases from the field that concern trims and drafts that are taken back, restated.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::AppendRows;
using cache_test::GatherHead;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::UniformRows;

void MustAppendRows(Cache& cache, Phase phase, const Prompt& prompt, std::int64_t first,
                    std::int64_t count) {
  for (int i = 0; i < cache.layers(); ++i) {
    const Status added = AppendRows(cache, i, phase, prompt, first, count);
    ASSERT_TRUE(added.ok()) << added.message();
  }
}

// A window that is full does not keep rejected rows: whether they can go is known before.
TEST(Cases, U23_RejectedRowsGoAlsoOnceTheWindowIsFull) {
  LayerSpec layer = MakeLayer(2, 1, 32, 32);
  layer.sliding_window = 8;
  const Prompt right = MakePrompt(layer, 30, 1);
  Prompt draft = MakePrompt(layer, 30, 2);
  // The first row of the draft, at position 12, is the one that is accepted.
  std::copy_n(right.keys.begin() + 12 * 32, 32, draft.keys.begin() + 12 * 32);
  std::copy_n(right.values.begin() + 12 * 32, 32, draft.values.begin() + 12 * 32);
  for (const char* spec : {"none | kv=f16", "none | kv=int8 | tail=16"}) {
    for (const bool by_rollback : {false, true}) {
      Cache cache = MustCreate(spec, {layer});
      Cache straight = MustCreate(spec, {layer});
      for (Cache* c : {&cache, &straight}) {
        ASSERT_TRUE(c->FinishPrefill().ok());
        for (int r = 0; r < 12; ++r) MustAppendRows(*c, Phase::kDecode, right, r, 1);
      }
      ASSERT_TRUE(cache.CanRollback(3));
      MustAppendRows(cache, Phase::kVerify, draft, 12, 4);
      ASSERT_TRUE((by_rollback ? cache.Rollback(3) : cache.Accept(1)).ok());
      MustAppendRows(straight, Phase::kDecode, right, 12, 1);
      ExpectSame(cache, straight);
      EXPECT_EQ(cache.next_position(), 13);
    }
  }
}

// Appends of several rows into a full window hold few rows more, and each query sees its own.
TEST(Cases, U25_AppendsOfSeveralRowsKeepEachQuerysWindow) {
  LayerSpec layer = MakeLayer(2, 1, 32, 32);
  layer.sliding_window = 16;
  const Prompt rows = MakePrompt(layer, 60, 3);
  const std::vector<float> queries = UniformRows(2 * 4 * 32, 4);
  for (const Phase phase : {Phase::kDecode, Phase::kVerify}) {
    Cache cache = MustCreate("none | kv=f16 | tail=32", {layer});
    MustAppendRows(cache, Phase::kPrefill, rows, 0, 14);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    for (std::int64_t first = 14; first < 54; first += 4) {
      MustAppendRows(cache, phase, rows, first, 4);
      const std::vector<TokenPos> positions = Positions(static_cast<TokenPos>(first), 4);
      // Over all rows that ever came, of which the oracle takes the last 16.
      Prompt so_far = rows;
      cache_test::ExpectAttentionNear(MustAttend(cache, 0, queries, positions),
                                      oracle::Attend(layer, so_far.Heads(), queries, positions), 32,
                                      1e-4, 1e-4);
      // Accepted rows leave what one append of them leaves; open ones wait beside it.
      EXPECT_LE(cache.rows(0, 0), phase == Phase::kDecode ? 16 + 4 - 1 : 16 + 4 - 1 + 4);
      if (phase == Phase::kVerify) {
        ASSERT_TRUE(cache.Accept(4).ok());
      }
      EXPECT_LE(cache.rows(0, 0), 16 + 4 - 1);
    }
  }
}

// What a draft of 4 with 1 accepted costs each cache: the model's gained 5 rows and loses 3, the
// drafter's gained 4 and loses 2.
TEST(Cases, U26_MainAndDraftCacheEndAtTheSameToken) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  const Prompt rows = MakePrompt(layer, 300, 5);
  Cache model = MustCreate("snapkv(budget=40) | kv=int8", {layer});
  Cache drafter = MustCreate("none | kv=int4", {layer});
  const std::vector<float> queries = UniformRows(2 * 100 * 32, 6);
  for (Cache* cache : {&model, &drafter}) {
    MustAppendRows(*cache, Phase::kPrefill, rows, 0, 100);
    ASSERT_TRUE(
        cache->Observe(0, Positions(0, 100), HeadsView::HeadMajor(queries.data(), 2, 100, 32))
            .ok());
    ASSERT_TRUE(cache->FinishPrefill().ok());
  }
  for (TokenPos prior = 100; prior < 140; prior += 2) {
    MustAppendRows(model, Phase::kVerify, rows, prior, 5);
    for (int r = 0; r < 4; ++r) MustAppendRows(drafter, Phase::kVerify, rows, prior + r, 1);
    ASSERT_TRUE(model.CanRollback(3) && drafter.CanRollback(2));
    ASSERT_TRUE(model.Rollback(3).ok());
    ASSERT_TRUE(drafter.Rollback(2).ok());
    EXPECT_EQ(model.next_position(), prior + 2);
    EXPECT_EQ(drafter.next_position(), prior + 2);
  }
  EXPECT_EQ(drafter.rows(0, 0), 140);
  EXPECT_EQ(model.rows(0, 0), 40 + 40);
}

// A trim reaches every layer, whatever its store.
TEST(Cases, U27_ATrimReachesLayersOfEveryStore) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  const Prompt rows = MakePrompt(layer, 253, 7);
  Cache cache = MustCreate("none | kv=f16 | layers(1..1)={kv=int8} | layers(2..2)={kv=int4}",
                           {layer, layer, layer});
  MustAppendRows(cache, Phase::kPrefill, rows, 0, 200);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  MustAppendRows(cache, Phase::kDecode, rows, 200, 40);
  MustAppendRows(cache, Phase::kVerify, rows, 240, 13);
  const Result<std::int64_t> gone = cache.TrimToPosition(17);
  ASSERT_TRUE(gone.ok()) << gone.message();
  EXPECT_EQ(*gone, 236);
  MustAppendRows(cache, Phase::kDecode, rows, 17, 27);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cache.rows(i, 0), 44) << "layer " << i;
    EXPECT_EQ(GatherHead(cache, i, 0).positions, Positions(0, 44));
  }
}

// Going back in a quantized cache gives the bytes of one that never saw more.
TEST(Cases, U28_AQuantizedCacheIsRolledBackToTheBytesOfAFreshOne) {
  const LayerSpec layer = MakeLayer(2, 2, 64, 64);
  const Prompt rows = MakePrompt(layer, 105, 8);
  Cache fresh = MustCreate("none | kv=int8", {layer});
  Cache drafted = MustCreate("none | kv=int8", {layer});
  Cache trimmed = MustCreate("none | kv=int8", {layer});
  for (Cache* cache : {&fresh, &drafted, &trimmed}) {
    MustAppendRows(*cache, Phase::kPrefill, rows, 0, 100);
    ASSERT_TRUE(cache->FinishPrefill().ok());
  }
  MustAppendRows(fresh, Phase::kDecode, rows, 100, 2);
  MustAppendRows(drafted, Phase::kVerify, rows, 100, 5);
  ASSERT_TRUE(drafted.Rollback(3).ok());
  ExpectSame(drafted, fresh);
  // Tokens that were taken back by a trim came, once: the report goes on counting them.
  MustAppendRows(trimmed, Phase::kDecode, rows, 100, 5);
  ASSERT_TRUE(trimmed.TrimToPosition(102).ok());
  EXPECT_EQ(trimmed.Report().lifetime_tokens, 2 * 105);
  for (int head = 0; head < 2; ++head) {
    const oracle::HeadRows of_fresh = GatherHead(fresh, 0, head);
    const oracle::HeadRows of_trimmed = GatherHead(trimmed, 0, head);
    EXPECT_EQ(of_trimmed.positions, of_fresh.positions);
    EXPECT_EQ(of_trimmed.keys, of_fresh.keys);
    EXPECT_EQ(of_trimmed.values, of_fresh.values);
  }
  EXPECT_EQ(trimmed.Report().kept_bytes(), fresh.Report().kept_bytes());
}

}  // namespace
}  // namespace kvsieve::state_test
