// Scoring and selection of one layer: 32 query heads, 8 KV heads, dim 128, f16 rows, window 32,
// one thread. Results are checked against the f64 oracle and a full sort before anything is timed.
//
//   read_keys          reads every byte of K once, the same buffers: the memory limit
//   load_panels        K to transposed f32 panels, once
//   window_attention   the whole score, smoothing included; flops counts q.K only
//   select             8 heads of `rows` scores -> 512 rows each, sinks and window protected
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "bench/checked.h"
#include "bench/f16_rows.h"
#include "evict/scorers.h"
#include "evict/smoothing.h"
#include "evict/top_k.h"
#include "evict/window_kernels.h"
#include "kvsieve/float16.h"
#include "tests/evict/oracle.h"

namespace kvsieve {
namespace {

constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 128;
constexpr int kWindow = 32;
constexpr int kKept = 512;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "evict_bench: %s differs from the oracle\n", what);
  std::exit(1);
}

struct Layer {
  explicit Layer(std::int64_t row_count) : rows(row_count) {
    std::mt19937_64 rng(1);
    std::normal_distribution<float> normal;
    keys.resize(static_cast<std::size_t>(kKvHeads * rows * kDim));
    for (F16& key : keys) key = ToF16(normal(rng));
    queries.resize(static_cast<std::size_t>(kQueryHeads) * kWindow * kDim);
    for (float& query : queries) query = normal(rng);
    positions.resize(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    for (int h = 0; h < kKvHeads; ++h)
      sources.emplace_back(keys.data() + h * rows * kDim, rows, kDim);
    for (const bench::F16Rows& source : sources) heads.push_back({&source, &source, positions});
    observation.layer.query_heads = kQueryHeads;
    observation.layer.kv_heads = kKvHeads;
    observation.layer.key_dim = kDim;
    observation.layer.value_dim = kDim;
    observation.layer.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
    observation.heads = heads;
    observation.window_queries = queries.data();
    observation.window_positions = std::span(positions).last(kWindow);
  }

  std::int64_t rows;
  std::vector<F16> keys;
  std::vector<float> queries;
  std::vector<TokenPos> positions;
  std::vector<bench::F16Rows> sources;
  std::vector<HeadObservation> heads;
  Observation observation;
};

std::unique_ptr<const Scorer> DefaultScorer(evict::ScorerFactory make) {
  const SpecCall call;
  ArgReader args(call);
  return make(args, {}).scorer;
}

// KV head 0 is enough: all heads run the same code.
void CheckScores(const Layer& layer, const Scores& scores, bool perturbation) {
  oracle::Layer first;
  first.spec = layer.observation.layer;
  first.spec.query_heads = kQueryHeads / kKvHeads;
  first.spec.kv_heads = 1;
  first.rows = layer.rows;
  first.window_rows = kWindow;
  for (std::int64_t i = 0; i < layer.rows * kDim; ++i) first.k.push_back(ToFloat(layer.keys[i]));
  first.v = first.k;
  first.q.assign(layer.queries.begin(),
                 layer.queries.begin() + first.spec.query_heads * kWindow * kDim);
  first.positions = layer.positions;
  const auto expected = oracle::Score(first, {.perturbation = perturbation}).front();
  for (std::int64_t j = 0; j < layer.rows; ++j) {
    const double error = std::abs(scores.smoothed[j] - expected.smoothed[j]);
    if (!(error <= expected.smoothed_bound[j])) Fail("a score");
  }
}

void ReadKeys(benchmark::State& state) {
  const Layer layer(state.range(0));
  const std::size_t words = layer.keys.size() * sizeof(F16) / sizeof(std::uint64_t);
  const auto* data = reinterpret_cast<const std::uint64_t*>(layer.keys.data());
  for (auto _ : state) {
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i < words; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) sum[lane] ^= data[i + lane];
    }
    for (const std::uint64_t lane : sum) benchmark::DoNotOptimize(lane);
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(words * sizeof(std::uint64_t)));
}

