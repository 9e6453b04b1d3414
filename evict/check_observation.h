// Whether what an evictor is given fits together. Errors name layer and head.
#ifndef KVSIEVE_EVICT_CHECK_OBSERVATION_H_
#define KVSIEVE_EVICT_CHECK_OBSERVATION_H_

#include "kvsieve/evict.h"

namespace kvsieve::evict {

// Shapes, sources and positions of one layer.
Status CheckObservation(const Observation& observation, bool needs_values);

// That all heads of `layer` have the rows of head 0 of `first`, as one set for all of them needs.
Status CheckSamePositions(const Observation& first, const Observation& layer);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_CHECK_OBSERVATION_H_
