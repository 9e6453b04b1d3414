// A scorer and a selection make an evictor; `preset` is empty or a name in evict/presets.h.
#ifndef KVSIEVE_EVICT_EVICTOR_H_
#define KVSIEVE_EVICT_EVICTOR_H_

#include <memory>
#include <string_view>

#include "evict/scorers.h"
#include "evict/selection.h"
#include "kvsieve/evict.h"

namespace kvsieve::evict {

std::shared_ptr<const Evictor> ComposeEvictor(ScorerParts parts, Selection selection,
                                              std::string_view preset);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_EVICTOR_H_
