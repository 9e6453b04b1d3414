// The instruction sets kernels can run on. By default the best one that the CPU has; tests,
// benchmarks and `--target` choose a lesser one.
#ifndef KVSIEVE_TARGETS_H_
#define KVSIEVE_TARGETS_H_

#include <string_view>
#include <vector>

#include "kvsieve/result.h"

namespace kvsieve {

// Names of the targets that were compiled in and that this CPU has, best first:
// "AVX3_VNNI" (AVX-512 with VNNI), "AVX3" (AVX-512), "AVX2", "SCALAR" (or "NEON" elsewhere).
std::vector<std::string_view> SupportedTargets();

// The target that kernels run on now.
std::string_view ActiveTarget();

// True when kernels may use AVX-512 VNNI: the CPU has it and no lesser target was chosen.
bool VnniActive();

// Makes every kernel of this process run on `name` (in any case), on the best one again when empty.
// Not thread-safe: call it before other calls of the library, never beside one.
Status SelectTarget(std::string_view name);

}  // namespace kvsieve

#endif  // KVSIEVE_TARGETS_H_
