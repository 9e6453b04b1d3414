// Holds the time of some contenders against that of the first, on a machine that does other things
// too.
#ifndef KVSIEVE_BENCH_RATIO_GATE_H_
#define KVSIEVE_BENCH_RATIO_GATE_H_

#include <functional>
#include <string>
#include <vector>

namespace kvsieve::bench {

struct GateContender {
  std::string name;
  double most = 1.0;             // times the first contender's time; not used for the first
  std::function<double()> step;  // does the work once, returns its seconds
};

struct GateResult {
  std::string name;
  double seconds = 0.0;  // of the best round
  double ratio = 0.0;    // to the first contender's
  double most = 0.0;
  bool passed = false;
};

// Contenders take turns, and the best round of each counts: what disturbs a round only makes it
// longer. After `rounds` rounds the gate ends if all ratios are within their limits; if not, the
// machine may have been busy, and as many rounds again follow, up to `tries` times.
std::vector<GateResult> RunGate(const std::vector<GateContender>& contenders, int rounds,
                                int tries);

bool Passed(const std::vector<GateResult>& results);

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_RATIO_GATE_H_
