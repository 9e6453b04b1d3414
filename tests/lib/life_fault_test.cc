// The whole life of a cache, one script, with the n-th request of memory refused for every n of
// every call: an error, the state as it was, bit by bit, and no byte lost. resident_bytes is what
// the allocator counts, after every call.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::AppendRows;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::TestAllocator;
using cache_test::UniformRows;
using cache_test::WithReserve;

using Call = std::function<Status()>;

// All rows, a window, V in K.
std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 32, 32), MakeLayer(2, 2, 32, 16),
                                   MakeLayer(2, 1, 48, 32)};
  layers[1].sliding_window = 24;
  layers[2].value_is_key_prefix = true;
  return layers;
}

template <class T>
Status StatusOf(Result<T> result) {
  return result.ok() ? Status::Ok() : result.TakeStatus();
}

class ScriptedLife {
 public:
  explicit ScriptedLife(const char* spec) : spec_(spec) { options_.allocator = &allocator_; }

  void Run() {
    Cache cache = MustCreate(spec_, Layers(), options_);
    cache_ = &cache;
    twin_ = nullptr;
    if (!HasFailed()) Prefill();
    if (!HasFailed()) Decode();
    if (!HasFailed()) Draft();
    if (!HasFailed()) Share();
    if (!HasFailed()) SaveAndLoad();
    if (!HasFailed()) TakeBack();
    cache.Clear();
    ASSERT_EQ(allocator_.live_bytes, 0);
    Prefill();  // a second life in the same object
  }
  int refused() const { return refused_; }

 private:
  static bool HasFailed() { return testing::Test::HasFatalFailure(); }

  // What must not change when a call fails. Open drafts cannot be saved; StateOf sees them.
  std::string Content() const {
    std::string content = StateOf(*cache_, WithReserve::kNo);
    MemorySink sink;
    if (cache_->Save("a model", sink).ok()) {
      content.append(reinterpret_cast<const char*>(sink.bytes().data()), sink.bytes().size());
    }
    return content;
  }

  // One holder of each byte, or two of some.
  void ExpectCounted() const {
    std::int64_t held = cache_->Report().resident_bytes();
    if (twin_ != nullptr) {
      held += twin_->Report().resident_bytes() - twin_->Report().shared_bytes;
    }
    ASSERT_EQ(held, allocator_.live_bytes);
  }

