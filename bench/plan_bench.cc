// A plan in bytes of one layer: 32 query heads, 8 KV heads, dim 128, f16 rows, window 32, three
// tiers, one thread. What is planned is checked against its budget before anything is timed.
//
//   Plan   what planning takes beside asking what rows are worth (LossEstimator::Estimate), each
//          measured in every iteration; of_scoring is the ratio of the medians
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/checked.h"
#include "bench/f16_rows.h"
#include "bench/layer_cache.h"
#include "bench/measure.h"
#include "lib/tier_plan.h"
#include "lib/tier_store.h"

namespace kvsieve::bench {
namespace {

constexpr int kWindow = 32;
constexpr const char* kSpec =
    "waterfill(budget=5x) | tiers=[k=center+turbo5, v=turbo5; k=center+turbo4, v=turbo3; "
    "k=center+turbo3, v=turbo2]";

// A layer whose rows are all there, and its last queries, each of which looks at some rows.
class Planned {
 public:
  explicit Planned(std::int64_t rows) : prompt_(rows), pipeline_(*Pipeline::Parse(kSpec)) {
    layer_.spec.query_heads = kQueryHeads;
    layer_.spec.kv_heads = kKvHeads;
    layer_.spec.key_dim = layer_.spec.value_dim = kDim;
    layer_.spec.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
    layer_.shape = {ElementType::kF16, ElementType::kF16, kDim, kDim};
    layer_.seen.Reserve(prompt_.positions);
    layer_.CountTokens(prompt_.positions, pipeline_.exact_sinks());
    layer_.stores = *BuildTierStores(pipeline_, 0, 1, layer_.spec);
    std::mt19937_64 rng(3);
    std::normal_distribution<float> normal;
    queries_.resize(std::size_t{kQueryHeads} * kWindow * kDim);
    for (float& query : queries_) query = 2 * normal(rng);
    sources_.reserve(2 * kKvHeads);
    for (int h = 0; h < kKvHeads; ++h) {
      sources_.emplace_back(prompt_.keys.data() + h * rows * kDim, rows, kDim);
      sources_.emplace_back(prompt_.values.data() + h * rows * kDim, rows, kDim);
      heads_.push_back({&sources_[2 * h], &sources_[2 * h + 1], prompt_.positions});
    }
    observation_.layer = layer_.spec;
    observation_.heads = heads_;
    observation_.window_queries = queries_.data();
    observation_.window_positions = std::span(prompt_.positions).last(kWindow);
    observation_.exact_before = layer_.sinks_end;
    limit_bytes_ = pipeline_.evictor()->byte_budget()->LimitOf(FullBytes(layer_));
  }

  void Estimate() {
    Check(
        pipeline_.evictor()->loss_estimator()->Estimate(observation_, serial_, nullptr, &losses_));
  }
  KeepSet Plan() {
    const LayerState* layer = &layer_;
    ScoreScratch scratch;
    auto decisions = PlanTiers({*pipeline_.evictor(),
                                pipeline_.tier_rule(),
                                limit_bytes_,
                                0,
                                0,
                                {&layer, 1},
                                {&observation_, 1}},
                               serial_, &scratch);
    if (!decisions.ok()) Fail(decisions.message());
    return std::move(decisions->front().keep);
  }
  // Within the budget, and less than a row of each head below it.
  bool IsRight(const KeepSet& keep) const {
    std::int64_t bytes = 0;
    for (int h = 0; h < kKvHeads; ++h) {
      auto positions = keep.positions(h);
      auto tiers = keep.tiers(h);
      if (WrongKernelInjected()) {
        positions = positions.first(positions.size() / 8 * 7);
        tiers = tiers.first(positions.size());
      }
      bytes += KeptBytes(layer_, 0, positions, tiers);
    }
    return bytes <= limit_bytes_ && bytes > limit_bytes_ - kKvHeads * 256;
  }

 private:
  Prompt prompt_;
  Pipeline pipeline_;
  LayerState layer_;
  std::vector<float> queries_;
  std::vector<F16Rows> sources_;
  std::vector<HeadObservation> heads_;
  Observation observation_;
  std::int64_t limit_bytes_ = 0;
  SerialParallel serial_;
  RowLosses losses_;
};

void Plan(benchmark::State& state) {
  Planned planned(state.range(0));
  if (!planned.IsRight(planned.Plan())) return SkipWrong(state, "the plan's bytes are wrong");
  std::vector<double> scoring;
  std::vector<double> planning;
  for (auto _ : state) {
    const double start = ThreadSeconds();
    planned.Estimate();
    const double middle = ThreadSeconds();
    benchmark::DoNotOptimize(planned.Plan());
    const double both = ThreadSeconds() - middle;
    scoring.push_back(middle - start);
    planning.push_back(both - scoring.back());
    state.SetIterationTime(planning.back());
  }
  state.counters["scoring_ms"] = 1e3 * Median(scoring);
  state.counters["planning_ms"] = 1e3 * Median(planning);
  state.counters["of_scoring"] = Median(planning) / Median(scoring);
}
BENCHMARK(Plan)
    ->Arg(8192)
    ->Arg(32768)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(15);

}  // namespace
}  // namespace kvsieve::bench

int main(int argc, char** argv) { return kvsieve::bench::RunRegistered(argc, argv); }
