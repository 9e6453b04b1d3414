// Fused attention over one layer of a long cache, against a pure read of the same bytes: 32 query
// heads on 8 KV heads, dim 128, 32 768 rows, one thread, on every target that the CPU has. Read and
// attention take turns, so that a busy moment of the machine hits both: compare of_read, not times.
// The result of one KV head is compared with double sums before anything is timed.
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/checked.h"
#include "bench/pure_read.h"
#include "kvsieve/codec.h"
#include "kvsieve/targets.h"

#ifndef KVS_ATTEND_KERNELS_BENCH_ONCE_
#define KVS_ATTEND_KERNELS_BENCH_ONCE_
namespace kvsieve::bench {
// Softmax state of the four query heads of one KV head.
struct State {
  float maximum[kHeadTile];
  float sum[kHeadTile];
  float* acc;  // [kHeadTile, acc_stride]
  int acc_stride;
};

}  // namespace kvsieve::bench
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/attend_kernels_bench.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rescales what was summed under a lower maximum.
HWY_NOINLINE void Raise(const float* most, State& state) {
  for (int h = 0; h < kHeadTile; ++h) {
    if (!(most[h] > state.maximum[h])) continue;
    const float shrink = std::exp(state.maximum[h] - most[h]);
    for (int d = 0; d < state.acc_stride; ++d) state.acc[h * state.acc_stride + d] *= shrink;
    state.sum[h] *= shrink;
    state.maximum[h] = most[h];
  }
}

