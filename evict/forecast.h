// What a decision will keep, told before there are rows or scores.
#ifndef KVSIEVE_EVICT_FORECAST_H_
#define KVSIEVE_EVICT_FORECAST_H_

#include "evict/set_table.h"
#include "kvsieve/evict.h"

namespace kvsieve::evict {

// Evictor::Foresee. Takes the steps of a decision (evict/budget_plan.h) but for the scores.
Result<Forecast> Foresee(const EvictStage& stage, const ForecastCall& call);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_FORECAST_H_
