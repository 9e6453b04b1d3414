// Rows of a draft: seen by attention, taken back without a trace, or kept as decode rows are.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/lib/state_fixture.h"

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
using cache_test::TestAllocator;
using cache_test::UniformRows;
using cache_test::WithReserve;

// One layer of each kind: all rows, a window, V in K.
std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 32, 32), MakeLayer(2, 2, 32, 32),
                                   MakeLayer(4, 1, 48, 32)};
  layers[1].sliding_window = 24;
  layers[2].value_is_key_prefix = true;
  for (int i = 0; i < 3; ++i) layers[static_cast<std::size_t>(i)].layer = 10 + i;
  return layers;
}

// Rows and learnt statistics, groups, tiers, tails and sinks.
constexpr const char* kSpecs[] = {
    "none | kv=f16",
    "none | kv=int8 | exact_sinks=4 | tail=8",
    "snapkv(budget=90,window=16) | k=center+turbo4, v=int4, layers(2..2)={kv=turbo4} | tail=20",
    "recency(budget=60) | kv=channel(bits=2,group=16)",
    "snapkv(budget=50%,window=16) | kv=int8 | cold(20%)={kv=int4}",
    "recency(budget=40) | kv=int8 | schedule=every(16)"};

Life LifeOf(const char* spec) {
  Life life;
  life.spec = spec;
  life.layers = Layers();
  return life;
}

// `count` rows of every layer behind the last one, the same for caches that are equally far.
void AppendNext(Cache& cache, Phase phase, std::int64_t count) {
  const TokenPos first = cache.next_position();
  for (int i = 0; i < cache.layers(); ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 * i + first);
    Prompt rows = MakePrompt(cache.layer(i), 1000, seed, first);
    const Status added = AppendRows(cache, i, phase, rows, 0, count);
    ASSERT_TRUE(added.ok()) << added.message();
  }
}
// The same rows in calls of these many.
void AppendPieces(Cache& cache, Phase phase, const std::vector<std::int64_t>& pieces) {
  const TokenPos first = cache.next_position();
  for (int i = 0; i < cache.layers(); ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 * i + first);
    Prompt rows = MakePrompt(cache.layer(i), 1000, seed, first);
    std::int64_t done = 0;
    for (const std::int64_t piece : pieces) {
      const Status added = AppendRows(cache, i, phase, rows, done, piece);
      ASSERT_TRUE(added.ok()) << added.message();
      done += piece;
    }
  }
}

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

// Memory of open rows is reserve; nothing else of a report changes.
TEST(Verify, ReportsCountOpenRowsAsReserve) {
  TestAllocator allocator;
  Life life = LifeOf(
      "snapkv(budget=90,window=16) | k=center+turbo4, v=int4, layers(2..2)={kv=turbo4} | tail=20");
  life.options.allocator = &allocator;
  Cache cache = life.At(Stage::kDecoded);
  const std::string before = cache_test::BytesText(cache.Report(), WithReserve::kNo);
  const std::int64_t reserved = cache.Report().reserved_bytes;
  EXPECT_EQ(cache.ReportLayer(0).note.find("verify"), std::string::npos);
  AppendNext(cache, Phase::kVerify, 5);
  EXPECT_EQ(cache_test::BytesText(cache.Report(), WithReserve::kNo), before);
  EXPECT_NE(cache.ReportLayer(0).note.find("5 verify rows open"), std::string::npos);
  // f32 rows of two KV heads of 32 + 32, twice, and of one of 48; a position each.
  EXPECT_EQ(cache.Report().reserved_bytes - reserved, 5 * (2 * 512 + 192 + 3 * 4));
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
  ASSERT_TRUE(cache.Accept(3).ok());
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
  ASSERT_TRUE(cache.ReserveSpeculative(0).ok());
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
}

// Room grows by doubling, but never past what a layer can hold.
TEST(Verify, TakesNoMoreRoomThanWasReserved) {
  const Life life = LifeOf("none | kv=int8");
  Cache grown = life.At(Stage::kFinished);
  Cache reserved = life.At(Stage::kFinished);
  ASSERT_TRUE(reserved.ReserveSpeculative(64).ok());
  AppendPieces(grown, Phase::kVerify, {33, 1});
  AppendPieces(reserved, Phase::kVerify, {33, 1});
  EXPECT_EQ(grown.Report().reserved_bytes, reserved.Report().reserved_bytes);
}

TEST(Verify, ReservedRowsAskForNoMemory) {
  TestAllocator allocator;
  Life life = LifeOf("none | kv=int8");
  life.options.allocator = &allocator;
  Cache cache = life.At(Stage::kDecoded);
  ASSERT_TRUE(cache.ReserveSpeculative(20).ok());
  allocator.fail_at = 0;
  AppendPieces(cache, Phase::kVerify, {7, 13});
  ASSERT_TRUE(cache.Rollback(20).ok());
  AppendNext(cache, Phase::kVerify, 20);
  ASSERT_TRUE(cache.TrimToPosition(cache.next_position() - 20).ok());
  EXPECT_EQ(allocator.refusals, 0);
  allocator.fail_at = -1;
}

