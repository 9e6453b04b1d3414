// Cases from the field that concern batches and failures inside one: faults of other systems,
// restated. A batch is one cache per sequence, each of its own length; there is no padding.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

// Sequences of any length, an empty one and one whose window has wrapped, come together in a batch.
TEST(Cases, U80_SequencesOfAnyLengthMakeABatch) {
  LayerSpec layer = MakeLayer(4, 2, 64, 64);
  layer.sliding_window = 32;
  const auto pipeline = MustParse("none | kv=int8 | tail=3");
  const std::int64_t lengths[] = {0, 5, 200};
  const auto sequence = [&](int s) {
    Cache cache = *Cache::Create(pipeline, {layer}, {});
    if (lengths[s] > 0) MustAppend(cache, 0, MakePrompt(layer, lengths[s], s + 1), 64);
    EXPECT_TRUE(cache.FinishPrefill().ok());
    return cache;
  };
  const auto step = [&](Cache& cache, int s, std::int64_t i) {
    const auto position = static_cast<TokenPos>(lengths[s] + i);
    MustAppend(cache, 0, MakePrompt(layer, 1, 10 * s + i, position), 0, Phase::kDecode);
    return MustAttend(cache, 0, UniformRows(4 * 64, 50 + i), {&position, 1});
  };
  std::vector<Cache> batch;
  for (int s = 0; s < 3; ++s) batch.push_back(sequence(s));
  std::vector<std::vector<Attended>> attended(3);
  for (std::int64_t i = 0; i < 60; ++i) {
    for (int s = 0; s < 3; ++s) attended[s].push_back(step(batch[s], s, i));
  }
  for (int s = 0; s < 3; ++s) {
    Cache alone = sequence(s);
    for (std::int64_t i = 0; i < 60; ++i) {
      const Attended reference = step(alone, s, i);
      ASSERT_EQ(attended[s][i].out, reference.out);
      ASSERT_EQ(attended[s][i].lse, reference.lse);
    }
    EXPECT_EQ(StateOf(batch[s]), StateOf(alone));
  }
}

// 40 tokens of which 32 are encoded and 8 exact: both parts move when sequences are swapped,
// dropped or duplicated.
TEST(Cases, U82_SwapSelectAndDuplicateMoveEncodedAndExactRows) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  for (const std::int64_t rows : {40, 8, 32}) {  // an empty encoded part, and less than a group
    SCOPED_TRACE(rows);
    std::vector<Cache> batch;
    std::vector<std::string> states;
    for (int s = 0; s < 2; ++s) {
      batch.push_back(MustCreate("none | kv=int4(group=32) | tail=8", {layer}));
      MustAppend(batch.back(), 0, MakePrompt(layer, rows, s + 1));
      ASSERT_TRUE(batch.back().FinishPrefill().ok());
      states.push_back(StateOf(batch.back()));
    }
    ASSERT_NE(states[0], states[1]);

    std::swap(batch[0], batch[1]);
    EXPECT_EQ(StateOf(batch[0]), states[1]);
    EXPECT_EQ(StateOf(batch[1]), states[0]);

    batch.erase(batch.begin());  // select the second
    ASSERT_EQ(batch.size(), 1U);
    EXPECT_EQ(StateOf(batch[0]), states[0]);

    batch.push_back(*batch[0].Fork());
    EXPECT_EQ(StateOf(batch[1]), states[0]);
    const auto next = static_cast<TokenPos>(rows);
    MustAppend(batch[1], 0, MakePrompt(layer, 50, 7, next), 1, Phase::kDecode);
    EXPECT_EQ(StateOf(batch[0]), states[0]);  // the beams go apart
    Cache alone = MustCreate("none | kv=int4(group=32) | tail=8", {layer});
    MustAppend(alone, 0, MakePrompt(layer, rows, 1));
    ASSERT_TRUE(alone.FinishPrefill().ok());
    MustAppend(alone, 0, MakePrompt(layer, 50, 7, next), 1, Phase::kDecode);
    EXPECT_EQ(StateOf(batch[1], WithReserve::kNo), StateOf(alone, WithReserve::kNo));
  }
}

// An allocator that answers the n-th request from now with an exception.
class ThrowingAllocator final : public Allocator {
 public:
  void* Allocate(std::size_t bytes) override {
    if (throw_at-- == 0) throw std::bad_alloc();
    return memory_.Allocate(bytes);
  }
  void Deallocate(void* memory, std::size_t bytes) override { memory_.Deallocate(memory, bytes); }
  std::int64_t live_bytes() const { return memory_.live_bytes; }
  int throw_at = -1;

 private:
  TestAllocator memory_;
};

