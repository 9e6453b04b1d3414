// Forks of a cache: equal at first, on their own afterwards, with one copy of what none of them
// writes again.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/lib/state_fixture.h"

namespace kvsieve::cache_test {
namespace {

using state_test::ExpectSame;
using state_test::kStages;
using state_test::Life;
using state_test::Stage;

Cache MustFork(const Cache& cache) {
  Result<Cache> fork = cache.Fork();
  EXPECT_TRUE(fork.ok()) << fork.message();
  return *std::move(fork);
}

// Rows at [first, first + count); another seed, other rows.
Status AppendSeeded(Cache& cache, std::uint64_t seed, TokenPos first, std::int64_t count) {
  const Prompt rows = MakePrompt(cache.layer(0), count, seed, first);
  return AppendRows(cache, 0, Phase::kDecode, rows, 0, count);
}

// -- content ------------------------------------------------------------------------------------

class ForkContent : public ::testing::TestWithParam<const char*> {
 protected:
  // The second layer slides.
  static Life MakeLife() {
    Life life;
    life.spec = GetParam();
    life.layers = {MakeLayer(4, 2, 32, 32), MakeLayer(2, 1, 32, 64)};
    life.layers[1].sliding_window = 100;
    return life;
  }
};

TEST_P(ForkContent, IsEqualAndGoesOnByItself) {
  const Life life = MakeLife();
  for (const Stage stage : kStages) {
    SCOPED_TRACE(static_cast<int>(stage));
    Cache cache = life.At(stage);
    Cache fork = MustFork(cache);
    ExpectSame(fork, cache);
    Cache alone = life.At(stage);
    life.GoOn(fork, stage);
    ExpectSame(cache, alone);
    life.GoOn(alone, stage);
    ExpectSame(fork, alone);
    life.GoOn(cache, stage);
    ExpectSame(cache, alone);
    ExpectSame(fork, alone);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, ForkContent,
    ::testing::Values("none | kv=f16",
                      "snapkv(budget=100,window=16) | k=center+turbo4, v=int4 | tail=20",
                      "snapkv(budget=90,window=16) | kv=int8 | exact_sinks=4 | schedule=per_chunk",
                      "random(budget=150) | kv=int8 | cold(40)={k=center+int4} | tail=3 | "
                      "schedule=every(7)",
                      "random(budget=150) | k=center+int8, v=int4 | "
                      "cold(60)={k=center+turbo3, v=int4} | schedule=every(7), demote=yes",
                      "none | k=channel(bits=2), v=int4 | tail=40"));

TEST(Fork, SharesRowsOfAnMlaLayer) {
  Life life;
  life.spec = "random(budget=150) | kv=turbo4 | tail=3 | schedule=every(7)";
  life.layers = {MakeLayer(4, 1, 64, 48)};
  life.layers[0].value_is_key_prefix = true;
  Cache cache = life.At(Stage::kDecoded);
  Cache fork = MustFork(cache);
  EXPECT_GT(fork.Report().shared_bytes, 0);
  Cache alone = life.At(Stage::kDecoded);
  life.GoOn(fork, Stage::kDecoded);
  ExpectSame(cache, alone);
  life.GoOn(alone, Stage::kDecoded);
  ExpectSame(fork, alone);
}

TEST(Fork, OutlivesItsOriginal) {
  Life life;
  life.spec = "random(budget=150) | k=center+turbo4, v=int4 | tail=20 | schedule=every(7)";
  Cache fork = life.Empty();
  {
    const Cache cache = life.At(Stage::kDecoded);
    fork = MustFork(cache);
  }
  ExpectSame(fork, life.At(Stage::kDecoded));
}

// -- memory -------------------------------------------------------------------------------------

// Two holders alone: what both hold is there once.
void ExpectCountedOnce(const TestAllocator& allocator, const Cache& a, const Cache& b) {
  const ByteReport of_a = a.Report();
  const ByteReport of_b = b.Report();
  ASSERT_EQ(of_a.shared_bytes, of_b.shared_bytes);
  ASSERT_EQ(of_a.resident_bytes() + of_b.resident_bytes() - of_a.shared_bytes,
            allocator.live_bytes);
}

TEST(Fork, HoldsFullBlocksAndStatisticsTogetherAndTheRestTwice) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const LayerSpec layer = MakeLayer(4, 2, 64, 48);
  Cache cache = MustCreate("none | k=center+int8, v=int8 | tail=20", {layer}, options);
  MustAppend(cache, 0, MakePrompt(layer, 300, 1));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.Report().shared_bytes, 0);
  const std::int64_t alone = allocator.live_bytes;
  Cache fork = MustFork(cache);
  // A head: 4 exact sinks, 276 encoded rows in 4 full blocks and an open one, 20 exact rows. An
  // int8 row takes its codes and a scale of 2 bytes; the mean of K is f32.
  const std::int64_t shared = 2 * (4 * 64 * (64 + 2 + 48 + 2) + 64 * 4);
  EXPECT_EQ(cache.Report().shared_bytes, shared);
  EXPECT_EQ(fork.Report().resident_bytes(), alone);
  EXPECT_EQ(allocator.live_bytes, 2 * alone - shared);
  const LayerReport report = fork.ReportLayer(0);
  EXPECT_EQ(report.heads[0].shared_bytes + report.heads[1].shared_bytes, shared);
  EXPECT_EQ(report.stores[1].bytes.shared_bytes, shared);

