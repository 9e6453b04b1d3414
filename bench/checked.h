// A benchmark checks what it computes before it times it: a wrong kernel may be very fast. A failed
// check fails the whole run, by its exit code.
#ifndef KVSIEVE_BENCH_CHECKED_H_
#define KVSIEVE_BENCH_CHECKED_H_

#include <benchmark/benchmark.h>

#include <cstdlib>

namespace kvsieve::bench {

// Tests set KVS_BENCH_WRONG_KERNEL to see that checks bite: what is measured then leaves out a part
// of its work, as a kernel that misses blocks would.
inline bool WrongKernelInjected() { return std::getenv("KVS_BENCH_WRONG_KERNEL") != nullptr; }

inline bool any_check_failed = false;

// Instead of timing.
inline void SkipWrong(benchmark::State& state, const char* what) {
  any_check_failed = true;
  state.SkipWithError(what);
}

// What main does once benchmarks are registered; returns its exit code.
inline int RunRegistered(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return any_check_failed ? 1 : 0;
}

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_CHECKED_H_
