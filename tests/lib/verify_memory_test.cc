// Memory of open draft rows, and rows that cannot be stored.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/lib/draft_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::AppendRows;
using cache_test::GatherHead;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::TestAllocator;
using cache_test::WithReserve;

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
// The types that rows will have are not known before the first one.
TEST(Verify, TheFirstRowTakesAllThatWasReserved) {
  TestAllocator allocator;
  Life life = LifeOf("none | kv=int8");
  life.options.allocator = &allocator;
  life.prompt_rows = 0;
  Cache cache = life.At(Stage::kFinished);
  ASSERT_TRUE(cache.ReserveSpeculative(50).ok());
  Result<Cache> fork = cache.Fork();
  ASSERT_TRUE(fork.ok());
  for (Cache* one : {&cache, &*fork}) {
    AppendNext(*one, Phase::kVerify, 1);
    allocator.fail_at = 0;
    AppendNext(*one, Phase::kVerify, 49);
    EXPECT_EQ(allocator.refusals, 0);
    allocator.fail_at = -1;
  }
}

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
