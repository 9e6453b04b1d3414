// Encode and decode of 64-row blocks, one head, dim 128, next to a plain copy of the same f32 rows.
// Rates are bytes of the f32 side; "rows" counts rows per second.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/checked.h"
#include "kvsieve/codec.h"
#include "kvsieve/spec_args.h"

namespace {

using kvsieve::BlockRef;
using kvsieve::Chain;
using kvsieve::kBlockRows;
using kvsieve::Side;
using kvsieve::SpecArg;
using kvsieve::SpecCall;

constexpr int kDim = 128;
constexpr std::size_t kFloats = static_cast<std::size_t>(kBlockRows) * kDim;

struct Format {
  const char* name;
  std::vector<SpecCall> chain;
  double worst_error;  // mean |x - x'| over mean |x| that a right codec stays below
};

SpecArg Bits(const char* bits) { return {.key = "bits", .value = bits, .call = {}}; }

std::vector<Format> Formats() {
  std::vector<Format> formats = {{"f16", {{"f16", 1, {}}}, 1e-3},
                                 {"int8", {{"int8", 1, {}}}, 0.02},
                                 {"int4", {{"int4", 1, {}}}, 0.12},
                                 {"hadamard_int4", {{"hadamard", 1, {}}, {"int4", 1, {}}}, 0.12}};
  const std::pair<const char*, double> turbo[] = {
      {"1", 0.7}, {"2", 0.4}, {"3", 0.2}, {"4", 0.12}, {"5", 0.06}};
  for (const auto& [bits, error] : turbo) {
    formats.push_back({bits, {{"turbo", 1, {Bits(bits)}}}, error});
  }
  return formats;
}

class OneBlockRows final : public kvsieve::RowSource {
 public:
  explicit OneBlockRows(const float* rows) : rows_(rows) {}
  std::int64_t rows() const override { return kBlockRows; }
  int dim() const override { return kDim; }
  void ReadRows(kvsieve::RowIndex first, int count, float* out) const override {
    std::memcpy(out, rows_ + first * kDim, sizeof(float) * kDim * static_cast<std::size_t>(count));
  }

 private:
  const float* rows_;
};

struct Setup {
  std::shared_ptr<const Chain> chain;
  std::vector<float> stats;
  std::vector<float> rows = std::vector<float>(kFloats);
  std::vector<float> scratch = std::vector<float>(kFloats);
  std::unique_ptr<std::uint8_t, void (*)(void*)> memory{nullptr, std::free};
  BlockRef block;

  Setup(const Format& format, Side side) {
    std::mt19937 engine(7);
    std::normal_distribution<float> normal;
    for (float& x : rows) x = normal(engine);
    chain = *kvsieve::MakeChain(format.chain, kDim, side);
    stats.resize(static_cast<std::size_t>(chain->stats_floats()) + 1);
    const std::size_t bytes = chain->codec().BlockBytes(kBlockRows);
    memory.reset(static_cast<std::uint8_t*>(std::aligned_alloc(64, bytes)));
    std::memset(memory.get(), 0, bytes);
    block = {memory.get(), kBlockRows};
    (void)chain->Learn(OneBlockRows(rows.data()), stats.data()).ok();
  }

  // Encode works in place, so every call starts from a copy.
  bool Encode() {
    std::memcpy(scratch.data(), rows.data(), kFloats * sizeof(float));
    return chain->Encode(stats.data(), scratch.data(), kBlockRows, block, 0).ok();
  }
  void Decode() {
    const int count = kvsieve::bench::WrongKernelInjected() ? kBlockRows / 8 * 7 : kBlockRows;
    chain->Decode(stats.data(), block, 0, count, scratch.data());
  }

  bool RoundTripIsRight(double worst_error) {
    if (!Encode()) return false;
    std::fill(scratch.begin(), scratch.end(), std::nanf(""));  // Encode leaves its rows there
    Decode();
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < kFloats; ++i) {
      error += std::fabs(rows[i] - scratch[i]);
      size += std::fabs(rows[i]);
    }
    return error <= worst_error * size;  // false for NaN
  }
};

void SetRates(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kFloats * sizeof(float)));
  state.SetItemsProcessed(state.iterations() * kBlockRows);
}

void BM_Copy(benchmark::State& state) {
  std::vector<float> from(kFloats, 1.0F);
  std::vector<float> to(kFloats);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), kFloats * sizeof(float));
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  SetRates(state);
}

void BM_Encode(benchmark::State& state, const Format& format, Side side) {
  Setup setup(format, side);
  if (!setup.RoundTripIsRight(format.worst_error)) {
    return kvsieve::bench::SkipWrong(state, "the decoded rows are wrong");
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(setup.Encode());
    benchmark::ClobberMemory();
  }
  SetRates(state);
}

void BM_Decode(benchmark::State& state, const Format& format, Side side) {
  Setup setup(format, side);
  if (!setup.RoundTripIsRight(format.worst_error)) {
    return kvsieve::bench::SkipWrong(state, "the decoded rows are wrong");
  }
  for (auto _ : state) {
    setup.Decode();
    benchmark::ClobberMemory();
  }
  SetRates(state);
}

void Register() {
  benchmark::RegisterBenchmark("copy", BM_Copy);
  for (const Format& format : Formats()) {
    const std::string name = format.chain.back().name == "turbo"
                                 ? std::string("turbo") + format.name
                                 : std::string(format.name);
    for (const Side side : {Side::kKey, Side::kValue}) {
      const std::string suffix = name + (side == Side::kKey ? "/key" : "/value");
      benchmark::RegisterBenchmark(("encode/" + suffix).c_str(), BM_Encode, format, side);
      benchmark::RegisterBenchmark(("decode/" + suffix).c_str(), BM_Decode, format, side);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Register();
  return kvsieve::bench::RunRegistered(argc, argv);
}
