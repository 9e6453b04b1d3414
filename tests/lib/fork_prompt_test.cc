// Forks of a prompt that is not finished: its rows are there once, and each fork goes on with a
// question of its own, which then says what is evicted.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::cache_test {
namespace {

using state_test::ExpectSame;

constexpr std::int64_t kRowBytes = 2 * (32 + 48) * 4;  // of two KV heads, f32
constexpr TokenPos kPrefix = 300;

class PromptFork : public ::testing::Test {
 protected:
  // 200 rows in a page of 256, whose room the next 100 begin with.
  Cache Prefix(const char* spec, bool counted = true) {
    CacheOptions options;
    if (counted) options.allocator = &allocator_;
    Cache cache = MustCreate(spec, {layer_}, options);
    const Prompt prompt = MakePrompt(layer_, kPrefix, 1);
    EXPECT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 200).ok());
    EXPECT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 200, 100).ok());
    return cache;
  }
  Cache MustFork(const Cache& cache) {
    Result<Cache> fork = cache.Fork();
    EXPECT_TRUE(fork.ok()) << fork.message();
    return *std::move(fork);
  }
  Status Ask(Cache& cache, std::uint64_t seed, std::int64_t rows) {
    const Prompt question = MakePrompt(layer_, rows, seed, cache.next_position());
    return AppendRows(cache, 0, Phase::kPrefill, question, 0, rows);
  }
  void Finish(Cache& cache, std::uint64_t seed) {
    const std::vector<float> queries = UniformRows(4 * 64 * 32, seed);
    const TokenPos first = cache.next_position() - 64;
    ASSERT_TRUE(
        cache.Observe(0, Positions(first, 64), HeadsView::HeadMajor(queries.data(), 4, 64, 32))
            .ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
  }
  void ExpectCountedOnce(const Cache& a, const Cache& b) {
    const Cache* const both[] = {&a, &b};
    const ByteReport total = TotalReport(both);
    EXPECT_EQ(total.resident_bytes(), allocator_.live_bytes);
    EXPECT_EQ(total.kept_bytes(), total.key_kept_bytes + total.value_kept_bytes);
    EXPECT_EQ(total.rows_kept, a.Report().rows_kept + b.Report().rows_kept);
  }

  const LayerSpec layer_ = MakeLayer(4, 2, 32, 48);
  TestAllocator allocator_;
};

// 256 rows of the prefix fill a page; the 44 others lie in one of 256, which each has for itself.
TEST_F(PromptFork, SharesFullPages) {
  Cache cache = Prefix("none | kv=int8");
  const std::int64_t alone = allocator_.live_bytes;
  const Cache fork = MustFork(cache);
  EXPECT_EQ(fork.Report().shared_bytes, 256 * kRowBytes);
  EXPECT_EQ(allocator_.live_bytes, 2 * alone - 256 * kRowBytes);
  ExpectCountedOnce(cache, fork);
  cache.Clear();
  EXPECT_EQ(fork.Report().shared_bytes, 0);
  EXPECT_EQ(allocator_.live_bytes, alone);
}

TEST_F(PromptFork, EachGoesOnWithAQuestionOfItsOwn) {
  for (const char* spec : {"snapkv(budget=90,window=16) | k=center+turbo4, v=int4 | tail=20",
                           "best(8x)", "recency(budget=100) | kv=int8 | schedule=per_chunk"}) {
    SCOPED_TRACE(spec);
    Cache first = Prefix(spec);
    Cache second = MustFork(first);
    for (const auto& [cache, seed] : {std::pair(&first, 7), std::pair(&second, 8)}) {
      Cache alone = Prefix(spec, false);
      ASSERT_TRUE(Ask(*cache, static_cast<std::uint64_t>(seed), 40).ok());
      ASSERT_TRUE(Ask(alone, static_cast<std::uint64_t>(seed), 40).ok());
      ExpectSame(*cache, alone);
      ExpectCountedOnce(first, second);
      Finish(*cache, static_cast<std::uint64_t>(seed));
      Finish(alone, static_cast<std::uint64_t>(seed));
      ExpectSame(*cache, alone);
      ExpectCountedOnce(first, second);
    }
    EXPECT_NE(StateOf(first), StateOf(second));
  }
}

// Row 150 is in the page that both hold.
TEST_F(PromptFork, ATrimInsideASharedPageWritesNothingAndTheNextRowGoesToAnotherPage) {
  Cache cache = Prefix("none | kv=f16");
  Cache fork = MustFork(cache);
  ASSERT_TRUE(fork.TrimToPosition(150).ok());
  EXPECT_EQ(fork.Report().shared_bytes, 256 * kRowBytes);
  ExpectCountedOnce(cache, fork);
  ExpectCountedOnce(fork, cache);
  ASSERT_TRUE(Ask(fork, 3, 200).ok());
  EXPECT_EQ(fork.Report().shared_bytes, 0);
  ExpectCountedOnce(cache, fork);
  ExpectSame(cache, Prefix("none | kv=f16", false));
}

TEST_F(PromptFork, WithoutMemoryForAPageOfItsOwnNothingChanges) {
  Cache cache = Prefix("none | kv=f16");
  int refused = 0;
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 100);
    Cache fork = MustFork(cache);
    ASSERT_TRUE(fork.TrimToPosition(150).ok());
    const std::string before = StateOf(fork);
    const std::int64_t held = allocator_.live_bytes;
    allocator_.fail_at = n;
    const Status asked = Ask(fork, 3, 200);
    allocator_.fail_at = -1;
    if (asked.ok()) break;
    ++refused;
    EXPECT_EQ(asked.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(StateOf(fork), before) << n;
    EXPECT_EQ(allocator_.live_bytes, held) << n;
    ASSERT_TRUE(Ask(fork, 3, 200).ok());
    ExpectCountedOnce(cache, fork);
  }
  EXPECT_GE(refused, 4);  // K and V of the page that was shared, and of the next
}

}  // namespace
}  // namespace kvsieve::cache_test
