// Bounds of what a plan in bytes (waterfill) takes. Which rows go to which tier is for scores to
// say; the budget says how much they take together.
#ifndef KVSIEVE_LIB_PLANNED_BYTES_H_
#define KVSIEVE_LIB_PLANNED_BYTES_H_

#include <span>

#include "kvsieve/evict.h"
#include "kvsieve/plan_bytes.h"
#include "lib/head_bytes.h"

namespace kvsieve {

// Of all layers right after the prompt, all but prefill_peak. Nothing is told of the least. The
// most is the budget, or what must stay where that is more: sinks, the window, statistics.
// seen: what each layer has seen by then.
BytePlan BoundPlanned(const Evictor& evictor, std::span<const HeadSetting> settings,
                      std::span<const ByteReport> seen);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_PLANNED_BYTES_H_
