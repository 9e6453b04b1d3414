// A scorer and a selection make an evictor.
#ifndef KVSIEVE_EVICT_EVICTOR_H_
#define KVSIEVE_EVICT_EVICTOR_H_

#include <memory>

#include "evict/scorers.h"
#include "evict/selection.h"
#include "kvsieve/evict.h"

namespace kvsieve::evict {

std::shared_ptr<const Evictor> ComposeEvictor(ScorerParts parts, Selection selection);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_EVICTOR_H_