// logits [kHeadTile, kBlockRows] of one full block become weights, all heads at once.
void Softmax(float* logits, State& state) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  float most[kHeadTile];
  for (int h = 0; h < kHeadTile; ++h) {
    const float* row = logits + h * kBlockRows;
    auto high = hn::LoadU(d, row);
    for (std::size_t r = lanes; r < kBlockRows; r += lanes) {
      high = hn::Max(high, hn::LoadU(d, row + r));
    }
    most[h] = hn::GetLane(hn::MaxOfLanes(d, high));
  }
  bool raise = false;
  for (int h = 0; h < kHeadTile; ++h) raise = raise || most[h] > state.maximum[h];
  if (raise) Raise(most, state);
  for (int h = 0; h < kHeadTile; ++h) {
    float* row = logits + h * kBlockRows;
    const auto maximum = hn::Set(d, state.maximum[h]);
    auto sum = hn::Zero(d);
    for (std::size_t r = 0; r < kBlockRows; r += lanes) {
      const auto shifted = hn::Sub(hn::LoadU(d, row + r), maximum);
      const auto weight = kvsieve::HWY_NAMESPACE::ExpNonPositive(d, shifted);
      hn::StoreU(weight, d, row + r);
      sum = hn::Add(sum, weight);
    }
    state.sum[h] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::bench {
namespace {

HWY_EXPORT(Softmax);

constexpr int kKvHeads = 8;
constexpr int kHeads = kHeadTile;
constexpr int kDim = 128;
constexpr int kBlocks = 512;  // per head and side: 32 768 rows

struct Format {
  const char* name;
  SpecCall call;
  // Of the output, relative to its largest element. 16-bit rounding gives some 1e-5. A query of one
  // byte is off by 0.29 / 64 of its largest element, 3 deviations, so each logit by 0.014 of the
  // logits' deviation, and outputs by about as much of theirs; a wrong kernel is off by the whole.
  double bound;
};

SpecArg Option(const char* key, const char* value) { return {key, value, 1, 1, {}}; }

std::vector<Format> Formats() {
  constexpr double kExact = 2e-4;
  constexpr double kByteQuery = 0.05;
  std::vector<Format> formats = {{"f16", {"f16", 1, {}}, kExact},
                                 {"bf16", {"bf16", 1, {}}, kExact},
                                 {"fp8", {"fp8", 1, {}}, kExact},
                                 {"int8", {"int8", 1, {}}, kExact},
                                 {"q8_0", {"q8_0", 1, {}}, kExact},
                                 {"int4", {"int4", 1, {}}, kByteQuery},
                                 {"int4_row", {"int4", 1, {Option("group", "row")}}, kByteQuery},
                                 {"q4_0", {"q4_0", 1, {}}, kByteQuery},
                                 {"int3", {"int3", 1, {}}, kByteQuery},
                                 {"int2", {"int2", 1, {}}, kByteQuery}};
  for (const char* bits : {"5", "4", "3", "2", "1"}) {
    static constexpr const char* kNames[] = {"", "turbo1", "turbo2", "turbo3", "turbo4", "turbo5"};
    formats.push_back({kNames[bits[0] - '0'], {"turbo", 1, {Option("bits", bits)}}, kByteQuery});
  }
  for (const char* bits : {"4", "3", "2"}) {
    static constexpr const char* kNames[] = {"", "", "channel2", "channel3", "channel4"};
    formats.push_back({kNames[bits[0] - '0'], {"channel", 1, {Option("bits", bits)}}, kByteQuery});
  }
  return formats;
}

// K and V blocks of all heads in one huge-page arena: [head][side][block]. Rows are Gaussian, in
// the codec's own basis: a rotation before it would take time once a step, not once a row.
class Arena {
 public:
  explicit Arena(const Format& format) : name_(format.name) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      chains_[static_cast<int>(side)] = *MakeChain({&format.call, 1}, kDim, side);
    }
    block_bytes_ = codec(Side::kKey).BlockBytes(kBlockRows);
    bytes_ = block_bytes_ * static_cast<std::size_t>(kBlocks) * 2 * kKvHeads;
    void* map = mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();
    data_ = static_cast<std::uint8_t*>(map);
    madvise(data_, bytes_ + kHugePage, MADV_HUGEPAGE);
    Fill();
  }

  ~Arena() { munmap(data_, bytes_ + kHugePage); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::string_view name() const { return name_; }
  std::size_t bytes() const { return bytes_; }
  const std::uint8_t* data() const { return data_; }
  const Codec& codec(Side side) const { return chains_[static_cast<int>(side)]->codec(); }
  ConstBlockRef Block(int head, Side side, int index) const {
    return {At(head, side, index), kBlockRows};
  }
  Prefetch Ahead(int head, Side side, int index) const {
    return {At(head, side, std::min(index + 1, kBlocks - 1))};
  }

 private:
  static constexpr std::size_t kHugePage = 2 << 20;

  std::uint8_t* At(int head, Side side, int index) const {
    const int stream = head * 2 + (side == Side::kValue ? 1 : 0);
    return data_ + static_cast<std::size_t>(stream * kBlocks + index) * block_bytes_;
  }
  void Fill() {
    std::mt19937 random(42);
    std::normal_distribution<float> normal;
    constexpr int kPoolRows = 4096;
    std::vector<float> pool(static_cast<std::size_t>(kPoolRows) * kDim);
    for (float& x : pool) x = normal(random);
    for (int head = 0; head < kKvHeads; ++head) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        for (int i = 0; i < kBlocks; ++i) {
          const float* rows = pool.data() + random() % (kPoolRows - kBlockRows) * kDim;
          const BlockRef block{At(head, side, i), kBlockRows};
          if (!codec(side).Encode(kStats, rows, kBlockRows, block, 0).ok()) std::abort();
        }
      }
    }
  }

 public:
  static constexpr float kStats[] = {0.0F};  // turbo: scales are f16

 private:
  std::string_view name_;
  std::shared_ptr<const Chain> chains_[2];
  std::size_t block_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::uint8_t* data_ = nullptr;
};

// Online softmax over the blocks of one KV head: out [kHeads, kDim].
void AttendHead(const Arena& arena, int head, const float* q, float* out) {
  const Codec& keys = arena.codec(Side::kKey);
  const Codec& values = arena.codec(Side::kValue);
  alignas(64) std::uint8_t prepared[8192];
  if (keys.QueryBytes() > sizeof(prepared)) std::abort();
  keys.PrepareQueries(q, kHeads, prepared);
  const auto softmax = HWY_DYNAMIC_DISPATCH(Softmax);
  alignas(64) float logits[kHeads * kBlockRows];  // then weights
  alignas(64) float acc[kHeads * kDim] = {};
  State state = {{-1e30F, -1e30F, -1e30F, -1e30F}, {}, acc, kDim};
  const int blocks = WrongKernelInjected() ? kBlocks / 8 * 7 : kBlocks;
  for (int i = 0; i < blocks; ++i) {
    keys.Score(Arena::kStats, prepared, kHeads, arena.Block(head, Side::kKey, i), kBlockRows,
               logits, arena.Ahead(head, Side::kKey, i));
    softmax(logits, state);
    values.Accumulate(Arena::kStats, logits, kHeads, arena.Block(head, Side::kValue, i), kBlockRows,
                      acc, arena.Ahead(head, Side::kValue, i));
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int d = 0; d < kDim; ++d) out[h * kDim + d] = acc[h * kDim + d] / state.sum[h];
  }
}

