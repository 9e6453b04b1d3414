// Rows of a draft: seen by attention, taken back without a trace, or kept as decode rows are.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/lib/draft_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::AppendRows;
using cache_test::GatherHead;
using cache_test::GatherLayer;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::UniformRows;

// Rows and learnt statistics, groups, tiers, tails and sinks.
constexpr const char* kSpecs[] = {
    "none | kv=f16",
    "none | kv=int8 | exact_sinks=4 | tail=8",
    "snapkv(budget=90,window=16) | k=center+turbo4, v=int4, layers(2..2)={kv=turbo4} | tail=20",
    "recency(budget=60) | kv=channel(bits=2,group=16)",
    "snapkv(budget=50%,window=16) | kv=int8 | cold(20%)={kv=int4}",
    "recency(budget=40) | kv=int8 | schedule=every(16)"};

TEST(Verify, RollingBackLeavesNoTrace) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Life life = LifeOf(spec);
    for (const Stage stage : {Stage::kFinished, Stage::kDecoded, Stage::kTrimmed}) {
      Cache cache = life.At(stage);
      ASSERT_TRUE(cache.ReserveSpeculative(64).ok());
      const std::string before = StateOf(cache);
      const Bytes saved = Saved(cache);
      for (const std::vector<std::int64_t>& pieces :
           {std::vector<std::int64_t>{1}, {5}, {2, 3}, {60, 4}}) {
        AppendPieces(cache, Phase::kVerify, pieces);
        EXPECT_NE(StateOf(cache), before);
        const std::int64_t open = pieces.front() + (pieces.size() > 1 ? pieces.back() : 0);
        const Status back = pieces.front() == 5 ? cache.Accept(0) : cache.Rollback(open);
        ASSERT_TRUE(back.ok()) << back.message();
        ASSERT_EQ(StateOf(cache), before);
        ASSERT_TRUE(Saved(cache) == saved);
      }
      Cache straight = life.At(stage);
      life.GoOn(cache, stage);
      life.GoOn(straight, stage);
      ExpectSame(cache, straight);
    }
  }
}

TEST(Verify, AcceptedRowsAreThoseOfPhaseDecode) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Life life = LifeOf(spec);
    for (const std::int64_t accepted : {0, 1, 7, 40}) {
      SCOPED_TRACE(accepted);
      Cache cache = life.At(Stage::kDecoded);
      Cache other = life.At(Stage::kDecoded);
      Cache straight = life.At(Stage::kDecoded);
      for (int round = 0; round < 3; ++round) {
        AppendPieces(cache, Phase::kVerify, {30, 10});
        ASSERT_TRUE(cache.Accept(accepted).ok());
        AppendNext(other, Phase::kVerify, 40);
        ASSERT_TRUE(other.Rollback(40 - accepted).ok());
        if (accepted > 0) AppendNext(straight, Phase::kDecode, accepted);
        ExpectSame(cache, straight);
        ExpectSame(other, straight);
      }
      life.GoOn(cache, Stage::kDecoded);
      life.GoOn(straight, Stage::kDecoded);
      ExpectSame(cache, straight);
    }
  }
}

// A prompt shorter than the exact sinks, or none: accepted rows are sinks, and name the types.
TEST(Verify, TheFirstRowsOfASequenceMayBeADraft) {
  for (const std::int64_t prompt_rows : {0, 2}) {
    Life life = LifeOf("none | kv=int8 | exact_sinks=4 | tail=2");
    life.prompt_rows = prompt_rows;
    Cache cache = life.At(Stage::kFinished);
    Cache straight = life.At(Stage::kFinished);
    const Bytes saved = Saved(cache);
    AppendNext(cache, Phase::kVerify, 9);
    ASSERT_TRUE(cache.Rollback(9).ok());
    EXPECT_TRUE(Saved(cache) == saved);
    AppendNext(cache, Phase::kVerify, 9);
    ASSERT_TRUE(cache.Accept(7).ok());
    AppendNext(straight, Phase::kDecode, 7);
    ExpectSame(cache, straight);
  }
}