  // The n-th request of `call` refused, alone or with all behind it, for every n; then with memory.
  void EveryRefusal(const char* name, const Call& call) {
    SCOPED_TRACE(name);
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 2000);
      const std::string before = Content();
      allocator_.refusals = 0;
      allocator_.fail_at = n;
      allocator_.fail = n % 2 == 0 ? TestAllocator::Fail::kAllFromOneOn : TestAllocator::Fail::kOne;
      const Status status = call();
      allocator_.fail_at = -1;
      ExpectCounted();
      if (status.ok()) {
        ASSERT_EQ(allocator_.refusals, 0) << "refusal " << n << " was swallowed";
        return;
      }
      ASSERT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.message();
      ASSERT_EQ(status.message().find('\n'), std::string::npos);
      ASSERT_TRUE(Content() == before) << "refusal " << n;
      ++refused_;
    }
  }

  void Append(Phase phase, int layer, std::int64_t count, TokenPos gap = 0) {
    // Layers of one length: the first row is the same for all.
    const TokenPos first = next_ + gap;
    const Prompt rows = MakePrompt(Layers()[layer], count, 1000 * layer + first, first);
    EveryRefusal("append", [&] { return AppendRows(*cache_, layer, phase, rows, 0, count); });
    if (phase == Phase::kVerify) return;
    if (phase == Phase::kPrefill || scores_in_decode()) Observe(layer, first, count);
    EveryRefusal("evict", [&] { return cache_->Evict(layer); });
  }
  bool scores_in_decode() const { return spec_.find("every") != std::string::npos; }

  void Observe(int layer, TokenPos first, std::int64_t count) {
    const LayerSpec& spec = cache_->layer(layer);
    const std::vector<float> queries = UniformRows(spec.query_heads * count * spec.key_dim, first);
    EveryRefusal("observe", [&] {
      return cache_->Observe(
          layer, Positions(first, count),
          HeadsView::HeadMajor(queries.data(), spec.query_heads, count, spec.key_dim));
    });
  }
  void AppendAll(Phase phase, std::int64_t count, TokenPos gap = 0) {
    for (int layer = 0; layer < 3 && !HasFailed(); ++layer) Append(phase, layer, count, gap);
    next_ += static_cast<TokenPos>(gap + count);
  }

  void Attend() {
    for (int layer = 0; layer < 3; ++layer) {
      const LayerSpec& spec = cache_->layer(layer);
      const std::vector<float> queries = UniformRows(spec.query_heads * 2 * spec.key_dim, 3);
      const std::string before = Content();
      allocator_.fail_at = 0;  // asks for nothing
      cache_test::MustAttend(*cache_, layer, queries, Positions(next_, 2));
      allocator_.fail_at = -1;
      ASSERT_TRUE(Content() == before);
    }
  }

  void Prefill() {
    next_ = 0;
    AppendAll(Phase::kPrefill, 70);
    AppendAll(Phase::kPrefill, 50, 3);
    Attend();
    EveryRefusal("finish", [&] { return cache_->FinishPrefill(); });
    Attend();
  }

  void Decode() {
    for (int step = 0; step < 12 && !HasFailed(); ++step) {
      AppendAll(Phase::kDecode, step % 5 == 4 ? 20 : 1, step == 7 ? 5 : 0);
    }
    Attend();
  }

  void Draft() {
    for (const std::int64_t accepted : {0, 3, 9}) {
      EveryRefusal("reserve", [&] { return cache_->ReserveSpeculative(6 + accepted); });
      const TokenPos start = next_;
      AppendAll(Phase::kVerify, 5);
      AppendAll(Phase::kVerify, 1 + accepted);
      Attend();
      if (accepted == 9) {
        EveryRefusal("rollback", [&] { return cache_->Rollback(6); });
      } else {
        EveryRefusal("accept", [&] { return cache_->Accept(accepted); });
      }
      if (HasFailed()) return;
      next_ = start + static_cast<TokenPos>(accepted);
      ASSERT_EQ(cache_->next_position(), next_);
      for (int layer = 0; layer < 3 && scores_in_decode(); ++layer) {
        Observe(layer, start, accepted);
      }
    }
  }

  void Share() {
    EveryRefusal("fork", [&] { return StatusOf(cache_->Fork()); });
    Result<Cache> fork = cache_->Fork();
    ASSERT_TRUE(fork.ok()) << fork.message();
    twin_ = &*fork;
    const std::string of_twin = StateOf(*fork);
    // The fork writes while the first one holds its blocks, and the other way round.
    AppendAll(Phase::kDecode, 3);
    EXPECT_EQ(StateOf(*fork), of_twin);
    std::swap(cache_, twin_);
    next_ -= 3;
    const std::string of_first = StateOf(*twin_);
    EveryRefusal("trim",
                 [&] { return StatusOf(cache_->TrimToPosition(next_ - 30, Trim::kAllowInexact)); });
    next_ -= 30;
    AppendAll(Phase::kDecode, 70);
    EXPECT_EQ(StateOf(*twin_), of_first);
    // The first one goes on alone.
    std::swap(cache_, twin_);
    next_ = cache_->next_position();
    twin_ = nullptr;
    fork->Clear();
  }

  void SaveAndLoad() {
    const Bytes state = Saved(*cache_, "a model");
    const std::string before = StateOf(*cache_, WithReserve::kNo);
    EveryRefusal("load", [&] { return LoadBytes(state, *cache_, "a model"); });
    EXPECT_EQ(StateOf(*cache_, WithReserve::kNo), before);
    EveryRefusal("from state", [&] {
      MemorySource source(state);
      return StatusOf(Cache::FromState(source, "a model", options_));
    });
    AppendAll(Phase::kDecode, 2);
  }

  void TakeBack() {
    for (const TokenPos back : {1, 40, 100}) {
      next_ -= back;
      EveryRefusal("trim",
                   [&] { return StatusOf(cache_->TrimToPosition(next_, Trim::kAllowInexact)); });
      AppendAll(Phase::kDecode, 20);  // a window of queries
    }
  }

  const std::string spec_;
  TestAllocator allocator_;  // counts what is left when it goes
  CacheOptions options_;
  Cache* cache_ = nullptr;
  Cache* twin_ = nullptr;  // a second holder
  TokenPos next_ = 0;
  int refused_ = 0;
};

class LifeFaults : public ::testing::TestWithParam<const char*> {};

TEST_P(LifeFaults, EveryRefusalIsAnErrorAndNothingElse) {
  ScriptedLife life(GetParam());
  life.Run();
  EXPECT_GT(life.refused(), 150);
  RecordProperty("refusals", life.refused());
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, LifeFaults,
    ::testing::Values("none | kv=f16", "none | kv=int8 | exact_sinks=4 | tail=8",
                      "snapkv(budget=60,window=16) | k=center+turbo4, v=int4, "
                      "layers(2..2)={kv=turbo4} | tail=20",
                      "recency(budget=60) | kv=channel(bits=2,group=16) | tail=16",
                      "snapkv(budget=70%,window=16) | kv=int8 | cold(20%)={kv=int4}",
                      "random(budget=70) | kv=center+int8 | cold(20)={kv=center+turbo3}",
                      "recency(budget=60) | kv=int8 | schedule=every(16)",
                      "random(budget=70) | kv=turbo3 | tail=3 | schedule=per_chunk",
                      "snapkv(budget=70,window=16) | kv=int8 | cold(30)={kv=turbo2} | "
                      "exact_sinks=3 | schedule=every(9)",
                      "waterfill(budget=2x,window=16) | tiers=[kv=int8; kv=turbo4; kv=turbo2]"));

}  // namespace
}  // namespace kvsieve::state_test
