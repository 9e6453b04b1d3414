// The inside of Cache, shared by the files that its members are in.
#ifndef KVSIEVE_LIB_CACHE_IMPL_H_
#define KVSIEVE_LIB_CACHE_IMPL_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kvsieve/cache.h"
#include "lib/attention.h"
#include "lib/layer_state.h"

namespace kvsieve {

class StateReader;
struct StateHeader;

struct Cache::Impl {
  std::shared_ptr<const Pipeline> pipeline;
  Allocator* allocator = nullptr;
  Parallel* parallel = nullptr;
  DecodeRows decode_rows = DecodeRows::kStored;
  SerialParallel serial;

  std::vector<LayerState> layers;
  bool finished = false;
  std::int64_t scratch_peak_bytes = 0;

  // The layers of a saved state whose head was read; on an error nothing changes.
  Status Restore(const StateHeader& header, std::uint64_t checksum, StateReader& in);

  Parallel& workers() { return parallel != nullptr ? *parallel : serial; }
};

struct AttendScratch::Impl {
  Impl() = default;
  explicit Impl(std::span<std::byte> lent) : memory(lent) {}

  AttendMemory memory;
  SerialParallel serial;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_CACHE_IMPL_H_