TEST(Verify, OpenRowsMustBeOfOneType) {
  Cache cache = MustCreate("none | kv=int8", {MakeLayer(2, 1, 32, 32)});
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Prompt rows = MakePrompt(cache.layer(0), 4, 1);
  const cache_test::TypedRows half(rows.keys, ElementType::kF16);
  const auto append_half = [&] {
    const HeadsView view = half.HeadMajor(1, 4, 32);
    return cache.Append(0, Phase::kVerify, view, view, Positions(4, 4));
  };
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kVerify, rows, 0, 4).ok());
  const Status mixed = append_half();
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(cache.Rollback(4).ok());
  EXPECT_TRUE(append_half().ok());  // nothing is left that says f32
}

// Memory that was taken for smaller rows has no room for as many larger ones.
TEST(Verify, RowsOfALargerTypeTakeMoreMemory) {
  Cache cache = MustCreate("none | kv=int8", {MakeLayer(2, 1, 32, 32)});
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Prompt rows = MakePrompt(cache.layer(0), 4, 1);
  const cache_test::TypedRows half(rows.keys, ElementType::kF16);
  const HeadsView view = half.HeadMajor(1, 4, 32);
  ASSERT_TRUE(cache.Append(0, Phase::kVerify, view, view, Positions(0, 4)).ok());
  ASSERT_TRUE(cache.Rollback(4).ok());
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kVerify, rows, 0, 4).ok());
  EXPECT_GE(cache.Report().reserved_bytes, 2 * 4 * 32 * 4 + 4 * 4);  // K, V and positions
  EXPECT_EQ(cache_test::GatherHead(cache, 0, 0).keys, rows.keys);
}

TEST(Verify, AttentionSeesOpenRowsByPosition) {
  cache_test::OnEveryTarget([] {
    for (const char* spec : {"none | kv=f16", "none | kv=int8 | tail=8"}) {
      SCOPED_TRACE(spec);
      Cache cache = LifeOf(spec).At(Stage::kDecoded);
      const TokenPos first = cache.next_position();
      ASSERT_TRUE(cache.ReserveSpeculative(100).ok());
      AppendPieces(cache, Phase::kVerify, {90, 10});  // more than a block of attention
      EXPECT_EQ(cache.next_position(), first + 100);
      const std::vector<TokenPos> positions = {first - 1,  first,      first + 1,
                                               first + 70, first + 99, first + 150};
      for (int i = 0; i < cache.layers(); ++i) {
        const LayerSpec& layer = cache.layer(i);
        const std::vector<float> queries = UniformRows(layer.query_heads * 6 * layer.key_dim, 9);
        const std::vector<oracle::HeadRows> heads = GatherLayer(cache, i);
        ASSERT_EQ(heads[0].positions.back(), first + 99);
        cache_test::ExpectWithinKernelBound(layer, heads, queries,
                                            MustAttend(cache, i, queries, positions),
                                            oracle::Attend(layer, heads, queries, positions));
        std::vector<std::uint8_t> mask(6 * static_cast<std::size_t>(cache.rows(i, 0)));
        ASSERT_TRUE(cache.Visible(i, 0, positions, mask).ok());
        const std::size_t width = mask.size() / 6;
        EXPECT_EQ(mask[2 * width + width - 99], 1);  // first + 1 sees itself
        EXPECT_EQ(mask[2 * width + width - 98], 0);  // and not the next
      }
    }
  });
}

// Open rows are what was appended, bit by bit, whatever the store will make of them.
TEST(Verify, OpenRowsAreExact) {
  Cache cache = LifeOf("none | kv=int2").At(Stage::kFinished);
  const TokenPos first = cache.next_position();
  const std::int64_t rows = cache.rows(0, 1);
  AppendNext(cache, Phase::kVerify, 3);
  const oracle::HeadRows head = GatherHead(cache, 0, 1);
  const Prompt sent = MakePrompt(cache.layer(0), 1000, static_cast<std::uint64_t>(first), first);
  ASSERT_EQ(head.rows(), rows + 3);
  for (std::size_t d = 0; d < 3 * 32; ++d) {
    EXPECT_EQ(head.keys[static_cast<std::size_t>(rows) * 32 + d], sent.keys[1000 * 32 + d]);
    EXPECT_EQ(head.values[static_cast<std::size_t>(rows) * 32 + d], sent.values[1000 * 32 + d]);
  }
}