// Largest difference of one head's output to double sums, over the output's largest element.
double ErrorOfHead(const Arena& arena, const float* q) {
  float out[kHeads * kDim];
  AttendHead(arena, 0, q, out);
  double exact[kHeads * kDim] = {}, sum[kHeads] = {};
  std::vector<float> key(kBlockRows * kDim), value(kBlockRows * kDim);
  for (int i = 0; i < kBlocks; ++i) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      arena.codec(side).Decode(Arena::kStats, arena.Block(0, side, i), 0, kBlockRows,
                               (side == Side::kKey ? key : value).data());
    }
    for (std::size_t r = 0; r < kBlockRows; ++r) {
      for (std::size_t h = 0; h < kHeads; ++h) {
        double logit = 0.0;
        for (std::size_t d = 0; d < kDim; ++d) logit += double{q[h * kDim + d]} * key[r * kDim + d];
        const double weight = std::exp(logit);
        sum[h] += weight;
        for (std::size_t d = 0; d < kDim; ++d) exact[h * kDim + d] += weight * value[r * kDim + d];
      }
    }
  }
  double worst = 0.0, largest = 0.0;
  for (int h = 0; h < kHeads; ++h) {
    for (int d = 0; d < kDim; ++d) {
      const double e = exact[h * kDim + d] / sum[h];
      worst = std::max(worst, std::fabs(out[h * kDim + d] - e));
      largest = std::max(largest, std::fabs(e));
    }
  }
  return worst / largest;
}

// Time of this thread on its CPU: what other processes take does not count.
double Seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Of one format at a time: the largest takes 134 MB.
const Arena& ArenaOf(const Format& format) {
  static std::unique_ptr<Arena> arena;
  if (arena == nullptr || arena->name() != format.name) {
    arena.reset();
    arena = std::make_unique<Arena>(format);
  }
  return *arena;
}

// Each iteration reads all bytes once and then attends over them. of_read is the share of the
// read rate that attention reaches, from the medians of both.
void Attend(benchmark::State& state, const Format& format, std::string_view target) {
  const Arena& arena = ArenaOf(format);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(kDim)));
  std::vector<float> q(kKvHeads * kHeads * kDim), out(q.size());
  for (float& x : q) x = normal(random);
  if (!SelectTarget(target).ok()) return state.SkipWithError("target not available");
  if (ErrorOfHead(arena, q.data()) > format.bound) return SkipWrong(state, "wrong result");

  std::vector<double> reads, times;
  for (auto _ : state) {
    double start = Seconds();
    benchmark::DoNotOptimize(PureRead(arena.data(), arena.bytes()));
    reads.push_back(Seconds() - start);
    start = Seconds();
    for (int head = 0; head < kKvHeads; ++head) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(head) * kHeads * kDim;
      AttendHead(arena, head, q.data() + at, out.data() + at);
    }
    times.push_back(Seconds() - start);
    state.SetIterationTime(times.back());
  }
  const double read = Median(reads);
  const double time = Median(times);
  state.counters["of_read"] = read / time;
  state.counters["read_GB/s"] = static_cast<double>(arena.bytes()) / read * 1e-9;
  state.counters["ns_per_row"] = time * 1e9 / (kKvHeads * kBlocks * kBlockRows);
  (void)SelectTarget("");
}

void Register() {
  for (const Format& format : Formats()) {
    for (const std::string_view target : SupportedTargets()) {
      if (target == "SCALAR") continue;  // not a target for speed
      const std::string name = std::string("Attend/") + format.name + "/" + std::string(target);
      benchmark::RegisterBenchmark(name.c_str(), Attend, format, target)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace kvsieve::bench

int main(int argc, char** argv) {
  kvsieve::bench::Register();
  return kvsieve::bench::RunRegistered(argc, argv);
}
#endif  // HWY_ONCE