void LoadPanels(benchmark::State& state) {
  const Layer layer(state.range(0));
  std::vector<float> panel(static_cast<std::size_t>(kDim) * kBlockRows);
  for (auto _ : state) {
    for (std::int64_t row = 0; row < kKvHeads * layer.rows; row += kBlockRows) {
      evict::LoadPanel({layer.keys.data() + row * kDim, ElementType::kF16, kDim}, kDim, kBlockRows,
                       panel.data());
    }
    benchmark::DoNotOptimize(panel.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(layer.keys.size() * sizeof(F16)));
}

// range: rows, query heads at once (0: the default of one).
void ScoreLayer(benchmark::State& state, evict::ScorerFactory make, bool perturbation) {
  const Layer layer(state.range(0));
  const auto scorer = DefaultScorer(make);
  SerialParallel serial;
  ScoreScratch scratch{.limit_bytes = state.range(1) == 0 ? 0 : std::int64_t{1} << 40};
  Scores scores;
  if (!scorer->Score(layer.observation, serial, &scratch, &scores).ok()) Fail("the status");
  if (bench::WrongKernelInjected()) scores.smoothed[layer.rows - 1] = 0.0F;
  CheckScores(layer, scores, perturbation);
  for (auto _ : state) {
    const Status status = scorer->Score(layer.observation, serial, &scratch, &scores);
    benchmark::DoNotOptimize(status.ok());
  }
  state.counters["qk_flops"] = benchmark::Counter(
      2.0 * kQueryHeads * kWindow * kDim * static_cast<double>(layer.rows),
      benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
  state.counters["scratch_MiB"] = static_cast<double>(scratch.peak_bytes) / (1 << 20);
}
void WindowAttention(benchmark::State& state) {
  ScoreLayer(state, evict::MakeWindowAttention, false);
}
void OutputPerturbation(benchmark::State& state) {
  ScoreLayer(state, evict::MakeOutputPerturbation, true);
}

// Smoothed scores as they come: log-normal, max-pooled into plateaus.
void Select(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  std::mt19937_64 rng(2);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> raw(kKvHeads, std::vector<float>(rows));
  std::vector<std::vector<float>> smoothed = raw;
  for (int h = 0; h < kKvHeads; ++h) {
    for (float& score : raw[h]) score = std::exp(2.0F * normal(rng)) / static_cast<float>(rows);
    evict::Smooth({}, raw[h], smoothed[h]);
  }
  const std::vector<evict::RowRange> kept = {{0, 4}, {rows - kWindow, rows}};
  evict::TopKScratch scratch;
  std::vector<RowIndex> chosen;
  const auto run = [&](int h) {
    chosen.clear();
    evict::SelectRows({smoothed[h], raw[h]}, kept, kKept - 4 - kWindow, evict::Ties::kLowPosition,
                      &scratch, &chosen);
  };
  for (int h = 0; h < kKvHeads; ++h) {
    run(h);
    if (bench::WrongKernelInjected()) chosen.pop_back();
    if (chosen != oracle::Keep(smoothed[h], raw[h], {kKept, 4, kWindow, {}, false})) Fail("a set");
  }
  for (auto _ : state) {
    for (int h = 0; h < kKvHeads; ++h) run(h);
    benchmark::DoNotOptimize(chosen.data());
  }
  state.SetItemsProcessed(state.iterations() * kKvHeads * rows);
}

BENCHMARK(ReadKeys)->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond);
BENCHMARK(LoadPanels)->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond);
BENCHMARK(WindowAttention)
    ->ArgNames({"rows", "group"})
    ->Args({8192, 0})
    ->Args({8192, 1})
    ->Args({32768, 0})
    ->Args({32768, 1})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(OutputPerturbation)
    ->ArgNames({"rows", "group"})
    ->Args({8192, 0})
    ->Args({8192, 1})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(Select)->Arg(2048)->Arg(8192)->Arg(32768)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvsieve

BENCHMARK_MAIN();
