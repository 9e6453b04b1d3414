// The inside of Cache, shared by the files that its members are in.
#ifndef KVSIEVE_LIB_CACHE_IMPL_H_
#define KVSIEVE_LIB_CACHE_IMPL_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/str_cat.h"
#include "lib/attention.h"
#include "lib/decode_append.h"
#include "lib/layer_state.h"

namespace kvsieve {

class StateReader;
struct StateHeader;

// An error gets the layer's name; those of scoring have it already.
inline Status WithLayer(const LayerState& layer, Status status) {
  const std::string prefix = StrCat("layer ", layer.spec.layer, ": ");
  if (status.ok() || status.message().starts_with(prefix)) return status;
  return Status(status.error().code, StrCat(prefix, status.message()));
}

struct Cache::Impl {
  std::shared_ptr<const Pipeline> pipeline;
  Allocator* allocator = nullptr;
  Parallel* parallel = nullptr;
  DecodeRows decode_rows = DecodeRows::kStored;
  SerialParallel serial;

  std::vector<LayerState> layers;
  bool finished = false;
  VerifyRoom speculative;  // a setting, like the allocator
  std::int64_t scratch_peak_bytes = 0;

  // The layers of a saved state whose head was read; on an error nothing changes.
  Status Restore(const StateHeader& header, std::uint64_t checksum, StateReader& in);

  // Rows that were checked, of the types that the layer's shape names.
  Status AddRows(LayerState& layer, Phase phase, const HeadsView& keys, const HeadsView& values,
                 std::span<const TokenPos> positions);
  DecodeAppend DecodeInto(LayerState& layer);
  // The first `accepted` verify rows of every layer become decode rows, the others go. On an error
  // all stay open.
  Status CloseVerify(std::int64_t accepted);

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
