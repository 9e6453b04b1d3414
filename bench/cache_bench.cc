// The whole cache at work: one decode step of attention, and one finished prompt, each beside a
// pure read of the same bytes in the same iteration. What counts is `of_read`: the read's time
// divided by the step's (1 = as fast as memory lets it). Results are checked before timing.
//
//   cache_bench --benchmark_filter='Attend.*AVX2'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bench/checked.h"
#include "bench/layer_cache.h"
#include "bench/measure.h"
#include "kvsieve/cache.h"
#include "kvsieve/targets.h"

namespace kvsieve {
namespace {

using bench::Check;
using bench::Median;
using bench::Prompt;
using bench::RecordingAllocator;
using bench::StagedCache;
using bench::ThreadSeconds;

// `ratio`: the median time of `peer` divided by that of `step`, which is the time reported. Before
// each turn, untimed: `prepare`.
template <class Prepare, class Peer, class Step>
void TimeInTurns(benchmark::State& state, const char* ratio, Prepare prepare, Peer peer,
                 Step step) {
  std::vector<double> peer_times;
  std::vector<double> step_times;
  for (auto _ : state) {
    prepare();
    const auto start = ThreadSeconds();
    peer();
    const auto middle = ThreadSeconds();
    step();
    const auto end = ThreadSeconds();
    peer_times.push_back(middle - start);
    step_times.push_back(end - middle);
    state.SetIterationTime(end - middle);
  }
  state.counters[ratio] = Median(peer_times) / Median(step_times);
}

void Attend(benchmark::State& state, const std::string& spec, const std::string& target,
            std::int64_t rows) {
  Check(SelectTarget(target));
  RecordingAllocator allocator;
  const Prompt prompt(rows);
  Cache cache = StagedCache(spec, prompt, allocator);
  Check(cache.FinishPrefill());
  bench::DecodeStep step(cache, rows);
  TimeInTurns(
      state, "of_read", [] {}, [&] { benchmark::DoNotOptimize(allocator.ReadAll()); },
      [&] { step.Run(); });
  state.counters["MB"] = static_cast<double>(allocator.bytes()) * 1e-6;
  Check(SelectTarget(""));
}

// A draft of `tokens` in one call, in turns with as many calls of one token each; of_single: the
// time of those divided by that of the one call.
void AttendDraft(benchmark::State& state, const std::string& spec, int kv_heads, int tokens) {
  constexpr std::int64_t kRows = 8192;
  RecordingAllocator allocator;
  const Prompt prompt(kRows, kv_heads);
  Cache cache = StagedCache(spec, prompt, allocator);
  Check(cache.FinishPrefill());
  bench::DecodeStep single(cache, kRows);
  bench::DecodeStep draft(cache, kRows, tokens);
  const auto singles = [&] {
    for (int i = 0; i < tokens; ++i) single.Run();
  };
  TimeInTurns(
      state, "of_single", [] {}, singles, [&] { draft.Run(); });
}

void Compact(benchmark::State& state, const std::string& spec, std::int64_t rows) {
  RecordingAllocator allocator;
  const Prompt prompt(rows);
  std::optional<Cache> cache;
  TimeInTurns(
      state, "of_read", [&] { cache.emplace(StagedCache(spec, prompt, allocator)); },
      [&] { benchmark::DoNotOptimize(allocator.ReadAll()); },
      [&] { Check(cache->FinishPrefill()); });
}

void Register() {
  const char* const stores[] = {"kv=f16",    "kv=int8",   "kv=int4",  "kv=int4(group=row)",
                                "kv=turbo4", "kv=turbo3", "kv=turbo2"};
  for (const std::string_view target : SupportedTargets()) {
    if (target == "SCALAR") continue;  // correct, not meant to be fast
    for (const char* store : stores) {
      for (const std::int64_t rows : {32'768}) {
        const std::string name =
            "Attend/" + std::string(store) + "/" + std::to_string(rows) + "/" + std::string(target);
        benchmark::RegisterBenchmark(name.c_str(), Attend, store, std::string(target), rows)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(0.3);
      }
    }
  }
  for (const char* store : {"kv=f16", "kv=int8", "kv=turbo4"}) {
    for (const int kv_heads : {32, 16, 8}) {
      const std::string name = std::string("AttendDraft/") + store + "/" +
                               std::to_string(kv_heads) + "_kv_heads/8_tokens";
      benchmark::RegisterBenchmark(name.c_str(), AttendDraft, store, kv_heads, 8)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.3);
    }
  }
  for (const char* spec : {"kv=f16", "kv=int8", "kv=turbo4", "snapkv(budget=25%)",
                           "snapkv(budget=25%) | k=center+turbo4, v=turbo4"}) {
    benchmark::RegisterBenchmark((std::string("Compact/") + spec + "/8192").c_str(), Compact, spec,
                                 8192)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.2);
  }
}

}  // namespace
}  // namespace kvsieve

int main(int argc, char** argv) {
  kvsieve::Register();
  return kvsieve::bench::RunRegistered(argc, argv);
}
