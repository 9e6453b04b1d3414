// A plan of bytes, and the life of a cache that it is held against.
#ifndef KVSIEVE_TESTS_LIB_PLAN_FIXTURE_H_
#define KVSIEVE_TESTS_LIB_PLAN_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsieve/plan_bytes.h"
#include "lib/byte_report_fields.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve::plan_test {

inline constexpr const char* kFieldNames[] = {
    "key_full",    "value_full", "f16_rows",    "payload",   "scale",
    "metadata",    "key_kept",   "value_kept",  "padding",   "reserved",
    "observation", "shared",     "tokens_seen", "rows_kept", "lifetime_tokens"};

inline void ExpectWithin(const ByteBounds& bounds, const ByteReport& report) {
  int name = 0;
  for (const auto field : kByteReportSums) {
    EXPECT_LE(bounds.least.*field, report.*field) << kFieldNames[name];
    EXPECT_GE(bounds.most.*field, report.*field) << kFieldNames[name];
    ++name;
  }
}

inline void ExpectWithin(const ByteRange& range, std::int64_t bytes, const char* what) {
  EXPECT_LE(range.least, bytes) << what;
  EXPECT_GE(range.most, bytes) << what;
}

inline BytePlan MustPlan(std::string_view spec, const std::vector<LayerSpec>& layers,
                         const PlanRequest& request) {
  Result<BytePlan> plan = PlanBytes(*cache_test::MustParse(spec), layers, request);
  EXPECT_TRUE(plan.ok()) << spec << ": " << (plan.ok() ? "" : plan.error().message);
  return plan.ok() ? *std::move(plan) : BytePlan();
}

// The life that a request tells of: the prompt in chunks, an eviction after each where the schedule
// says so, decode tokens one at a time.
class Life {
 public:
  Life(std::string_view spec, const std::vector<LayerSpec>& layers, const PlanRequest& request)
      : request_(request), cache_(cache_test::MustCreate(spec, layers, Options())) {
    const std::int64_t tokens = request.prompt_tokens + request.decode_tokens;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      prompts_.push_back(cache_test::MakePrompt(layers[i], tokens, 11 + i));
    }
    const std::int64_t chunk = request.chunk_tokens > 0 ? request.chunk_tokens : tokens;
    for (std::int64_t first = 0; first < request.prompt_tokens; first += chunk) {
      const std::int64_t count = std::min(chunk, request.prompt_tokens - first);
      Append(Phase::kPrefill, first, count);
      Observe(first, count);
      for (int i = 0; i < cache_.layers(); ++i) EXPECT_TRUE(cache_.Evict(i).ok());
    }
  }
  void Finish() {
    const Status finished = cache_.FinishPrefill();
    EXPECT_TRUE(finished.ok()) << finished.message();
  }
  void Decode() {
    for (std::int64_t t = 0; t < request_.decode_tokens; ++t) {
      Append(Phase::kDecode, request_.prompt_tokens + t, 1);
    }
  }
  const Cache& cache() const { return cache_; }
  const cache_test::TestAllocator& allocator() const { return allocator_; }

 private:
  CacheOptions Options() {
    CacheOptions options;
    options.allocator = &allocator_;
    return options;
  }
  void Append(Phase phase, std::int64_t first, std::int64_t count) {
    for (int i = 0; i < cache_.layers(); ++i) {
      const cache_test::Prompt& prompt = prompts_[static_cast<std::size_t>(i)];
      ASSERT_TRUE(cache_test::AppendRows(cache_, i, phase, prompt, first, count).ok());
    }
  }
  void Observe(std::int64_t first, std::int64_t count) {
    for (int i = 0; i < cache_.layers(); ++i) {
      const LayerSpec& layer = cache_.layer(i);
      const std::vector<float> queries =
          cache_test::UniformRows(layer.query_heads * count * layer.key_dim, 7);
      ASSERT_TRUE(cache_
                      .Observe(i, cache_test::Positions(static_cast<TokenPos>(first), count),
                               HeadsView::HeadMajor(queries.data(), layer.query_heads, count,
                                                    layer.key_dim))
                      .ok());
    }
  }

  PlanRequest request_;
  cache_test::TestAllocator allocator_;
  Cache cache_;
  std::vector<cache_test::Prompt> prompts_;
};

}  // namespace kvsieve::plan_test

#endif  // KVSIEVE_TESTS_LIB_PLAN_FIXTURE_H_
