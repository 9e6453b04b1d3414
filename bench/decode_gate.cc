// Quantized rows must not make decoding slower: attention of one token over compressed rows, held
// against f16 rows in the same run, 32 query heads on 8 KV heads of 128 dims, one thread.
//
//   decode_gate [ROWS [TARGET]]    default 8192 and the best; exit code 1 when a codec is over its
//                                  limit
//
// Times are this thread's. A codec without fused kernels is shown and not judged.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/ratio_gate.h"
#include "bench/timed_decode.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/targets.h"

namespace kvsieve::bench {
namespace {

constexpr int kRounds = 25;
constexpr int kTries = 5;

struct Limit {
  const char* store;
  double most;  // times f16
};
constexpr Limit kLimits[] = {{"kv=f16", 1.0},   {"kv=int8", 1.05}, {"kv=q8_0", 1.05},
                             {"kv=int4", 1.2},  {"kv=q4_0", 1.2},  {"kv=int4(group=row)", 1.2},
                             {"kv=turbo4", 1.2}};

int Run(std::int64_t rows) {
  const Prompt prompt(rows);
  std::vector<std::unique_ptr<TimedDecode>> caches;
  std::vector<GateContender> contenders;
  for (const Limit& limit : kLimits) {
    TimedDecode& cache = *caches.emplace_back(
        std::make_unique<TimedDecode>(std::string("none | ") + limit.store, prompt));
    const double most = cache.fused() ? limit.most : std::numeric_limits<double>::infinity();
    contenders.push_back({limit.store, most, [&cache] { return cache.Seconds(); }});
  }
  const std::vector<GateResult> results = RunGate(contenders, kRounds, kTries);
  std::printf("%lld rows, kernels %s\n%-20s %9s %8s %8s %6s\n", static_cast<long long>(rows),
              std::string(ActiveTarget()).c_str(), "store", "us/token", "GB/s", "of f16", "most");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const GateResult& result = results[i];
    std::printf("%-20s %9.1f %8.1f %8.2f %6.2f%s\n", result.name.c_str(), result.seconds * 1e6,
                static_cast<double>(caches[i]->bytes()) / result.seconds * 1e-9, result.ratio,
                result.most, result.passed ? "" : "  TOO SLOW");
  }
  return Passed(results) ? 0 : 1;
}

}  // namespace
}  // namespace kvsieve::bench

int main(int argc, char** argv) {
  const auto rows = kvsieve::ParseInt(argc > 1 ? argv[1] : "8192");
  if (argc > 3 || !rows.ok() || *rows < 64 || *rows > (1 << 20)) {
    std::fprintf(stderr, "usage: decode_gate [ROWS [TARGET]], ROWS from 64 to 1048576\n");
    return 2;
  }
  if (argc > 2) kvsieve::bench::Check(kvsieve::SelectTarget(argv[2]));
  return kvsieve::bench::Run(*rows);
}
