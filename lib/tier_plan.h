// Gives every row of a prompt a tier, or none, within a budget in bytes. Evict tells what each row
// is worth (LossEstimator), the stores what a row takes and how far it is off; here the two meet.
#ifndef KVSIEVE_LIB_TIER_PLAN_H_
#define KVSIEVE_LIB_TIER_PLAN_H_

#include <span>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"
#include "lib/byte_budget.h"
#include "lib/layer_state.h"
#include "lib/tier_errors.h"

namespace kvsieve {

// The price of a byte at which the rows take what the budget holds, by bisection; then the best
// steps beyond it, one by one, until one does not fit (lib/tier_steps.h). With scope=layer or
// kv_head each layer or head has its share of the budget, by its full bytes, and its own price.
//
// At most one step, and what positions are counted for too much, is left of the budget, unless
// every row is where it loses least: a tier that loses more than a smaller one is not bought.
//
// Rows of the window are in a tier whose codes have 4 bits or more, in the finest where none has;
// sinks that are not exact are in the finest. When these alone pass the budget they stay, and the
// notes say so. Tiers are used in the order of their bytes; of two with as many, the first.
//
// Bytes are counted as KeptBytes counts them, positions as if each tier reached from the first row
// to the last: what is kept, which the notes tell, is never more. More bytes never mean more
// expected loss. A pure function of losses, errors and sizes: the same for any number of workers.
Result<std::vector<LayerDecision>> PlanTiers(const ByteBudgetCall& call, Parallel& parallel,
                                             ScoreScratch* scratch);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_TIER_PLAN_H_