// Whatever call the exception comes in: the state is that from before, no flag is left set, another
// sequence sees nothing, and the same call then works.
TEST(Cases, U83_AnExceptionInTheMiddleOfACallLeavesNoTrace) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  const Prompt prompt = MakePrompt(layer, 300, 1);
  const std::vector<float> queries = UniformRows(4 * 60 * 32, 2);
  ThrowingAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  {
    const char* spec = "snapkv(budget=70,window=16) | k=center+turbo4, v=int4 | tail=20";
    Cache cache = MustCreate(spec, {layer}, options);
    Cache other = MustCreate(spec, {layer}, options);
    MustAppend(other, 0, MakePrompt(layer, 90, 3));
    const std::string other_state = StateOf(other);
    int thrown = 0;
    // A decode append may keep room for rows to come.
    const auto every = [&](WithReserve reserve, const std::function<Status()>& call) {
      const std::string before = StateOf(cache, reserve);
      for (int n = 0;; ++n) {
        ASSERT_LT(n, 1000);
        allocator.throw_at = n;
        const Status status = call();
        allocator.throw_at = -1;
        ASSERT_EQ(StateOf(other), other_state);
        ASSERT_EQ(cache.Report().resident_bytes() + other.Report().resident_bytes(),
                  allocator.live_bytes());
        if (status.ok()) return;
        ++thrown;
        ASSERT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.message();
        ASSERT_EQ(StateOf(cache, reserve), before) << n;
      }
    };
    const auto append = [&](Phase phase, std::int64_t first, std::int64_t count) {
      every(phase == Phase::kPrefill ? WithReserve::kYes : WithReserve::kNo,
            [&, phase, first, count] { return AppendRows(cache, 0, phase, prompt, first, count); });
    };
    append(Phase::kPrefill, 0, 100);
    append(Phase::kPrefill, 100, 100);
    every(WithReserve::kYes, [&] {
      return cache.Observe(0, Positions(140, 60), HeadsView::HeadMajor(queries.data(), 4, 60, 32));
    });
    every(WithReserve::kYes, [&] { return cache.FinishPrefill(); });
    for (const std::int64_t first : {200, 201, 202, 250}) append(Phase::kDecode, first, 1);
    every(WithReserve::kYes, [&]() -> Status {
      Result<Cache> copy = cache.Fork();
      return copy.ok() ? Status::Ok() : copy.TakeStatus();
    });
    every(WithReserve::kYes, [&]() -> Status {
      Result<std::int64_t> gone = cache.TrimToPosition(210);
      return gone.ok() ? Status::Ok() : gone.TakeStatus();
    });
    append(Phase::kDecode, 260, 40);
    EXPECT_GT(thrown, 20);
    EXPECT_EQ(cache.next_position(), 300);
    MustAttend(cache, 0, UniformRows(4 * 32, 4), Positions(300, 1));
  }
  EXPECT_EQ(allocator.live_bytes(), 0);
}

// A sequence does not know who shares its batch (U79, U81): codes and outputs are those of a run
// alone, whatever other sequences do or when they leave.
TEST(Cases, U79_U81_SequencesOfABatchAreIndependent) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const auto run = [&](Cache& cache, int sequence, std::int64_t rows, TokenPos first, Phase phase) {
    MustAppend(cache, 0, MakePrompt(layer, rows, static_cast<std::uint64_t>(sequence) + 20, first),
               0, phase);
  };
  const auto pipeline = MustParse("random(budget=50) | kv=int4 | tail=7");
  const auto sequence = [&](int s) {
    Cache cache = *Cache::Create(pipeline, {layer}, {});
    run(cache, s, 60 + 10 * s, 0, Phase::kPrefill);
    return cache;
  };
  for (const int size : {1, 2, 5}) {
    std::vector<Cache> batch;
    for (int s = 0; s < size; ++s) batch.push_back(sequence(s));
    for (Cache& cache : batch) ASSERT_TRUE(cache.FinishPrefill().ok());
    if (size > 1) batch.pop_back();  // the longest leaves
    for (int s = 0; s < std::ssize(batch); ++s) {
      run(batch[s], s, 1, 60 + 10 * s, Phase::kDecode);
    }
    for (int s = 0; s < std::ssize(batch); ++s) {
      Cache alone = sequence(s);
      ASSERT_TRUE(alone.FinishPrefill().ok());
      run(alone, s, 1, 60 + 10 * s, Phase::kDecode);
      EXPECT_EQ(StateOf(batch[s]), StateOf(alone));
    }
  }
}

// Sixteen sequences in sixteen threads see only their own values; readers share a cache.
TEST(Cases, U84_ConcurrentSequencesDoNotLeak) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const auto pipeline = MustParse("random(budget=40) | kv=int8 | tail=3");
  std::atomic<int> wrong{0};
  const auto expect_constant = [&](const Cache& cache, float value, TokenPos position) {
    AttendScratch scratch;
    const std::vector<float> queries = UniformRows(4 * 64, 50);
    std::vector<float> out(4 * 64);
    const bool ok = cache
                        .Attend(0, std::vector<TokenPos>{position},
                                HeadsView::HeadMajor(queries.data(), 4, 1, 64), {}, scratch,
                                out.data(), nullptr)
                        .ok();
    wrong += !ok;
    for (const float x : out) wrong += std::fabs(x - value) > value / 100;
  };
  const auto live = [&](int sequence) {
    const float value = 1.0F + static_cast<float>(sequence);
    Cache cache = *Cache::Create(pipeline, {layer}, {});
    Prompt prompt = MakePrompt(layer, 150, static_cast<std::uint64_t>(sequence));
    std::fill(prompt.values.begin(), prompt.values.end(), value);
    wrong += !AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 100).ok();
    wrong += !cache.FinishPrefill().ok();
    for (std::int64_t step = 100; step < 150; ++step) {
      wrong += !AppendRows(cache, 0, Phase::kDecode, prompt, step, 1).ok();
      expect_constant(cache, value, static_cast<TokenPos>(step));
    }
    std::vector<std::thread> readers;
    for (int r = 0; r < 4; ++r) readers.emplace_back([&] { expect_constant(cache, value, 149); });
    for (std::thread& reader : readers) reader.join();
  };
  std::vector<std::thread> threads;
  for (int s = 0; s < 16; ++s) threads.emplace_back(live, s);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kvsieve::cache_test