  Cache third = MustFork(fork);
  EXPECT_EQ(allocator.live_bytes, 3 * alone - 2 * shared);
  EXPECT_EQ(third.Report().shared_bytes, shared);
  cache.Clear();
  EXPECT_EQ(allocator.live_bytes, 2 * alone - shared);
  EXPECT_EQ(fork.Report().shared_bytes, shared);
  third.Clear();
  EXPECT_EQ(allocator.live_bytes, alone);
  EXPECT_EQ(fork.Report().shared_bytes, 0);
  EXPECT_EQ(fork.Report().resident_bytes(), alone);
}

// Rows 128 to 191 are a full block, which both hold; one goes back to 150 and on from there.
TEST(Fork, ATrimInsideASharedBlockWritesNothingAndTheNextRowGoesToAnotherBlock) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  const std::int64_t block_bytes = 64 * (32 + 32) * 2;
  Cache cache = MustCreate("none | kv=f16", {layer}, options);
  MustAppend(cache, 0, MakePrompt(layer, 200, 1));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  Cache fork = MustFork(cache);
  const std::string before = StateOf(cache);
  ASSERT_TRUE(fork.TrimToPosition(150).ok());
  EXPECT_EQ(fork.Report().shared_bytes, 3 * block_bytes);
  ExpectCountedOnce(allocator, cache, fork);
  ASSERT_TRUE(AppendSeeded(fork, 2, 150, 1).ok());
  EXPECT_EQ(fork.Report().shared_bytes, 2 * block_bytes);
  ExpectCountedOnce(allocator, cache, fork);
  ASSERT_TRUE(AppendSeeded(fork, 3, 151, 60).ok());
  EXPECT_EQ(StateOf(cache), before);

  Cache alone = MustCreate("none | kv=f16", {layer});
  MustAppend(alone, 0, MakePrompt(layer, 200, 1));
  ASSERT_TRUE(alone.FinishPrefill().ok());
  ASSERT_TRUE(alone.TrimToPosition(150).ok());
  ASSERT_TRUE(AppendSeeded(alone, 2, 150, 1).ok());
  ASSERT_TRUE(AppendSeeded(alone, 3, 151, 60).ok());
  ExpectSame(fork, alone);

  // The block has one holder left, who writes it where it is.
  ASSERT_TRUE(cache.TrimToPosition(150).ok());
  const std::int64_t live = allocator.live_bytes;
  ASSERT_TRUE(AppendSeeded(cache, 4, 150, 42).ok());
  EXPECT_EQ(allocator.live_bytes, live);
}

// -- refused memory -----------------------------------------------------------------------------

class ForkFaults : public ::testing::TestWithParam<FaultCase> {
 protected:
  // Runs `call`, a write of `writer`, with the n-th request refused, for every n, then with memory.
  void ExpectEveryRefusalHarmless(Cache& writer, const std::function<Status()>& call) {
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      const std::string before = StateOf(writer, WithReserve::kNo);
      const Cache& other = &writer == &*cache_ ? *fork_ : *cache_;
      const std::string of_other = StateOf(other);
      allocator_.fail_at = n;
      const Status status = call();
      allocator_.fail_at = -1;
      ExpectCountedOnce(allocator_, writer, other);
      ASSERT_EQ(StateOf(other), of_other) << "refusal " << n;
      if (status.ok()) return;
      ++refused_;
      ASSERT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.message();
      ASSERT_EQ(StateOf(writer, WithReserve::kNo), before) << "refusal " << n;
    }
  }

  // Back into the shared rows, on from there, and evicted: first the fork, then the original.
  void WriteBoth() {
    for (Cache* writer : {&*fork_, &*cache_}) {
      const TokenPos next = writer->next_position();
      const TokenPos back = std::max<TokenPos>(0, next - 100);
      const auto every = [&](const std::function<Status()>& call) {
        ExpectEveryRefusalHarmless(*writer, call);
      };
      every([&] { return AppendSeeded(*writer, 1, next, 3); });
      every([&] {
        Result<std::int64_t> gone = writer->TrimToPosition(back, Trim::kAllowInexact);
        return gone.ok() ? Status::Ok() : gone.TakeStatus();
      });
      for (TokenPos step = 0; step < 12; ++step) {
        every([&] { return AppendSeeded(*writer, 2, back + step, 1); });
      }
      every([&] { return AppendSeeded(*writer, 3, back + 12, 100); });
      every([&] { return writer->Evict(0); });
    }
  }

  TestAllocator allocator_;
  std::optional<Cache> cache_, fork_;
  int refused_ = 0;
};

