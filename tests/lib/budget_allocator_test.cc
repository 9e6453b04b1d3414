// A budget in bytes: calls that would pass it fail cleanly, and memory that is given back counts.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

constexpr int kRowBytes = 2 * (64 + 48) * 2;  // f16, two heads

LayerSpec Layer() { return MakeLayer(4, 2, 64, 48); }

Cache MustCreateIn(Allocator& memory, const char* spec) {
  CacheOptions options;
  options.allocator = &memory;
  return MustCreate(spec, {Layer()}, options);
}

// docs/reliability.md shows the first lines.
TEST(BudgetAllocator, AppendFailsAtTheBudgetAndATrimMakesRoom) {
  const Prompt prompt = MakePrompt(Layer(), 1000, 1);
  BudgetAllocator memory(DefaultAllocator(), std::int64_t{64} << 10);
  CacheOptions options;
  options.allocator = &memory;  // caches that share it share the budget
  Cache cache = MustCreate("none | kv=f16 | tail=8", {Layer()}, options);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  std::int64_t row = 0;
  Status status;
  while (row < 1000 && status.ok()) {
    const std::string before = StateOf(cache, WithReserve::kNo);
    status = AppendRows(cache, 0, Phase::kDecode, prompt, row, 1);
    ASSERT_LE(memory.used_bytes(), memory.limit_bytes());
    ASSERT_EQ(memory.used_bytes(), cache.Report().resident_bytes());
    if (status.ok()) {
      ++row;
    } else {
      EXPECT_EQ(StateOf(cache, WithReserve::kNo), before);
    }
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  // Rows, and what is kept beside them: positions, the exact tail in f32, and a panel of reserve.
  EXPECT_LE(row * kRowBytes, memory.limit_bytes());
  EXPECT_GE(row * kRowBytes, memory.limit_bytes() / 2);
  ASSERT_TRUE(cache.TrimToPosition(static_cast<TokenPos>(row / 4)).ok());
  EXPECT_LE(memory.used_bytes(), memory.limit_bytes() / 2);
  EXPECT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, row / 4, row / 4).ok());
  cache.Clear();
  EXPECT_EQ(memory.used_bytes(), 0);
}

// Rows that are evicted give their memory back: a budget that holds some hundred rows lasts for
// thousands of tokens.
TEST(BudgetAllocator, EvictionGivesMemoryBack) {
  for (const char* spec : {"recency(budget=100) | kv=f16 | tail=8 | schedule=every(32)",
                           "random(budget=100) | kv=int8 | cold(40)={kv=int4} | exact_sinks=4 | "
                           "schedule=every(32)"}) {
    SCOPED_TRACE(spec);
    // Rows before and after an eviction are both there while it runs; a bit for bookkeeping.
    BudgetAllocator memory(DefaultAllocator(), std::int64_t{400} * kRowBytes);
    Cache cache = MustCreateIn(memory, spec);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    for (TokenPos first = 0; first < 8000; first += 10) {
      const Prompt rows = MakePrompt(Layer(), 10, static_cast<std::uint64_t>(first), first);
      const Status added = AppendRows(cache, 0, Phase::kDecode, rows, 0, 10);
      ASSERT_TRUE(added.ok()) << "token " << first << ": " << added.message();
      const Status evicted = cache.Evict(0);
      ASSERT_TRUE(evicted.ok()) << "token " << first << ": " << evicted.message();
      ASSERT_EQ(memory.used_bytes(), cache.Report().resident_bytes());
    }
    cache.Clear();
    EXPECT_EQ(memory.used_bytes(), 0);
  }
}

// While the prompt arrives its rows are there as they came; what is left afterwards is far smaller.
TEST(BudgetAllocator, FinishingThePromptGivesItsMemoryBack) {
  BudgetAllocator memory(DefaultAllocator(), std::int64_t{1} << 30);
  Cache cache = MustCreateIn(memory, "random(budget=10%) | kv=int4");
  MustAppend(cache, 0, MakePrompt(Layer(), 2000, 3));
  const std::int64_t staged = memory.used_bytes();
  EXPECT_GE(staged, 2000 * kRowBytes);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  // A tenth of the rows in a seventh of f32's bytes, in whole panels.
  EXPECT_LE(memory.used_bytes(), staged / 40);
  EXPECT_EQ(memory.used_bytes(), cache.Report().resident_bytes());
}

TEST(BudgetAllocator, ABatchSharesOneBudgetAndCountsSharedBlocksOnce) {
  BudgetAllocator memory(DefaultAllocator(), std::int64_t{1000} * kRowBytes);
  CacheOptions options;
  options.allocator = &memory;
  Result<CacheSet> batch = CacheSet::Create(MustParse("none | kv=f16"), {Layer()}, options);
  ASSERT_TRUE(batch.ok()) << batch.message();
  ASSERT_TRUE(batch->Add().ok());
  const Prompt prompt = MakePrompt(Layer(), 200, 4);
  MustAppend((*batch)[0], 0, prompt);
  ASSERT_TRUE((*batch)[0].FinishPrefill().ok());
  int forks = 0;
  while (batch->AddFork(0).ok()) {  // 192 rows are shared, 8 and a panel are not
    ASSERT_LT(++forks, 1000);
    ASSERT_EQ(memory.used_bytes(), batch->Report().resident_bytes());
  }
  EXPECT_GT(forks, 8);
  EXPECT_EQ(batch->size(), 1 + forks);
  EXPECT_EQ(memory.used_bytes(), batch->Report().resident_bytes());
  ASSERT_TRUE(batch->Remove(1).ok());
  EXPECT_TRUE(batch->AddFork(0).ok());
}

TEST(BudgetAllocator, RefusesWhatItsSourceRefusesAndCountsNothing) {
  TestAllocator source;
  BudgetAllocator memory(source, 1000);
  source.fail_at = 0;
  EXPECT_EQ(memory.Allocate(100), nullptr);
  EXPECT_EQ(memory.used_bytes(), 0);
  source.fail_at = -1;
  EXPECT_EQ(memory.Allocate(1001), nullptr);
  EXPECT_EQ(memory.Allocate(SIZE_MAX), nullptr);
  void* all = memory.Allocate(1000);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(memory.Allocate(1), nullptr);
  memory.Deallocate(all, 1000);
  EXPECT_EQ(memory.used_bytes(), 0);
}

TEST(BudgetAllocator, ThreadsTogetherStayBelowTheLimit) {
  BudgetAllocator memory(DefaultAllocator(), 8000);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, &wrong] {
      for (int turn = 0; turn < 5000; ++turn) {
        void* first = memory.Allocate(3000);
        void* second = memory.Allocate(1000);
        wrong += memory.used_bytes() > memory.limit_bytes();
        if (first != nullptr) memory.Deallocate(first, 3000);
        if (second != nullptr) memory.Deallocate(second, 1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(memory.used_bytes(), 0);
}

}  // namespace
}  // namespace kvsieve::cache_test
