// The process-wide allocator: alignment, zeroed memory, memory that returns to the system.
#include "kvsieve/allocator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

namespace kvsieve {
namespace {

struct Piece {
  std::uint8_t* data;
  std::size_t bytes;
  std::uint8_t mark;
};

Piece Take(std::size_t bytes, std::uint8_t mark) {
  auto* data = static_cast<std::uint8_t*>(DefaultAllocator().Allocate(bytes));
  EXPECT_NE(data, nullptr);
  return {data, bytes, mark};
}

bool IsAll(const Piece& piece, std::uint8_t value) {
  return std::all_of(piece.data, piece.data + piece.bytes,
                     [value](std::uint8_t byte) { return byte == value; });
}

// Resident set of this process.
std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(DefaultAllocator, GivesAlignedZeroedMemoryThatNobodyElseHolds) {
  const unsigned seed = 3;
  std::mt19937 random(seed);
  SCOPED_TRACE("seed 3");
  constexpr std::size_t kSizes[] = {1,     64,    100,    4095,   4096,   4100,
                                    17408, 65536, 262144, 262145, 3000000};
  std::vector<Piece> held;
  for (int turn = 0; turn < 2000; ++turn) {
    if (held.size() > 60 || (!held.empty() && random() % 3 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      ASSERT_TRUE(IsAll(held.back(), held.back().mark)) << "overwritten by another piece";
      DefaultAllocator().Deallocate(held.back().data, held.back().bytes);
      held.pop_back();
      continue;
    }
    const std::size_t bytes = kSizes[random() % std::size(kSizes)];
    const Piece piece = Take(bytes, static_cast<std::uint8_t>(1 + random() % 255));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(piece.data) % kBlockAlignment, 0U);
    ASSERT_TRUE(IsAll(piece, 0)) << bytes << " bytes are not zero";
    std::memset(piece.data, piece.mark, bytes);
    held.push_back(piece);
  }
  for (const Piece& piece : held) DefaultAllocator().Deallocate(piece.data, piece.bytes);
}

TEST(DefaultAllocator, MoreSizesThanItHasClassesForStillWork) {
  std::vector<Piece> held;
  for (std::size_t i = 0; i < 300; ++i) held.push_back(Take(8192 + i * 64, 7));
  for (const Piece& piece : held) {
    EXPECT_TRUE(IsAll(piece, 0));
    std::memset(piece.data, piece.mark, piece.bytes);
  }
  for (const Piece& piece : held) DefaultAllocator().Deallocate(piece.data, piece.bytes);
}

TEST(DefaultAllocator, ReturnsFreedMemoryToTheSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  for (const std::size_t bytes : {std::size_t{17408}, std::size_t{8} << 20}) {
    const std::int64_t before = ResidentBytes();
    constexpr std::int64_t kTotal = std::int64_t{128} << 20;
    std::vector<Piece> held;
    for (std::int64_t taken = 0; taken < kTotal; taken += static_cast<std::int64_t>(bytes)) {
      held.push_back(Take(bytes, 1));
      std::memset(held.back().data, 1, bytes);
    }
    EXPECT_GT(ResidentBytes() - before, kTotal / 10 * 9);
    for (const Piece& piece : held) DefaultAllocator().Deallocate(piece.data, piece.bytes);
    // One slab per size and the heap's own caches may stay.
    EXPECT_LT(ResidentBytes() - before, kTotal / 16) << "pieces of " << bytes;
  }
}

TEST(DefaultAllocator, RefusesWhatTheSystemDoesNotHave) {
  EXPECT_EQ(DefaultAllocator().Allocate(std::size_t{1} << 60), nullptr);
}

TEST(DefaultAllocator, ServesManyThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &wrong] {
      std::vector<Piece> held;
      for (int turn = 0; turn < 2000; ++turn) {
        held.push_back(Take(4096 + static_cast<std::size_t>(turn % 7) * 4096,
                            static_cast<std::uint8_t>(t + 1)));
        wrong += !IsAll(held.back(), 0);
        std::memset(held.back().data, held.back().mark, held.back().bytes);
        if (held.size() < 16) continue;
        for (const Piece& piece : held) {
          wrong += !IsAll(piece, piece.mark);
          DefaultAllocator().Deallocate(piece.data, piece.bytes);
        }
        held.clear();
      }
      for (const Piece& piece : held) DefaultAllocator().Deallocate(piece.data, piece.bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kvsieve