TEST_P(ForkFaults, LeaveBothAsTheyWere) {
  Life life;
  life.spec = GetParam().spec;
  life.layers[0].sliding_window = GetParam().window;
  life.options.allocator = &allocator_;
  for (const Stage stage : kStages) {
    SCOPED_TRACE(static_cast<int>(stage));
    cache_ = life.At(stage);
    const std::string before = StateOf(*cache_);
    const std::int64_t held = allocator_.live_bytes;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      allocator_.fail_at = n;
      Result<Cache> fork = cache_->Fork();
      allocator_.fail_at = -1;
      ASSERT_EQ(StateOf(*cache_), before) << n;
      if (fork.ok()) {
        fork_ = *std::move(fork);
        break;
      }
      ++refused_;
      ASSERT_EQ(fork.error().code, ErrorCode::kOutOfMemory);
      ASSERT_EQ(allocator_.live_bytes, held) << n;
      ASSERT_EQ(cache_->Report().shared_bytes, 0) << n;
    }
    ExpectCountedOnce(allocator_, *cache_, *fork_);
    if (stage >= Stage::kFinished) WriteBoth();
    if (HasFatalFailure()) return;
    cache_.reset();
    fork_.reset();
    ASSERT_EQ(allocator_.live_bytes, 0);
  }
  EXPECT_GT(refused_, 30);
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, ForkFaults,
    ::testing::Values(FaultCase{"none | kv=f16", 0}, FaultCase{"none | kv=int8 | tail=9", 90},
                      FaultCase{"random(budget=150) | k=center+turbo4, v=int4 | tail=10 | "
                                "schedule=every(5)",
                                0},
                      FaultCase{"none | k=channel(bits=2), v=int4 | tail=40", 0}));

// -- threads ------------------------------------------------------------------------------------

// One row on, read by the step's attention.
void DecodeStep(Cache& cache, std::uint64_t seed, AttendScratch& scratch) {
  const TokenPos position = cache.next_position();
  const std::vector<float> queries = UniformRows(4 * 32, seed);
  std::vector<float> out(4 * 32);
  ASSERT_TRUE(AppendSeeded(cache, seed, position, 1).ok());
  ASSERT_TRUE(cache
                  .Attend(0, {&position, 1}, HeadsView::HeadMajor(queries.data(), 4, 1, 32), {},
                          scratch, out.data(), nullptr)
                  .ok());
  ASSERT_TRUE(cache.Evict(0).ok());
}

// Back through all rows, with a step behind each trim: whoever comes last to a block has it alone
// and writes it in place, others copy what they keep. Then on, each time in a fork of the last.
void GoThroughLife(Cache& cache, std::uint64_t seed) {
  AttendScratch scratch;
  for (TokenPos end = 390; end > 0; end -= 13) {
    ASSERT_TRUE(cache.TrimToPosition(end, Trim::kAllowInexact).ok());
    DecodeStep(cache, ++seed, scratch);
  }
  for (int round = 0; round < 5; ++round) {
    for (int step = 0; step < 100; ++step) DecodeStep(cache, ++seed, scratch);
    cache = MustFork(cache);
    const TokenPos back = cache.next_position() - 40;
    ASSERT_TRUE(cache.TrimToPosition(back, Trim::kAllowInexact).ok());
  }
}

TEST(Fork, ThreadsWriteTheirOwnForksAtOnce) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  for (const char* spec :
       {"none | k=center+int8, v=int4",
        "random(budget=250) | k=center+int8, v=int4 | tail=5 | schedule=every(30)"}) {
    SCOPED_TRACE(spec);
    const auto make = [&] {
      Cache cache = MustCreate(spec, {layer});
      MustAppend(cache, 0, MakePrompt(layer, 400, 1));
      EXPECT_TRUE(cache.FinishPrefill().ok());
      return cache;
    };
    std::vector<Cache> forks;
    forks.push_back(make());
    for (int i = 0; i < 2; ++i) forks.push_back(MustFork(forks[0]));
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 3; ++i) {
      threads.emplace_back([&forks, i] { GoThroughLife(forks[i], 1000 * i); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::uint64_t i = 0; i < 3; ++i) {
      Cache alone = make();
      GoThroughLife(alone, 1000 * i);
      ExpectSame(forks[i], alone);
    }
  }
}

}  // namespace
}  // namespace kvsieve::cache_test
