// waterfill: the evict stage that plans in bytes (LossEstimator).
#ifndef KVSIEVE_EVICT_WATERFILL_H_
#define KVSIEVE_EVICT_WATERFILL_H_

#include <memory>
#include <string_view>

#include "kvsieve/evict.h"
#include "kvsieve/spec_args.h"

namespace kvsieve::evict {

inline constexpr std::string_view kWaterfill = "waterfill";

Result<std::shared_ptr<const Evictor>> MakeWaterfill(const SpecCall& call);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_WATERFILL_H_
