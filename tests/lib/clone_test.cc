// A copy of a cache: equal at first, on its own afterwards.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

LayerSpec Layer() { return MakeLayer(4, 2, 64, 48); }

void AppendObserved(Cache& cache, const Prompt& prompt, std::int64_t first, std::int64_t count) {
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
  const std::vector<float> queries = UniformRows(4 * count * 64, static_cast<std::uint64_t>(first));
  ASSERT_TRUE(cache
                  .Observe(0, prompt.PositionView(first, count),
                           HeadsView::HeadMajor(queries.data(), 4, count, 64))
                  .ok());
}

// Both go on with the same calls and stay equal; then one goes on alone.
void ExpectEqualAndIndependent(Cache& cache, Cache& copy, Phase phase) {
  ASSERT_EQ(StateOf(copy), StateOf(cache));
  for (Cache* c : {&cache, &copy}) {
    if (phase == Phase::kPrefill) {
      AppendObserved(*c, MakePrompt(Layer(), 5, 3, 300), 0, 5);  // part of the window is older
      ASSERT_TRUE(c->FinishPrefill().ok());
    }
    MustAppend(*c, 0, MakePrompt(Layer(), 200, 4, 305), 30, Phase::kDecode);
  }
  ASSERT_EQ(StateOf(copy), StateOf(cache));
  const std::string before = StateOf(cache);
  MustAppend(copy, 0, MakePrompt(Layer(), 80, 5, 600), 7, Phase::kDecode);
  EXPECT_EQ(StateOf(cache), before);
  EXPECT_NE(StateOf(copy), before);
}

constexpr const char* kSpecs[] = {
    "none | kv=f16", "snapkv(budget=100,window=16) | k=center+turbo4, v=int4 | tail=20",
    "snapkv(budget=90,window=16) | kv=int8 | exact_sinks=4 | schedule=per_chunk"};

TEST(Clone, IsEqualAndIndependent) {
  const Prompt prompt = MakePrompt(Layer(), 300, 1);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    for (const bool finished : {false, true}) {
      SCOPED_TRACE(finished);
      Cache cache = MustCreate(spec, {Layer()});
      AppendObserved(cache, prompt, 0, 250);
      ASSERT_TRUE(cache.Evict(0).ok());
      for (std::int64_t first = 250; first < 300; first += 10) {
        AppendObserved(cache, prompt, first, 10);
      }
      if (finished) {
        ASSERT_TRUE(cache.FinishPrefill().ok());
      }
      Result<Cache> copy = cache.Clone();
      ASSERT_TRUE(copy.ok()) << copy.message();
      ExpectEqualAndIndependent(cache, *copy, finished ? Phase::kDecode : Phase::kPrefill);
    }
  }
}

TEST(Clone, OutlivesItsOriginal) {
  Cache copy = MustCreate("none | kv=int8", {Layer()});
  std::string state;
  {
    Cache cache = MustCreate(kSpecs[1], {Layer()});
    AppendObserved(cache, MakePrompt(Layer(), 300, 6), 0, 300);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    copy = *cache.Clone();
    state = StateOf(cache);
  }
  EXPECT_EQ(StateOf(copy), state);
  MustAttend(copy, 0, UniformRows(4 * 64, 7), Positions(300, 1));
}

TEST(Clone, RefusedMemoryLeavesNothingBehind) {
  const Prompt prompt = MakePrompt(Layer(), 300, 8);
  for (const bool finished : {false, true}) {
    TestAllocator allocator;
    CacheOptions options;
    options.allocator = &allocator;
    Cache cache = MustCreate(kSpecs[1], {Layer()}, options);
    AppendObserved(cache, prompt, 0, 300);
    if (finished) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
    }
    const std::string before = StateOf(cache);
    const std::int64_t held = allocator.live_bytes;
    int refused = 0;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      allocator.fail_at = n;
      const Result<Cache> copy = cache.Clone();
      allocator.fail_at = -1;
      if (copy.ok()) {
        EXPECT_EQ(allocator.live_bytes, 2 * held);
        break;
      }
      ++refused;
      EXPECT_EQ(copy.error().code, ErrorCode::kOutOfMemory);
      EXPECT_EQ(allocator.live_bytes, held);
      EXPECT_EQ(StateOf(cache), before);
    }
    EXPECT_GT(refused, 3);
  }
}

}  // namespace
}  // namespace kvsieve::cache_test
