// The heap refuses, at every request of every call: bookkeeping lives in standard containers, which
// throw. Row memory that an Allocator refuses is in refused_memory_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/lib/cache_fixture.h"

namespace {

enum class Refuse { kNothing, kOneRequest, kAllFromOneOn };

// One thread.
Refuse refuse = Refuse::kNothing;
int fail_at = -1;  // requests until one is refused; below 0 none is
int refusals = 0;
std::int64_t live = 0;      // blocks not given back yet
std::int64_t requests = 0;  // ever

bool Refused() {
  if (fail_at < 0) return false;
  if (fail_at > 0) {
    --fail_at;
    return false;
  }
  if (refuse == Refuse::kOneRequest) fail_at = -1;
  ++refusals;
  return true;
}

}  // namespace

// Not inlined: GCC would see memory of one function go to the other's free.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = Refused() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  ++live;
  ++requests;
  return memory;
}
// What std::stable_sort asks for and does without.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(bytes);
  live += memory != nullptr;
  ++requests;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  live -= memory != nullptr;
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace kvsieve::cache_test {
namespace {

// Each failure is an error, leaves the cache as it was, and the call works in the end.
void ExpectEveryRefusalHarmless(Cache& cache, WithReserve reserve,
                                const std::function<Status()>& call) {
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 3000);
    const std::string before = StateOf(cache, reserve);
    refusals = 0;
    fail_at = refuse == Refuse::kNothing ? -1 : n;
    const Status status = call();
    fail_at = -1;
    if (status.ok()) {
      ASSERT_EQ(refusals, 0) << "request " << n << ": a refusal was swallowed";
      return;
    }
    ASSERT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.message();
    ASSERT_EQ(StateOf(cache, reserve), before) << "request " << n;
  }
}

template <class T>
Status StatusOf(Result<T> result) {
  return result.ok() ? Status::Ok() : result.TakeStatus();
}

void SaveAndLoad(Cache& cache) {
  const auto all = [&](const std::function<Status()>& call) {
    ExpectEveryRefusalHarmless(cache, WithReserve::kYes, call);
  };
  all([&] {
    MemorySink sink;
    return cache.Save("a model", sink);
  });
  MemorySink saved;
  ASSERT_TRUE(cache.Save("a model", saved).ok());
  all([&] {
    MemorySource source(saved.bytes());
    return StatusOf(Cache::FromState(source, "a model", {}));
  });
  all([&] {
    MemorySource source(saved.bytes());
    return cache.Load(source, "a model");
  });
}

void MakeABatch(Cache& cache, const char* spec, const LayerSpec& layer) {
  const std::shared_ptr<const Pipeline> pipeline = MustParse(spec);
  ExpectEveryRefusalHarmless(cache, WithReserve::kYes, [&] {
    return NoThrow([&]() -> Status {
      KVS_ASSIGN_OR_RETURN(CacheSet batch, CacheSet::Create(pipeline, {layer}, {}));
      KVS_RETURN_IF_ERROR(StatusOf(batch.Add()));
      KVS_RETURN_IF_ERROR(StatusOf(batch.AddFork(0)));
      return batch.Remove(0);
    });
  });
}

// `accepted` of eight rows of a draft become rows of decode; attention grows a scratch from
// nothing.
void Draft(Cache& cache, const Prompt& prompt, std::int64_t first, std::int64_t accepted) {
  const auto all = [&](const std::function<Status()>& call) {
    ExpectEveryRefusalHarmless(cache, WithReserve::kNo, call);
  };
  all([&] { return cache.ReserveSpeculative(accepted); });
  all([&] { return cache.ReserveSpeculative(8); });
  for (const std::int64_t row : {first, first + 5}) {
    all([&] { return AppendRows(cache, 0, Phase::kVerify, prompt, row, row == first ? 5 : 3); });
  }
  const LayerSpec& layer = cache.layer(0);
  const std::vector<float> queries = UniformRows(layer.query_heads * 3 * layer.key_dim, 3);
  const std::vector<TokenPos> positions = Positions(cache.next_position() - 3, 3);
  std::vector<float> out(static_cast<std::size_t>(layer.query_heads * 3 * layer.value_dim));
  all([&] {
    return NoThrow([&] {
      AttendScratch scratch;
      return cache.Attend(0, positions,
                          HeadsView::HeadMajor(queries.data(), layer.query_heads, 3, layer.key_dim),
                          {}, scratch, out.data(), nullptr);
    });
  });
  all([&] { return cache.Accept(accepted); });
}

