// Eviction after the first: decides again over the rows of one layer, and drops what lost.
#ifndef KVSIEVE_LIB_RESELECT_H_
#define KVSIEVE_LIB_RESELECT_H_

#include <cstdint>

#include "kvsieve/allocator.h"
#include "kvsieve/evict.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"
#include "lib/layer_state.h"

namespace kvsieve {

struct ReselectContext {
  const Evictor& evictor;
  Allocator& allocator;
  Parallel& parallel;
};

// Over the staged prompt: rows kept so far and those that came since. On an error nothing changes.
// *scratch_peak_bytes grows to what scoring took.
Status ReselectStaged(const ReselectContext& context, LayerState& layer,
                      std::int64_t* scratch_peak_bytes);

// Over the stored rows, as they are stored. On an error nothing changes.
Status ReselectStored(const ReselectContext& context, LayerState& layer,
                      std::int64_t* scratch_peak_bytes);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_RESELECT_H_
