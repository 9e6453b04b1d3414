// The inside of Cache, shared by cache.cc and cache_report.cc.
#ifndef KVSIEVE_LIB_CACHE_IMPL_H_
#define KVSIEVE_LIB_CACHE_IMPL_H_

#include <memory>
#include <vector>

#include "kvsieve/cache.h"
#include "lib/attention.h"
#include "lib/layer_state.h"

namespace kvsieve {

struct Cache::Impl {
  std::shared_ptr<const Pipeline> pipeline;
  Allocator* allocator = nullptr;
  Parallel* parallel = nullptr;
  DecodeRows decode_rows = DecodeRows::kStored;
  SerialParallel serial;

  std::vector<LayerState> layers;
  bool finished = false;
  std::int64_t scratch_peak_bytes = 0;

  Parallel& workers() { return parallel != nullptr ? *parallel : serial; }
};

struct AttendScratch::Impl {
  AttendMemory memory;
  SerialParallel serial;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_CACHE_IMPL_H_