// A prompt in two chunks, decode with gaps, eviction, drafts, trims, copies, saving and loading.
void LiveThrough(const char* spec) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  const Prompt prompt = MakePrompt(layer, 700, 1);
  const std::vector<float> queries = UniformRows(4 * 60 * 32, 2);
  const HeadsView query_view = HeadsView::HeadMajor(queries.data(), 4, 60, 32);
  const std::vector<TokenPos> early = Positions(140, 60);
  const std::vector<TokenPos> late = Positions(240, 60);
  Cache cache = MustCreate(spec, {layer});
  const auto append = [&](Phase phase, std::int64_t first, std::int64_t count) {
    // A decode append may keep room for rows to come.
    ExpectEveryRefusalHarmless(cache,
                               phase == Phase::kPrefill ? WithReserve::kYes : WithReserve::kNo,
                               [&] { return AppendRows(cache, 0, phase, prompt, first, count); });
  };
  const auto all = [&](const std::function<Status()>& call) {
    ExpectEveryRefusalHarmless(cache, WithReserve::kYes, call);
  };
  append(Phase::kPrefill, 0, 200);
  all([&] { return cache.Observe(0, early, query_view); });
  all([&] { return cache.Evict(0); });
  append(Phase::kPrefill, 205, 95);
  all([&] { return cache.Observe(0, late, query_view); });
  all([&] { return StatusOf(cache.Fork()); });
  SaveAndLoad(cache);
  all([&] { return cache.FinishPrefill(); });
  for (const std::int64_t first : {300, 306, 312, 318}) append(Phase::kDecode, first, 5);
  all([&] { return cache.Evict(0); });
  all([&] { return StatusOf(cache.Fork()); });
  const Result<Cache> fork = cache.Fork();  // shares what is written from here on
  ASSERT_TRUE(fork.ok());
  const std::string of_fork = StateOf(*fork);
  SaveAndLoad(cache);
  Draft(cache, prompt, 323, 0);
  Draft(cache, prompt, 323, 6);
  all([&] { return StatusOf(cache.TrimToPosition(312, Trim::kAllowInexact)); });
  append(Phase::kDecode, 330, 300);
  all([&] { return StatusOf(cache.TrimToPosition(100, Trim::kAllowInexact)); });
  append(Phase::kDecode, 400, 3);
  EXPECT_EQ(StateOf(*fork), of_fork);
  MakeABatch(cache, spec, layer);
}

class HeapRefusals : public ::testing::TestWithParam<const char*> {};

TEST_P(HeapRefusals, U83_LeaveTheCacheAsItWas) {
  LiveThrough(GetParam());  // what is made once and kept is there afterwards
  for (const Refuse mode : {Refuse::kOneRequest, Refuse::kAllFromOneOn}) {
    SCOPED_TRACE(mode == Refuse::kOneRequest ? "one request" : "all from one on");
    refuse = mode;
    const std::int64_t before = live;
    LiveThrough(GetParam());
    const std::int64_t after = live;
    refuse = Refuse::kNothing;
    EXPECT_EQ(after, before) << "blocks were not given back";
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, HeapRefusals,
    ::testing::Values("none | kv=f16", "none | kv=int4 | exact_sinks=4 | tail=40",
                      "snapkv(budget=70,window=16) | k=center+turbo4, v=turbo3",
                      "random(budget=90) | kv=int8 | tail=30 | schedule=per_chunk",
                      "recency(budget=90) | kv=int8 | tail=3 | schedule=every(4)",
                      "key_norm(budget=90) | kv=int8 | cold(30)={kv=int4} | schedule=every(4) | "
                      "demote=yes",
                      "snapkv(budget=3x,window=16,split=adaptive) | kv=q8_0",
                      "waterfill(budget=4x,window=16) | tiers=[kv=int8; k=center+turbo4, v=int2]",
                      "output_perturbation(budget=25%,window=16,scope=model) | v=q4_0",
                      "mix(0.7*window_attention(window=16),0.3*key_norm,budget=70,split=pyramid)",
                      "lag(budget=90,select=chunk:8) | kv=turbo5",
                      "expected_attention(budget=90) | kv=int4",
                      "key_diff(budget=90,select=block:4) | kv=int8",
                      "recency(budget=90) | kv=channel(bits=2,group=16) | tail=16",
                      "snapkv(budget=70%,window=16) | kv=int8 | cold(20%)={kv=turbo2}",
                      "waterfill(budget=4x,window=16) | tiers=[kv=int8; kv=turbo4; kv=turbo2]"));

// A decode step attends without the heap, once its scratch has grown.
TEST(HeapUse, AttendTakesNothingInSteadyState) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = MustCreate("none | kv=turbo4 | exact_sinks=4, tail=20", {layer});
  MustAppend(cache, 0, MakePrompt(layer, 9000, 5));  // two ranges of blocks
  const std::vector<float> queries = UniformRows(4 * 64, 6);
  const TokenPos position = 9000;
  std::vector<float> out(4 * 64);
  AttendScratch scratch;
  const auto attend = [&] {
    return cache.Attend(0, {&position, 1}, HeadsView::HeadMajor(queries.data(), 4, 1, 64), {},
                        scratch, out.data(), nullptr);
  };
  for (const bool finished : {false, true}) {
    SCOPED_TRACE(finished ? "finished" : "rows of the prompt as they came");
    if (finished) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
    }
    ASSERT_TRUE(attend().ok());
    const std::int64_t bytes = scratch.bytes();
    const std::int64_t before = requests;
    const Status again = attend();
    EXPECT_EQ(requests, before);
    EXPECT_EQ(scratch.bytes(), bytes);
    EXPECT_TRUE(again.ok());
  }
}

}  // namespace
}  // namespace kvsieve::cache_test
