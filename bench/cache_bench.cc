// The whole cache at work: one decode step of attention, and one finished prompt, each beside a
// pure read of the same bytes in the same iteration. What counts is `of_read`: the read's time
// divided by the step's (1 = as fast as memory lets it). Results are checked before timing.
//
//   cache_bench --benchmark_filter='Attend.*AVX2'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "kvsieve/cache.h"
#include "kvsieve/float16.h"
#include "kvsieve/targets.h"

namespace kvsieve {
namespace {

constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 128;

using bench::RecordingAllocator;
using bench::ThreadSeconds;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "cache_bench: %s\n", what.c_str());
  std::exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

LayerSpec Layer() {
  LayerSpec layer;
  layer.query_heads = kQueryHeads;
  layer.kv_heads = kKvHeads;
  layer.key_dim = kDim;
  layer.value_dim = kDim;
  layer.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  return layer;
}

std::vector<F16> RandomRows(std::int64_t count, unsigned seed) {
  // A small table of normal numbers, walked with a stride: as random as timing needs, and fast.
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<F16> table(65'521);
  for (F16& x : table) x = ToF16(normal(generator));
  std::vector<F16> rows(static_cast<std::size_t>(count) * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = table[i * 7919 % table.size()];
  return rows;
}

std::vector<TokenPos> Positions(std::int64_t rows) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

struct Prompt {
  explicit Prompt(std::int64_t rows)
      : positions(Positions(rows)),
        keys(RandomRows(rows * kKvHeads, 1)),
        values(RandomRows(rows * kKvHeads, 2)) {}
  std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
  std::vector<TokenPos> positions;
  std::vector<F16> keys;
  std::vector<F16> values;
};

Cache StagedCache(const std::string& spec, const Prompt& prompt, Allocator& allocator) {
  auto pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) Fail(pipeline.message());
  CacheOptions options;
  options.allocator = &allocator;
  auto cache =
      Cache::Create(std::make_shared<const Pipeline>(*std::move(pipeline)), {Layer()}, options);
  if (!cache.ok()) Fail(cache.message());
  const auto rows = [&](const std::vector<F16>& data) {
    return HeadsView::HeadMajor(data.data(), kKvHeads, prompt.rows(), kDim);
  };
  Check(
      cache->Append(0, Phase::kPrefill, rows(prompt.keys), rows(prompt.values), prompt.positions));
  const std::int64_t window = std::min<std::int64_t>(64, prompt.rows());
  const std::vector<F16> queries = RandomRows(window * kQueryHeads, 3);
  Check(cache->Observe(0, std::span(prompt.positions).last(static_cast<std::size_t>(window)),
                       HeadsView::HeadMajor(queries.data(), kQueryHeads, window, kDim)));
  return *std::move(cache);
}

// Largest difference to plain double-precision attention over the decoded rows, for one KV head.
void CheckAttention(const Cache& cache, const std::vector<float>& q,
                    const std::vector<float>& out) {
  const auto n = static_cast<std::size_t>(cache.rows(0, 0));
  std::vector<float> keys(n * kDim);
  std::vector<float> values(n * kDim);
  Check(cache.Gather(0, 0, {}, keys, values));
  for (int head = 0; head < kQueryHeads / kKvHeads; ++head) {
    std::vector<double> weight(n);
    double sum = 0;
    std::vector<double> expected(kDim, 0.0);
    for (std::size_t r = 0; r < n; ++r) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) {
        dot += static_cast<double>(q[head * kDim + d]) * keys[r * kDim + d];
      }
      weight[r] = std::exp(dot * Layer().scale);
      sum += weight[r];
      for (int d = 0; d < kDim; ++d) expected[d] += weight[r] * values[r * kDim + d];
    }
    double error = 0;
    double norm = 0;
    for (int d = 0; d < kDim; ++d) {
      error += std::pow(out[head * kDim + d] - expected[d] / sum, 2);
      norm += std::pow(expected[d] / sum, 2);
    }
    // Codebook levels of 8 bits move an output by up to about 1 % of a random one's small norm;
    // a wrong kernel is off by its whole size.
    if (!(std::sqrt(error / norm) < 0.05)) Fail("attention is wrong: relative error above 5 %");
  }
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Attend(benchmark::State& state, const std::string& spec, const std::string& target,
            std::int64_t rows) {
  Check(SelectTarget(target));
  RecordingAllocator allocator;
  const Prompt prompt(rows);
  Cache cache = StagedCache(spec, prompt, allocator);
  Check(cache.FinishPrefill());
  std::mt19937 generator(4);
  std::normal_distribution<float> normal;
  std::vector<float> q(kQueryHeads * kDim);
  for (float& x : q) x = normal(generator);
  std::vector<float> out(q.size());
  AttendScratch scratch;
  const TokenPos position = static_cast<TokenPos>(rows);
  const HeadsView queries = HeadsView::HeadMajor(q.data(), kQueryHeads, 1, kDim);
  const auto step = [&] {
    Check(cache.Attend(0, {&position, 1}, queries, {}, scratch, out.data(), nullptr));
  };
  step();
  CheckAttention(cache, q, out);
  std::vector<double> read_times;
  std::vector<double> step_times;
  for (auto _ : state) {
    const auto start = ThreadSeconds();
    benchmark::DoNotOptimize(allocator.ReadAll());
    const auto middle = ThreadSeconds();
    step();
    const auto end = ThreadSeconds();
    read_times.push_back(middle - start);
    step_times.push_back(end - middle);
    state.SetIterationTime(end - middle);
  }
  state.counters["of_read"] = Median(read_times) / Median(step_times);
  state.counters["MB"] = static_cast<double>(allocator.bytes()) * 1e-6;
  Check(SelectTarget(""));
}

void Compact(benchmark::State& state, const std::string& spec, std::int64_t rows) {
  RecordingAllocator allocator;
  const Prompt prompt(rows);
  std::vector<double> read_times;
  std::vector<double> finish_times;
  for (auto _ : state) {
    Cache cache = StagedCache(spec, prompt, allocator);
    const auto start = ThreadSeconds();
    benchmark::DoNotOptimize(allocator.ReadAll());
    const auto middle = ThreadSeconds();
    Check(cache.FinishPrefill());
    const auto end = ThreadSeconds();
    read_times.push_back(middle - start);
    finish_times.push_back(end - middle);
    state.SetIterationTime(end - middle);
  }
  state.counters["of_read"] = Median(read_times) / Median(finish_times);
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
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
