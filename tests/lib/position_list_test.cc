// PositionList against a plain vector, and its memory against what it promises.
#include "lib/position_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

// So few that high bits alone are smaller than a bitmap with its mark: there is no memory for low
// bits, which only UBSan sees.
TEST(PositionList, RowsWithoutLowBitsAreDropped) {
  TestAllocator allocator;
  PositionList list = MustBuild(allocator, {0, 2, 4, 6, 9});
  list.DropFront(1);
  EXPECT_EQ(ReadAll(list), (std::vector<TokenPos>{2, 4, 6, 9}));
  list.DropFront(2);
  EXPECT_EQ(ReadAll(list), (std::vector<TokenPos>{6, 9}));
}

TEST(PositionList, SparsePositionsAreSplitInHighAndLowBits) {
  TestAllocator allocator;
  std::vector<TokenPos> sparse;
  for (TokenPos p = 0; p < 100; ++p) sparse.push_back(p * 1000);
  const PositionList list = MustBuild(allocator, sparse);
  // 9 low bits: 64 and 36 rows in 72 and 41 bytes, a mark of 4 between them. High bits: the last,
  // 99000 / 512 = 193, lies at 193 + 99, so that 293 bits are 37 bytes.
  EXPECT_EQ(list.live_bytes(), 72 + 4 + 41 + 37);
  EXPECT_EQ(ReadAll(list), sparse);
}

TEST(PositionList, FewFarPositionsAreAList) {
  TestAllocator allocator;
  const std::vector<TokenPos> far = {7, 2000000000};
  const PositionList list = MustBuild(allocator, far);
  EXPECT_EQ(list.live_bytes(), 8);
  EXPECT_EQ(ReadAll(list), far);
}

TEST(PositionList, AListForgetsItsFirstRows) {
  TestAllocator allocator;
  PositionList list = MustBuild(allocator, {7, 1000000000, 1500000000, 2000000000});
  ASSERT_EQ(list.live_bytes(), 4 * 4);  // a list: 4 bytes a row
  list.DropFront(1);
  EXPECT_EQ(ReadAll(list), (std::vector<TokenPos>{1000000000, 1500000000, 2000000000}));
  MustAppend(allocator, {2000000007}, &list);
  list.DropFront(2);
  EXPECT_EQ(ReadAll(list), (std::vector<TokenPos>{2000000000, 2000000007}));
}

// Each of `rows` rows somewhere in its share of rows * every positions, or all at the ends of it.
std::vector<TokenPos> Scattered(std::int64_t rows, std::int64_t every, bool at_ends,
                                std::mt19937& random) {
  std::vector<TokenPos> positions;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = r * every + static_cast<std::int64_t>(random()) % every;
    const bool upper = r >= rows / 2;
    positions.push_back(static_cast<TokenPos>(at_ends ? r + (upper ? rows * (every - 1) : 0) : at));
  }
  return positions;
}

// The bound of lib/position_store.h: 2 + log2(span / rows) bits a row, 4 bytes behind each 64 rows
// but the last, and rounding: low bits and high bits to whole bytes, high bits to 4 at least. So a
// row takes at most a byte where one of 32 positions is kept, 2 where one of 8192 is: 7 and 15 bits
// and half a bit of marks.
TEST(PositionList, ARowTakesLogarithmicallyManyBitsOfItsDensity) {
  std::mt19937 random(5);
  for (const std::int64_t rows : {1, 2, 3, 20, 63, 64, 65, 500, 3000}) {
    for (const std::int64_t every : {1, 2, 3, 5, 8, 11, 24, 32, 100, 999, 8192, 200000}) {
      for (const bool at_ends : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, one of " << every << ", " << at_ends);
        TestAllocator allocator;
        const std::vector<TokenPos> positions = Scattered(rows, every, at_ends, random);
        const PositionList list = MustBuild(allocator, positions);
        EXPECT_EQ(ReadAll(list), positions);
        const double span = positions.back() - positions.front() + 1.0;
        const double bits = 2 + std::log2(span / static_cast<double>(rows));
        const auto bytes = static_cast<double>(list.live_bytes());
        EXPECT_LE(bytes, static_cast<double>(rows) * bits / 8 +
                             4.0 * static_cast<double>((rows - 1) / 64) + 6);
        EXPECT_LE(bytes, static_cast<double>(std::max<std::int64_t>(4, rows * 4)));
        PositionList grown;  // by single rows: a quarter more at most
        for (const TokenPos position : positions) MustAppend(allocator, {position}, &grown);
        EXPECT_LE(grown.live_bytes(), std::max<std::int64_t>(4, list.live_bytes() * 5 / 4));
        EXPECT_EQ(ReadAll(grown), positions);
        const std::int64_t byte_limit = every <= 32 ? 1 : every <= 8192 ? 2 : 4;
        EXPECT_LE(list.live_bytes(), byte_limit * rows + 6);
      }
    }
  }
}