// A refused request leaves the rows as they were; the same call then does what it would have done.
TEST(Verify, WithoutMemoryAllRowsStayOpen) {
  TestAllocator allocator;
  Life life = LifeOf("none | kv=int8 | exact_sinks=4 | tail=8");
  life.options.allocator = &allocator;
  Cache straight = life.At(Stage::kDecoded);
  AppendNext(straight, Phase::kDecode, 64);
  int accepts = 0;
  int appends = 0;
  for (int n = 0;; ++n) {
    Cache cache = life.At(Stage::kDecoded);
    const std::string before = StateOf(cache);
    const Prompt rows = MakePrompt(cache.layer(0), 64, 1, cache.next_position());
    allocator.fail_at = n;
    const Status added = AppendRows(cache, 0, Phase::kVerify, rows, 0, 64);
    allocator.fail_at = -1;
    if (!added.ok()) {
      ++appends;
      EXPECT_EQ(added.error().code, ErrorCode::kOutOfMemory);
      ASSERT_EQ(StateOf(cache), before);
    }
    ASSERT_TRUE(cache.TrimToPosition(rows.positions.front()).ok());
    const std::string trimmed = StateOf(cache);
    allocator.fail_at = n;
    const Status reserved = cache.ReserveSpeculative(70);
    allocator.fail_at = -1;
    EXPECT_EQ(cache.CanRollback(65), reserved.ok());
    if (!reserved.ok()) {
      ASSERT_EQ(StateOf(cache), trimmed);
    }
    AppendNext(cache, Phase::kVerify, 64);
    const std::string open = StateOf(cache, WithReserve::kNo);
    allocator.fail_at = n;
    const Status accepted = cache.Accept(64);
    allocator.fail_at = -1;
    if (!accepted.ok()) {
      ++accepts;
      EXPECT_EQ(accepted.error().code, ErrorCode::kOutOfMemory);
      ASSERT_EQ(StateOf(cache, WithReserve::kNo), open);
      ASSERT_TRUE(cache.Accept(64).ok());
    }
    ExpectSame(cache, straight);
    if (added.ok() && reserved.ok() && accepted.ok()) break;
  }
  EXPECT_GT(appends, 2);
  EXPECT_GT(accepts, 5);
}

TEST(Verify, RowsThatAreNotFiniteAreRefusedOrCountedOnceAccepted) {
  for (const char* spec : {"none | kv=f16", "none | kv=f16 | nonfinite=zero"}) {
    Cache cache = MustCreate(spec, {MakeLayer(2, 2, 32, 32)});
    Prompt rows = MakePrompt(cache.layer(0), 20, 8);
    rows.keys[(20 + 12) * 32 + 3] = NAN;
    rows.values[14 * 32] = INFINITY;
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, rows, 0, 10).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const std::string before = StateOf(cache);
    const Status added = AppendRows(cache, 0, Phase::kVerify, rows, 10, 10);
    if (!added.ok()) {
      EXPECT_EQ(added.error().code, ErrorCode::kNonFinite);
      EXPECT_NE(added.message().find("keys, head 1, row 2"), std::string::npos) << added.message();
      EXPECT_EQ(StateOf(cache), before);
      continue;
    }
    const auto noted = [&](const char* text) {
      return cache.ReportLayer(0).note.find(text) != std::string::npos;
    };
    EXPECT_FALSE(noted("NaN"));
    EXPECT_EQ(GatherHead(cache, 0, 1).keys[12 * 32 + 3], 0.0F);
    ASSERT_TRUE(cache.Accept(4).ok());
    EXPECT_TRUE(noted("1 NaN or Inf set to 0")) << cache.ReportLayer(0).note;
  }
}

// Found when it is encoded: nothing is accepted, in no layer.
TEST(Verify, ARowThatTheStoreCannotHoldIsNamedByAccept) {
  Cache cache = LifeOf("none | kv=f16").At(Stage::kFinished);
  const Bytes saved = Saved(cache);
  const TokenPos first = cache.next_position();
  for (int i = 0; i < 3; ++i) {
    Prompt rows = MakePrompt(cache.layer(i), 4, 9, first);
    if (i == 1) rows.keys[(4 + 2) * 32] = 1e6F;
    ASSERT_TRUE(AppendRows(cache, i, Phase::kVerify, rows, 0, 4).ok());
  }
  const std::string before = StateOf(cache, WithReserve::kNo);
  const Status accepted = cache.Accept(4);
  ASSERT_FALSE(accepted.ok());
  EXPECT_NE(accepted.message().find("layer 11: head 1, position 202"), std::string::npos)
      << accepted.message();
  EXPECT_EQ(StateOf(cache, WithReserve::kNo), before);
  EXPECT_TRUE(cache.Rollback(4).ok());
  EXPECT_TRUE(Saved(cache) == saved);
}

}  // namespace
}  // namespace kvsieve::state_test
