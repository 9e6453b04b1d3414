// PositionList against a plain vector, and its memory against what it promises.
#include "lib/position_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::Positions;
using cache_test::TestAllocator;

PositionList MustBuild(TestAllocator& allocator, const std::vector<TokenPos>& positions) {
  Result<PositionList> list = PositionList::Build(allocator, positions);
  EXPECT_TRUE(list.ok());
  return *std::move(list);
}

void MustAppend(TestAllocator& allocator, const std::vector<TokenPos>& more, PositionList* list) {
  ASSERT_TRUE(list->Reserve(allocator, more).ok());
  for (const TokenPos position : more) list->Append(position);
}

std::vector<TokenPos> ReadAll(const PositionList& list) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(list.rows()));
  for (RowIndex begin = 0; begin < list.rows(); begin += kBlockRows) {
    const auto count = std::min<std::int64_t>(kBlockRows, list.rows() - begin);
    list.Read(begin, static_cast<int>(count), positions.data() + begin);
  }
  return positions;
}

// Bytes of the smallest form for these positions: what "never more than 4 bytes a row" allows.
std::int64_t ListBytes(const PositionList& list) { return list.rows() * 4; }

TEST(PositionList, AListWithoutGapsStoresOnlyItsFirst) {
  TestAllocator allocator;
  const PositionList list = MustBuild(allocator, Positions(17, 100000));
  EXPECT_EQ(list.live_bytes(), 4);
  EXPECT_EQ(list.resident_bytes(), 4);
  EXPECT_EQ(allocator.live_bytes, 4);
  EXPECT_EQ(ReadAll(list), Positions(17, 100000));
}

TEST(PositionList, AnEmptyListTakesNoMemory) {
  TestAllocator allocator;
  const PositionList list = MustBuild(allocator, {});
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.live_bytes(), 0);
  EXPECT_EQ(allocator.live_bytes, 0);
}

TEST(PositionList, DensePositionsWithGapsAreABitmap) {
  TestAllocator allocator;
  std::vector<TokenPos> every_second;
  for (TokenPos p = 0; p < 2000; p += 2) every_second.push_back(p);
  const PositionList list = MustBuild(allocator, every_second);
  // 1999 positions from first to last: 250 bytes; 16 blocks of 64 rows: 16 marks.
  EXPECT_EQ(list.live_bytes(), 250 + 16 * 4);
  EXPECT_EQ(ReadAll(list), every_second);
}

TEST(PositionList, SparsePositionsAreAList) {
  TestAllocator allocator;
  std::vector<TokenPos> sparse;
  for (TokenPos p = 0; p < 100; ++p) sparse.push_back(p * 1000);
  const PositionList list = MustBuild(allocator, sparse);
  EXPECT_EQ(list.live_bytes(), 400);
  EXPECT_EQ(ReadAll(list), sparse);
}

TEST(PositionList, AFarRowAfterABitmapTakesFourBytesARowAtMost) {
  TestAllocator allocator;
  PositionList list = MustBuild(allocator, {0, 2, 3, 4, 5, 6, 7, 8});
  MustAppend(allocator, {2000000000}, &list);
  EXPECT_EQ(ReadAll(list), (std::vector<TokenPos>{0, 2, 3, 4, 5, 6, 7, 8, 2000000000}));
  EXPECT_LE(list.live_bytes(), ListBytes(list));
  EXPECT_LE(allocator.peak_bytes, 256);
}

// An exact tail loses its first row at each step: what fell out must not be paid for.
TEST(PositionList, ASlidingListForgetsWhatFellOut) {
  TestAllocator allocator;
  std::vector<TokenPos> expected = {0, 2};
  for (TokenPos p = 3; p < 65; ++p) expected.push_back(p);
  PositionList list = MustBuild(allocator, expected);
  for (TokenPos p = 65; p < 20000; ++p) {
    MustAppend(allocator, {p}, &list);
    list.DropFront(1);
    ASSERT_LE(list.live_bytes(), ListBytes(list)) << p;
  }
  EXPECT_EQ(ReadAll(list), Positions(20000 - 64, 64));
  EXPECT_LE(allocator.live_bytes, 1024);
}