TEST(PositionList, TakesTheSmallestForm) {
  std::mt19937 random(6);
  const auto up_to = [&](unsigned bits) {
    return std::int64_t{1} + static_cast<std::int64_t>(random() % (1U << (1 + random() % bits)));
  };
  for (int round = 0; round < 20000; ++round) {
    const std::int64_t rows = up_to(14);
    const std::int64_t last = rows + up_to(30) - 1;
    const PositionSpan positions = {rows, 0, static_cast<TokenPos>(last)};
    std::int64_t least = rows * 4;
    using Kind = PositionForm::Kind;
    const auto consider = [&](PositionForm form) {
      least = std::min(least, PositionStore(form, 0).bytes(rows, positions.last));
    };
    consider({Kind::kBitmap, 0});
    for (std::uint16_t low_bits = 0; low_bits <= 30; ++low_bits) consider({Kind::kSplit, low_bits});
    ASSERT_EQ(PositionList::BytesFor(positions).live, least) << rows << " rows up to " << last;
  }
}

// By single rows and by many, without gaps and with all kinds of them.
TEST(PositionList, AListThatGrewTakesWhatIsForetold) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    TestAllocator allocator;
    PositionList list;
    for (TokenPos next = static_cast<TokenPos>(random() % 10); list.rows() < 700;) {
      const unsigned step = 1U << random() % 10;
      std::vector<TokenPos> more(1 + random() % (seed % 2 == 0 ? 3 : 200));
      for (TokenPos& p : more) {
        p = std::exchange(next, next + 1 + static_cast<TokenPos>(random() % step));
      }
      MustAppend(allocator, more, &list);
      const PositionBytes most =
          PositionList::MostBytesFor(list.rows(), std::int64_t{list.last()} - list.first() + 1);
      ASSERT_LE(list.bytes().live, most.live) << list.rows();
      ASSERT_LE(list.bytes().resident, most.resident) << list.rows();
    }
  }
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

// Any order of appends, drops and trims, in batches that are dense, gapped or far away.
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

      if (turn % 6 == 5 && !expected.empty()) {
        const TokenPos end = expected[random() % expected.size()] + below(2);
        expected.erase(std::ranges::lower_bound(expected, end), expected.end());
        Result<PositionList::Cut> cut = list.PrepareTrim(allocator, end);
        ASSERT_TRUE(cut.ok());
        list.Trim(*std::move(cut));
        next = end + below(step);
      }
      ASSERT_EQ(ReadAll(list), expected) << "turn " << turn;
      const auto at = static_cast<std::size_t>(below(static_cast<int>(expected.size()) + 1));
      TokenPos some[kBlockRows];
      const std::size_t count = std::min<std::size_t>(kBlockRows, expected.size() - at);
      list.Read(static_cast<RowIndex>(at), static_cast<int>(count), some);
      ASSERT_TRUE(std::equal(some, some + count, expected.begin() + std::ptrdiff_t(at)));
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
