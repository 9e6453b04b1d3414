#include "bench/ratio_gate.h"

#include <algorithm>
#include <limits>

namespace kvsieve::bench {
std::vector<GateResult> RunGate(const std::vector<GateContender>& contenders, int rounds,
                                int tries) {
  std::vector<GateResult> results;
  for (const GateContender& contender : contenders) {
    results.push_back({contender.name, std::numeric_limits<double>::infinity(), 0.0,
                       results.empty() ? 1.0 : contender.most, false});
  }
  do {
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        results[i].seconds = std::min(results[i].seconds, contenders[i].step());
      }
    }
    for (GateResult& result : results) {
      result.ratio = result.seconds / results.front().seconds;
      result.passed = result.ratio <= result.most;
    }
  } while (--tries > 0 && !Passed(results));
  return results;
}

bool Passed(const std::vector<GateResult>& results) {
  return std::all_of(results.begin(), results.end(), [](const GateResult& r) { return r.passed; });
}

}  // namespace kvsieve::bench