TEST(PositionList, AListWhoseGapsFellOutIsARunAgain) {
  TestAllocator allocator;
  PositionList list = MustBuild(allocator, {3, 500, 501, 502});
  list.DropFront(1);
  EXPECT_EQ(list.live_bytes(), 4);
  EXPECT_EQ(ReadAll(list), Positions(500, 3));
}

// A reservation that is never used, because a later one failed, changes nothing that is reported.
TEST(PositionList, ReservingShowsNothing) {
  TestAllocator allocator;
  PositionList list = MustBuild(allocator, Positions(0, 10));
  ASSERT_TRUE(list.Reserve(allocator, std::vector<TokenPos>{100, 200}).ok());
  EXPECT_EQ(list.live_bytes(), 4);
  EXPECT_EQ(ReadAll(list), Positions(0, 10));
  MustAppend(allocator, {10}, &list);
  EXPECT_EQ(list.live_bytes(), 4);
  EXPECT_EQ(ReadAll(list), Positions(0, 11));
}

// ... and binds nobody: other rows than the reserved ones may come.
TEST(PositionList, AnEmptyListTakesOtherRowsThanWereReserved) {
  TestAllocator allocator;
  PositionList list;
  std::vector<TokenPos> high;
  for (TokenPos p = 1000; p < 2000; p += 2) high.push_back(p);
  ASSERT_TRUE(list.Reserve(allocator, high).ok());
  MustAppend(allocator, {3, 5, 6}, &list);
  EXPECT_EQ(ReadAll(list), (std::vector<TokenPos>{3, 5, 6}));
}

TEST(PositionList, AFailedReservationChangesNothing) {
  for (int fail_at = 0; fail_at < 2; ++fail_at) {
    TestAllocator allocator;
    PositionList list = MustBuild(allocator, Positions(0, 100));
    allocator.fail_at = fail_at;
    std::vector<TokenPos> more;
    for (TokenPos p = 200; p < 600; p += 2) more.push_back(p);
    ASSERT_EQ(list.Reserve(allocator, more).error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(ReadAll(list), Positions(0, 100));
    allocator.fail_at = -1;
    MustAppend(allocator, more, &list);
    std::vector<TokenPos> expected = Positions(0, 100);
    expected.insert(expected.end(), more.begin(), more.end());
    EXPECT_EQ(ReadAll(list), expected);
  }
}

// Any order of appends and drops, in batches that are dense, gapped or far away.
TEST(PositionList, EqualsAPlainVectorUnderRandomUse) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    TestAllocator allocator;
    PositionList list;
    std::vector<TokenPos> expected;
    TokenPos next = below(100);
    const int step = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 3 : 500;
    for (int turn = 0; turn < 30; ++turn) {
      std::vector<TokenPos> more(static_cast<std::size_t>(below(turn % 5 == 0 ? 300 : 5)));
      for (TokenPos& position : more) position = std::exchange(next, next + 1 + below(step));
      MustAppend(allocator, more, &list);
      expected.insert(expected.end(), more.begin(), more.end());
      ASSERT_LE(list.live_bytes(), ListBytes(list)) << "turn " << turn;
      const int drop = turn % 4 == 3 ? below(static_cast<int>(expected.size()) + 1)
                                     : below(static_cast<int>(expected.size()) / 8 + 1);
      const int dropped = turn % 7 == 0 ? drop / kBlockRows * kBlockRows : drop;
      list.DropFront(dropped);
      expected.erase(expected.begin(), expected.begin() + dropped);

      ASSERT_EQ(ReadAll(list), expected) << "turn " << turn;
      ASSERT_EQ(list.resident_bytes(), allocator.live_bytes);
      ASSERT_LE(list.live_bytes(), list.resident_bytes());
      if (expected.empty()) continue;
      ASSERT_EQ(list.first(), expected.front());
      ASSERT_EQ(list.last(), expected.back());
    }
  }
}

}  // namespace
}  // namespace kvsieve