TEST(Verify, NothingFallsOutOfAWindowWhileRowsAreOpen) {
  LayerSpec layer = MakeLayer(2, 1, 32, 32);
  layer.sliding_window = 70;
  for (const char* spec : {"none | kv=f16", "none | kv=int8 | tail=100"}) {
    Cache cache = MustCreate(spec, {layer});
    const Prompt rows = MakePrompt(layer, 600, 3);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, rows, 0, 300).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const std::int64_t held = cache.rows(0, 0);
    ASSERT_TRUE(cache.ReserveSpeculative(300).ok());
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kVerify, rows, 300, 300).ok());
    EXPECT_EQ(cache.rows(0, 0), held + 300);
    const std::vector<TokenPos> position = {300};
    const cache_test::Attended seen =
        MustAttend(cache, 0, std::vector<float>(2 * 32), position);  // equal logits
    EXPECT_NEAR(seen.lse[0], std::log(70.0), 1e-5);
    ASSERT_TRUE(cache.Accept(300).ok());
    EXPECT_LE(cache.rows(0, 0), 70 + 299 + 64);  // the first row's window, and a block
  }
}

TEST(Verify, NoEvictionRunsWhileRowsAreOpen) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  Cache cache = MustCreate("recency(budget=20) | kv=int8 | schedule=every(8)", {layer});
  const Prompt rows = MakePrompt(layer, 100, 4);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, rows, 0, 40).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, rows, 40, 10).ok());
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kVerify, rows, 50, 4).ok());
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.rows(0, 0), 34);
  ASSERT_TRUE(cache.Accept(2).ok());
  EXPECT_EQ(cache.rows(0, 0), 32);
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.rows(0, 0), 20);
  EXPECT_EQ(cache.oldest_exact_position(), 52);
}

TEST(Verify, LayersThatHoldDifferentNumbersAreNamed) {
  Cache cache = LifeOf("none | kv=int8").At(Stage::kDecoded);
  const Bytes saved = Saved(cache);
  const TokenPos first = cache.next_position();
  const Prompt rows = MakePrompt(cache.layer(0), 5, 5, first);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kVerify, rows, 0, 5).ok());
  ASSERT_TRUE(
      AppendRows(cache, 1, Phase::kVerify, MakePrompt(cache.layer(1), 5, 6, first), 0, 4).ok());
  const std::string before = StateOf(cache);
  for (const Status& status : {cache.Accept(0), cache.Accept(4), cache.Rollback(4)}) {
    EXPECT_EQ(status.error().code, ErrorCode::kState);
    EXPECT_NE(status.message().find("layer 10 holds 5 verify rows, layer 11 holds 4"),
              std::string::npos)
        << status.message();
  }
  EXPECT_FALSE(cache.CanRollback(0));
  EXPECT_EQ(StateOf(cache), before);
  // A step that was broken off is taken back by position.
  const Result<std::int64_t> gone = cache.TrimToPosition(first);
  ASSERT_TRUE(gone.ok()) << gone.message();
  EXPECT_EQ(*gone, 5);
  EXPECT_TRUE(Saved(cache) == saved);
}

TEST(Verify, ATrimTakesOpenRowsFirst) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Life life = LifeOf(spec);
    Cache cache = life.At(Stage::kDecoded);
    Cache straight = life.At(Stage::kDecoded);
    const TokenPos first = cache.next_position();
    AppendNext(cache, Phase::kVerify, 10);
    Result<std::int64_t> gone = cache.TrimToPosition(first + 4);
    ASSERT_TRUE(gone.ok()) << gone.message();
    EXPECT_EQ(*gone, 6);
    EXPECT_EQ(cache.next_position(), first + 4);
    EXPECT_TRUE(cache.CanRollback(4));
    EXPECT_FALSE(cache.CanRollback(5));
    gone = cache.TrimToPosition(first - 3, Trim::kAllowInexact);
    ASSERT_TRUE(gone.ok()) << gone.message();
    EXPECT_EQ(*gone, 7);
    ASSERT_TRUE(straight.TrimToPosition(first - 3, Trim::kAllowInexact).ok());
    ExpectSame(cache, straight);
  }
}

