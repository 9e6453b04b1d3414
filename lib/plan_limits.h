// What PlanBytes refuses, and why.
#ifndef KVSIEVE_LIB_PLAN_LIMITS_H_
#define KVSIEVE_LIB_PLAN_LIMITS_H_

#include "kvsieve/evict.h"
#include "kvsieve/plan_bytes.h"

namespace kvsieve {

// Before anything is known: numbers of tokens, and what no bounds are known of.
Status CheckRequest(const Pipeline& pipeline, const PlanRequest& request);

// Of a pipeline with tiers: these hold a number of rows, but for a few, where heads keep one.
Status CheckTiers(const Forecast& forecast);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_PLAN_LIMITS_H_
