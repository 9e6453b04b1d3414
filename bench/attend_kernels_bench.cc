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
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/pure_read.h"
#include "kvsieve/float16.h"
#include "kvsieve/targets.h"
#include "quant/kernels.h"
#include "quant/layout.h"

#ifndef KVS_ATTEND_KERNELS_BENCH_ONCE_
#define KVS_ATTEND_KERNELS_BENCH_ONCE_
namespace kvsieve::quant {
// Softmax state of the four query heads of one KV head.
struct State {
  float maximum[kHeadTile];
  float sum[kHeadTile];
  float* acc;  // [kHeadTile, acc_stride]
  int acc_stride;
};

}  // namespace kvsieve::quant
#endif

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/attend_kernels_bench.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::quant {
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
}  // namespace kvsieve::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::quant {
namespace {

HWY_EXPORT(Softmax);

constexpr int kKvHeads = 8;
constexpr int kHeads = kHeadTile;
constexpr int kDim = 128;
constexpr int kBlocks = 512;  // per head and side: 32 768 rows
enum class Format { kF16, kInt8, kInt4, kTurbo4, kTurbo3, kTurbo2 };
constexpr const char* kFormatNames[] = {"f16", "int8", "int4", "turbo4", "turbo3", "turbo2"};
constexpr int kBits[] = {16, 8, 4, 4, 3, 2};
bool IsTurbo(Format format) { return format >= Format::kTurbo4; }

constexpr Codebook kCodebook = {
    {-127, -96, -75, -59, -45, -32, -18, -6, 6, 18, 32, 45, 59, 75, 96, 127}, 2.7326F / 127.0F};

// K and V blocks of all heads in one huge-page arena: [head][side][block].
class Arena {
 public:
  explicit Arena(Format format) : format_(format) {
    layout_.dim = kDim;
    if (format != Format::kF16) {
      layout_.bits = kBits[static_cast<int>(format)];
      layout_.codes = layout_.bits == 8   ? CodeLayout::kInt8
                      : layout_.bits == 4 ? CodeLayout::kNibble
                                          : CodeLayout::kBitPlanes;
      layout_.groups = format == Format::kInt4 ? 4 : 1;
      layout_.zeros = format == Format::kInt4;
    }
    block_bytes_ = layout_.block_bytes(kBlockRows);
    bytes_ = block_bytes_ * static_cast<std::size_t>(kBlocks) * 2 * kKvHeads;
    void* map = mmap(nullptr, RoundUp(bytes_, 2 << 20), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();
    data_ = static_cast<std::uint8_t*>(map);
    madvise(data_, bytes_, MADV_HUGEPAGE);
    Fill();
  }

  ~Arena() { munmap(data_, RoundUp(bytes_, 2 << 20)); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Format format() const { return format_; }
  std::size_t bytes() const { return bytes_; }
  const std::uint8_t* data() const { return data_; }

  KernelBlock Block(int head, Side side, int index) const {
    const std::uint8_t* data = At(head, side, index);
    KernelBlock b;
    b.codes = data;
    b.capacity_rows = b.rows = kBlockRows;
    b.dim = kDim;
    b.bits = layout_.bits;
    b.group = layout_.groups == 0 ? kDim : kDim / layout_.groups;
    if (layout_.groups > 0) {
      b.scales = reinterpret_cast<const std::uint16_t*>(data + layout_.scales_at(kBlockRows));
    }
    if (layout_.zeros) {
      b.zeros = reinterpret_cast<const std::uint16_t*>(data + layout_.zeros_at(kBlockRows));
    }
    if (IsTurbo(format_)) b.codebook = &kCodebook;
    const bool f16 = IsTurbo(format_) || format_ == Format::kF16;
    b.half_type = f16 ? HalfType::kF16 : HalfType::kBF16;
    b.ahead = At(head, side, std::min(index + 1, kBlocks - 1));
    b.ahead_bytes = block_bytes_;
    return b;
  }

  double Value(int head, Side side, int index, int row, int d) const {
    const KernelBlock b = Block(head, side, index);
    if (format_ == Format::kF16) {
      std::uint16_t bits;
      std::memcpy(&bits, b.codes + HalfAt(side, kDim, row, d).byte, 2);
      return ToFloat(F16{bits});
    }
    const int at = d / b.group * kBlockRows + row;
    const double scale =
        b.half_type == HalfType::kF16 ? ToFloat(F16{b.scales[at]}) : ToFloat(BF16{b.scales[at]});
    if (format_ == Format::kInt8) {
      return scale * static_cast<std::int8_t>(b.codes[Int8At(side, kDim, row, d).byte]);
    }
    const int code = Code(b, side, row, d);
    if (format_ == Format::kInt4) return scale * code + ToFloat(F16{b.zeros[at]});
    return scale * kCodebook.level_scale * kCodebook.level[code];
  }

 private:
  int Code(const KernelBlock& b, Side side, int row, int d) const {
    if (layout_.codes == CodeLayout::kNibble) {
      const CodeAt at = NibbleAt(side, kDim, row, d);
      return b.codes[at.byte] >> at.shift & 15;
    }
    BlockLayout layout = layout_;
    layout.side = side;
    int code = 0;
    for (const int width : {2, 1}) {
      if ((b.bits & width) == 0) continue;
      const CodeAt at = PlaneAt(layout, width, row, d);
      const int part = b.codes[at.byte] >> at.shift & ((1 << width) - 1);
      code |= part << PartShift(b.bits, width);
    }
    return code;
  }
  const std::uint8_t* At(int head, Side side, int index) const {
    const int stream = head * 2 + (side == Side::kValue ? 1 : 0);
    return data_ + static_cast<std::size_t>(stream * kBlocks + index) * block_bytes_;
  }
  // Random codes; scales and values such that logits have a deviation near 1.
  void Fill() {
    std::mt19937_64 random(42);
    for (std::size_t at = 0; at < bytes_; at += 8) {
      std::uint64_t word = random();
      // f16: sign and mantissa random, exponent 2^-1.
      if (format_ == Format::kF16) word = (word & 0x83FF83FF83FF83FFU) | 0x3800380038003800U;
      std::memcpy(data_ + at, &word, 8);
    }
    if (layout_.groups == 0) return;
    for (int i = 0; i < 2 * kKvHeads * kBlocks; ++i) {
      std::uint8_t* block = data_ + static_cast<std::size_t>(i) * block_bytes_;
      auto* scales = reinterpret_cast<std::uint16_t*>(block + layout_.scales_at(kBlockRows));
      auto* zeros = reinterpret_cast<std::uint16_t*>(block + layout_.zeros_at(kBlockRows));
      for (int s = 0; s < layout_.groups * kBlockRows; ++s) {
        const float unit = 1.0F + static_cast<float>(random() % 1024) / 1024.0F;
        if (IsTurbo(format_)) scales[s] = ToF16(0.5F * unit).bits;
        if (format_ == Format::kInt8) scales[s] = ToBF16(0.006F * unit).bits;
        if (format_ == Format::kInt4) scales[s] = ToBF16(0.1F * unit).bits;
        if (layout_.zeros) zeros[s] = ToF16(-0.75F * unit).bits;
      }
    }
  }

  Format format_;
  BlockLayout layout_;
  std::size_t block_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::uint8_t* data_ = nullptr;
};

void Score(Format format, const KernelBlock& b, const void* prepared, float* logits) {
  if (format == Format::kF16) return ScoreHalf(b, prepared, kHeads, logits);
  if (format == Format::kInt8) return ScoreInt8(b, prepared, kHeads, logits);
  if (b.bits == 4) return ScoreNibble(b, prepared, kHeads, logits);
  ScorePlanes(b, prepared, kHeads, logits);
}
void Accumulate(Format format, const KernelBlock& b, const float* weights, float* acc) {
  if (format == Format::kF16) return AccumulateHalf(b, weights, kHeads, acc);
  if (format == Format::kInt8) return AccumulateInt8(b, weights, kHeads, acc);
  if (b.bits == 4) return AccumulateNibble(b, weights, kHeads, acc);
  AccumulatePlanes(b, weights, kHeads, acc);
}

// Online softmax over the blocks of one KV head: out [kHeads, kDim].
void AttendHead(const Arena& arena, int head, const float* q, float* out) {
  alignas(64) std::uint8_t prepared[8192];
  const int group = arena.Block(head, Side::kKey, 0).group;
  if (arena.format() == Format::kF16) {
    PrepareHalfQueries(q, kHeads, kDim, prepared);
  } else {
    const auto prepare = arena.format() == Format::kInt8   ? PrepareIntQueries
                         : arena.format() == Format::kInt4 ? PrepareNibbleQueries
                                                           : PrepareCodebookQueries;
    prepare(q, kHeads, kDim, group, prepared);
  }
  const auto softmax = HWY_DYNAMIC_DISPATCH(Softmax);
  alignas(64) float logits[kHeads * kBlockRows];  // then weights
  alignas(64) float acc[kHeads * kDim] = {};
  State state = {{-1e30F, -1e30F, -1e30F, -1e30F}, {}, acc, kDim};
  for (int i = 0; i < kBlocks; ++i) {
    Score(arena.format(), arena.Block(head, Side::kKey, i), prepared, logits);
    softmax(logits, state);
    Accumulate(arena.format(), arena.Block(head, Side::kValue, i), logits, acc);
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
  for (int i = 0; i < kBlocks; ++i) {
    for (int r = 0; r < kBlockRows; ++r) {
      double key[kDim], value[kDim];
      for (int d = 0; d < kDim; ++d) {
        key[d] = arena.Value(0, Side::kKey, i, r, d);
        value[d] = arena.Value(0, Side::kValue, i, r, d);
      }
      for (int h = 0; h < kHeads; ++h) {
        double logit = 0.0;
        for (int d = 0; d < kDim; ++d) logit += q[h * kDim + d] * key[d];
        const double weight = std::exp(logit);
        sum[h] += weight;
        for (int d = 0; d < kDim; ++d) exact[h * kDim + d] += weight * value[d];
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
const Arena& ArenaOf(Format format) {
  static std::unique_ptr<Arena> arena;
  if (arena == nullptr || arena->format() != format) {
    arena.reset();
    arena = std::make_unique<Arena>(format);
  }
  return *arena;
}

// Each iteration reads all bytes once and then attends over them. of_read is the share of the
// read rate that attention reaches, from the medians of both.
void Attend(benchmark::State& state, Format format, std::string_view target) {
  const Arena& arena = ArenaOf(format);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(kDim)));
  std::vector<float> q(kKvHeads * kHeads * kDim), out(q.size());
  for (float& x : q) x = normal(random);
  if (!SelectTarget(target).ok()) return state.SkipWithError("target not available");
  // 16-bit rounding gives some 1e-5. A query of one byte is off by 0.29 / 64 of its largest
  // element, 3 deviations, so each logit by 0.014 of the logits' deviation, and outputs by about as
  // much of theirs; a wrong kernel is off by the whole.
  const bool byte_query = format != Format::kF16 && format != Format::kInt8;
  if (ErrorOfHead(arena, q.data()) > (byte_query ? 0.05 : 2e-4))
    return state.SkipWithError("wrong result");

  std::vector<double> reads, times;
  for (auto _ : state) {
    double start = Seconds();
    benchmark::DoNotOptimize(bench::PureRead(arena.data(), arena.bytes()));
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
  for (const Format format : {Format::kF16, Format::kInt8, Format::kInt4, Format::kTurbo4,
                              Format::kTurbo3, Format::kTurbo2}) {
    for (const std::string_view target : SupportedTargets()) {
      if (target == "SCALAR") continue;  // not a target for speed
      const std::string name = std::string("Attend/") + kFormatNames[static_cast<int>(format)] +
                               "/" + std::string(target);
      benchmark::RegisterBenchmark(name.c_str(), Attend, format, target)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace kvsieve::quant

int main(int argc, char** argv) {
  kvsieve::quant::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
#endif  // HWY_ONCE
