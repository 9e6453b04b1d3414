// Forks of one prefix written in some threads, while others read the prefix, its layers and heads,
// and the batch comes and goes: for as long as KVS_STRESS_SECONDS says. `./dev stress` runs it for
// a minute, also under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds Duration() {
  const char* seconds = std::getenv("KVS_STRESS_SECONDS");
  return std::chrono::milliseconds(seconds != nullptr ? 1000 * std::atoll(seconds) : 500);
}

std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 32, 32), MakeLayer(2, 1, 64, 32)};
  layers[1].sliding_window = 90;
  return layers;
}

class Stress {
 public:
  Stress() : memory_(DefaultAllocator(), std::int64_t{64} << 20) {
    CacheOptions options;
    options.allocator = &memory_;
    Result<CacheSet> set = CacheSet::Create(
        MustParse("random(budget=250) | k=center+int8, v=int4 | tail=5 | schedule=every(30)"),
        Layers(), options);
    EXPECT_TRUE(set.ok()) << set.message();
    set_.push_back(*std::move(set));
    EXPECT_TRUE(set_[0].Add().ok());
    for (int i = 0; i < 2; ++i) MustAppend(prefix(), i, MakePrompt(Layers()[i], 400, 1));
    EXPECT_TRUE(prefix().FinishPrefill().ok());
    for (int i = 0; i < 2; ++i) expected_.push_back(Attention(prefix(), i));
  }

  void Run() {
    const Clock::time_point end = Clock::now() + Duration();
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 2; ++t) {
      threads.emplace_back([this, t, end] {
        for (std::uint64_t life = 0; Clock::now() < end; ++life) Write(1000 * t + life);
      });
      threads.emplace_back([this, t, end] {
        while (Clock::now() < end) Read(static_cast<int>(t));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong_, 0);
    EXPECT_GT(lives_, 0);
    EXPECT_GT(reads_, 0);
    EXPECT_EQ(set_[0].size(), 1);
    EXPECT_EQ(set_[0].Report().resident_bytes(), memory_.used_bytes());
    std::fprintf(stderr, "%lld lives of forks, %lld reads\n", static_cast<long long>(lives_),
                 static_cast<long long>(reads_));
    set_.clear();
    EXPECT_EQ(memory_.used_bytes(), 0);
  }

 private:
  Cache& prefix() { return set_[0][0]; }

  static Attended Attention(const Cache& cache, int layer) {
    const LayerSpec& spec = cache.layer(layer);
    const std::vector<float> queries = UniformRows(spec.query_heads * 2 * spec.key_dim, 9);
    return MustAttend(cache, layer, queries, Positions(399, 2));
  }

  // The prefix answers the same, whoever goes on from it.
  void Read(int layer) {
    const Attended attended = Attention(prefix(), layer);
    wrong_ +=
        std::memcmp(attended.out.data(), expected_[static_cast<std::size_t>(layer)].out.data(),
                    attended.out.size() * sizeof(float)) != 0;
    for (int head = 0; head < prefix().layer(layer).kv_heads; ++head) {
      wrong_ += GatherHead(prefix(), layer, head).rows() != prefix().rows(layer, head);
    }
    wrong_ += prefix().Report().rows_kept <= 0;
    ++reads_;
  }

  // A fork takes back a part of the prefix, goes on, drafts, evicts, is saved, and goes. Which rows
  // there are is checked by their positions.
  void Write(std::uint64_t seed) {
    Result<Cache> forked = Fork();
    if (!forked.ok()) {
      wrong_ += forked.error().code != ErrorCode::kOutOfMemory;
      return;
    }
    Cache& cache = *forked;
    std::mt19937_64 random(seed);
    wrong_ += !cache
                   .TrimToPosition(static_cast<TokenPos>(300 + random() % 100),
                                   kvsieve::Trim::kAllowInexact)
                   .ok();
    for (int step = 0; step < 40; ++step) {
      const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 9);
      const bool draft = step % 3 == 0;
      const TokenPos next = cache.next_position();
      for (int i = 0; i < 2; ++i) {
        const Prompt prompt = MakePrompt(Layers()[i], rows, random(), next);
        wrong_ +=
            !AppendRows(cache, i, draft ? Phase::kVerify : Phase::kDecode, prompt, 0, rows).ok();
      }
      if (draft) wrong_ += !cache.Accept(rows / 2).ok();
      for (int i = 0; i < 2; ++i) wrong_ += !cache.Evict(i).ok();
    }
    MemorySink sink;
    wrong_ += !cache.Save("stress", sink).ok();
    ++lives_;
  }

  // One at a time: a fork reads its original and asks the same allocator (kvsieve/cache.h).
  Result<Cache> Fork() {
    const std::lock_guard lock(mutex_);
    return prefix().Fork();
  }

  BudgetAllocator memory_;
  std::vector<CacheSet> set_;       // one; goes before its allocator
  std::vector<Attended> expected_;  // per layer
  std::mutex mutex_;
  std::atomic<int> wrong_{0};
  std::atomic<std::int64_t> lives_{0};
  std::atomic<std::int64_t> reads_{0};
};

TEST(Stress, ForksAreWrittenWhileTheirPrefixIsRead) { Stress().Run(); }

}  // namespace
}  // namespace kvsieve::cache_test
