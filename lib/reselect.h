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
  const TierRule&
      tiers;  // of rows that are stored: where they move when they rank low; may be empty
  Allocator& allocator;
  Parallel& parallel;
};

// Over the staged prompt: rows kept so far and those that came since. Returns the bytes that
// scoring took. On an error nothing changes.
Result<std::int64_t> ReselectStaged(const ReselectContext& context, LayerState& layer);

// Over the stored rows, as they are stored. The same; what moved to a colder tier is counted in
// `layer`.
Result<std::int64_t> ReselectStored(const ReselectContext& context, LayerState& layer);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_RESELECT_H_