TEST(Verify, WhetherRowsCanBeRolledBackIsKnownBefore) {
  Cache cache = LifeOf("none | kv=f16").At(Stage::kPrompt);
  EXPECT_TRUE(cache.CanRollback(0));
  EXPECT_FALSE(cache.CanRollback(1));  // the prompt is not finished
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_TRUE(cache.CanRollback(64));
  EXPECT_FALSE(cache.CanRollback(65));
  EXPECT_FALSE(cache.CanRollback(-1));
  AppendNext(cache, Phase::kVerify, 3);
  EXPECT_TRUE(cache.CanRollback(3));
  EXPECT_FALSE(cache.CanRollback(4));
  ASSERT_TRUE(cache.Accept(3).ok());
  ASSERT_TRUE(cache.ReserveSpeculative(2).ok());
  EXPECT_TRUE(cache.CanRollback(2));
  EXPECT_FALSE(cache.CanRollback(3));
}

TEST(Verify, CallsThatDoNotFitAreRefusedByName) {
  Life life = LifeOf("snapkv(budget=90,window=16) | kv=int8 | schedule=every(16)");
  Cache cache = life.At(Stage::kFinished);
  AppendNext(cache, Phase::kVerify, 60);
  const std::string before = StateOf(cache);
  const TokenPos next = cache.next_position();
  const Prompt rows = MakePrompt(cache.layer(0), 5, 7, next);
  MemorySink sink;
  const auto refused = [&](const Status& status, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(status.ok()) << part;
    EXPECT_EQ(status.error().code, code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(StateOf(cache), before);
  };
  refused(AppendRows(cache, 0, Phase::kDecode, rows, 0, 1), ErrorCode::kState,
          "layer 10: phase decode while 60 verify rows are open");
  refused(AppendRows(cache, 0, Phase::kVerify, rows, 0, 5), ErrorCode::kInvalidArgument,
          "layer 10: 5 verify rows beside 60 open ones are more than the 64");
  refused(AppendRows(cache, 0, Phase::kVerify, MakePrompt(cache.layer(0), 1, 1, next - 1), 0, 1),
          ErrorCode::kInvalidArgument, "position 259");
  refused(cache.Accept(61), ErrorCode::kInvalidArgument, "accept 61 rows: must be in [0, 60]");
  refused(cache.Rollback(-1), ErrorCode::kInvalidArgument, "rollback -1 rows");
  refused(cache.ReserveSpeculative(59), ErrorCode::kState, "layer 10: reserve_speculative 59");
  refused(cache.ReserveSpeculative(65537), ErrorCode::kInvalidArgument, "65536");
  refused(cache.Save("test", sink), ErrorCode::kState, "save: layer 10 holds 60 open verify rows");
  EXPECT_TRUE(sink.bytes().empty());
  const std::vector<float> queries(4 * 32);
  refused(cache.Observe(0, Positions(next, 1), HeadsView::HeadMajor(queries.data(), 4, 1, 32)),
          ErrorCode::kState, "layer 10: observe while 60 verify rows are open");
}

TEST(Verify, AForkKeepsOpenRowsAndALoadedStateHasNone) {
  const Life life = LifeOf("none | kv=int8 | tail=8");
  Cache cache = life.At(Stage::kDecoded);
  const Bytes saved = Saved(cache);
  ASSERT_TRUE(cache.ReserveSpeculative(70).ok());
  AppendNext(cache, Phase::kVerify, 66);
  Result<Cache> fork = cache.Fork();
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(StateOf(*fork), StateOf(cache));
  AppendNext(*fork, Phase::kVerify, 4);
  ASSERT_TRUE(fork->Rollback(4).ok());
  ASSERT_TRUE(cache.Accept(66).ok());
  ExpectSame(*fork, cache);
  AppendNext(cache, Phase::kVerify, 3);
  ASSERT_TRUE(LoadBytes(saved, cache).ok());
  EXPECT_TRUE(Saved(cache) == saved);
  AppendNext(cache, Phase::kVerify, 70);  // the limit is the cache's, not the state's
  cache.Clear();
  EXPECT_EQ(cache.next_position(), 0);
  EXPECT_EQ(cache.Report().resident_bytes(), 0);
}

}  // namespace
}  // namespace kvsieve::state_test
