// Refused memory: an error, and nothing has changed.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::FaultCase;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::TestAllocator;
using cache_test::WithReserve;

// Positions 10, 12 take a bitmap of one byte; when 10 leaves the tail, 12 and 13 are a run, which
// takes a whole position.
TEST(CacheFaults, ABitmapThatBecomesARunStaysInItsMemory) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  Cache cache = MustCreate("none | kv=f16 | tail=2", {MakeLayer(1, 1, 1, 1)}, options);
  const std::vector<float> row(2, 1.0F);
  const auto append = [&](Phase phase, const std::vector<TokenPos>& positions) {
    const auto rows = static_cast<std::int64_t>(positions.size());
    const HeadsView view = HeadsView::HeadMajor(row.data(), 1, rows, 1);
    return cache.Append(0, phase, view, view, positions);
  };
  ASSERT_TRUE(append(Phase::kPrefill, {10, 12}).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  ASSERT_TRUE(append(Phase::kDecode, {13}).ok());
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
}

// Runs `call` with the n-th request of memory refused, for every n, then with memory: each failure
// leaves everything as it was, and the call works in the end. Only a decode append may keep room
// for later rows.
void ExpectEveryRefusalHarmless(TestAllocator& allocator, Cache& cache, WithReserve reserve,
                                const std::function<Status()>& call) {
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 1000);
    const std::string before = StateOf(cache, reserve);
    const std::int64_t scratch_before = cache.Report().scratch_peak_bytes;
    allocator.fail_at = n;
    const Status status = call();
    const bool refused = allocator.refusals > 0;
    allocator.refusals = 0;
    allocator.fail_at = -1;
    EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes) << "refusal " << n;
    if (status.ok()) {
      ASSERT_FALSE(refused) << "a refusal was swallowed";
      return;
    }
    ASSERT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.message();
    EXPECT_NE(status.message().find("bytes"), std::string::npos) << status.message();
    ASSERT_EQ(StateOf(cache, reserve), before) << "refusal " << n;
    ASSERT_EQ(cache.Report().scratch_peak_bytes, scratch_before) << "refusal " << n;
  }
}

class RefusedMemory : public ::testing::TestWithParam<FaultCase> {};

TEST_P(RefusedMemory, U83_LeavesTheCacheAsItWasAndTheCallCanBeRepeated) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  LayerSpec layer = MakeLayer(4, 2, 32, 32);
  layer.sliding_window = GetParam().window;
  const Prompt prompt = MakePrompt(layer, 700, 5);
  const std::vector<float> queries = cache_test::UniformRows(4 * 60 * 32, 6);
  Cache undisturbed = MustCreate(GetParam().spec, {layer, layer});
  Cache cache = MustCreate(GetParam().spec, {layer, layer}, options);
  WithReserve reserve = WithReserve::kYes;
  const auto both = [&](const auto& call) {
    ExpectEveryRefusalHarmless(allocator, cache, reserve, [&] { return call(cache); });
    ASSERT_TRUE(call(undisturbed).ok());
    ASSERT_EQ(StateOf(cache, WithReserve::kNo), StateOf(undisturbed, WithReserve::kNo));
  };
  for (const int i : {0, 1}) {
    both([&](Cache& c) { return cache_test::AppendRows(c, i, Phase::kPrefill, prompt, 0, 100); });
    both([&](Cache& c) { return cache_test::AppendRows(c, i, Phase::kPrefill, prompt, 100, 300); });
    both([&](Cache& c) { return c.Evict(i); });
    both([&](Cache& c) {
      return c.Observe(i, Positions(340, 60), HeadsView::HeadMajor(queries.data(), 4, 60, 32));
    });
  }
  both([&](Cache& c) { return c.FinishPrefill(); });
  reserve = WithReserve::kNo;
  for (std::int64_t first = 400; first < 690; first += first < 480 ? 1 : 70) {
    const std::int64_t count = first < 480 ? 1 : 70;
    if (first + count > 700) break;
    both([&](Cache& c) {
      return cache_test::AppendRows(c, 1, Phase::kDecode, prompt, first, count);
    });
    both([&](Cache& c) { return c.Evict(1); });
    if (HasFatalFailure()) return;
  }
  cache.Clear();
  EXPECT_EQ(allocator.live_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, RefusedMemory,
    ::testing::Values(FaultCase{"none | kv=f16", 0}, FaultCase{"none | kv=int4 | tail=40", 0},
                      FaultCase{"random(budget=90) | k=center+turbo4, v=turbo3", 0},
                      FaultCase{"snapkv(budget=70,window=16) | kv=int8 | tail=30", 0},
                      FaultCase{"none | kv=int8 | exact_sinks=4, tail=8", 90},
                      FaultCase{"random(budget=90) | kv=int8 | cold(40)={kv=int4} | "
                                "schedule=per_chunk",
                                0},
                      FaultCase{"random(budget=90) | kv=int8 | cold(40)={k=center+int4} | "
                                "schedule=every(30)",
                                0},
                      FaultCase{"key_norm(budget=90) | kv=int8 | cold(40)={k=center+int4} | "
                                "schedule=every(30) | demote=yes",
                                0}));

}  // namespace
}  // namespace kvsieve
