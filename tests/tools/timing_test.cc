// Times in a comparison: those of the best round, so that a disturbed one does not show.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "kvsieve/eval/compare.h"
#include "kvsieve/eval/generate.h"

namespace kvsieve::eval {
namespace {

constexpr std::chrono::milliseconds kPause(60);

// Serial, but something else takes the core for a while in calls that `is_disturbed` names.
class DisturbedParallel final : public Parallel {
 public:
  explicit DisturbedParallel(bool (*is_disturbed)(int call)) : is_disturbed_(is_disturbed) {}
  int workers() const override { return 1; }
  void Run(std::int64_t tasks, TaskFn fn, void* context) override {
    if (is_disturbed_(calls_++)) std::this_thread::sleep_for(kPause);
    for (std::int64_t task = 0; task < tasks; ++task) fn(context, task, 0);
  }
  int calls() const { return calls_; }

 private:
  bool (*is_disturbed_)(int call);
  int calls_ = 0;
};

Trace SmallTrace() {
  const std::string path = ::testing::TempDir() + "/timing_test.safetensors";
  GenerateOptions options;
  options.tokens = 64;
  options.layers = 1;
  options.n_eval = 2;
  EXPECT_TRUE(GenerateTrace(options, path).ok());
  Result<Trace> trace = Trace::Open(path);
  std::filesystem::remove(path);  // stays mapped
  EXPECT_TRUE(trace.ok());
  return *std::move(trace);
}

std::shared_ptr<const Pipeline> MustParse(std::string_view spec) {
  return std::make_shared<const Pipeline>(*Pipeline::Parse(spec));
}

// Attention of one layer of 64 rows takes microseconds; a mean over rounds would be at least two
// thirds of a pause, the best round is far below.
TEST(Timing, AttentionIsThatOfTheBestRound) {
  const Trace trace = SmallTrace();
  DisturbedParallel parallel([](int call) { return call % 3 != 0; });
  CompareOptions options;
  options.measure = Measure::kBytesAndTime;
  const Result<Comparer> comparer = Comparer::Create(trace, parallel, options);
  ASSERT_TRUE(comparer.ok());
  const Result<PipelineResult> result = comparer->Run(MustParse("none | kv=int8"));
  ASSERT_TRUE(result.ok()) << result.message();
  const double pause_us = std::chrono::duration<double, std::micro>(kPause).count();
  EXPECT_LT(*result->time.attend_us_per_token, pause_us / 2);
  EXPECT_EQ(*result->time.attend_us_per_token, *result->layers[0].time.attend_us_per_token);
}

// Only the first call pauses, which is in the first round.
TEST(Timing, CompactionIsThatOfTheBestRound) {
  const Trace trace = SmallTrace();
  DisturbedParallel parallel([](int call) { return call == 0; });
  CacheOptions options;
  options.parallel = &parallel;
  const auto prompt = CompressPrompt(trace, MustParse("snapkv(budget=50%) | kv=int8"), options);
  ASSERT_TRUE(prompt.ok()) << prompt.message();
  ASSERT_GT(parallel.calls(), 0);
  const double pause_ms = std::chrono::duration<double, std::milli>(kPause).count();
  EXPECT_LT(*prompt->result.time.compact_ms, pause_ms / 2);
}

}  // namespace
}  // namespace kvsieve::eval
