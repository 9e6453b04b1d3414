// What a saved cache (Cache::Save) says of itself, without loading it. docs/state.md describes the
// format.
#ifndef KVSIEVE_SAVED_STATE_H_
#define KVSIEVE_SAVED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/byte_stream.h"
#include "kvsieve/cache.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

// The format that this build writes; it reads all from the oldest on. A format keeps its number:
// what changes the bytes takes the next one, and golden files hold the old ones to it.
inline constexpr int kStateVersion = 3;
inline constexpr int kOldestStateVersion = 1;

struct SavedLayer {
  LayerSpec spec;
  std::vector<std::string> stores;  // per tier, "k=int8, v=int4(group=32,asym)"
  std::int64_t bytes = 0;           // of its section
};

struct StateInfo {
  int version = kStateVersion;
  std::int64_t bytes = 0;  // of the whole state
  std::string spec;        // canonical
  std::string identity;    // the caller's, given to Save
  std::vector<SavedLayer> layers;
  DecodeRows decode_rows = DecodeRows::kStored;
  bool finished = false;      // FinishPrefill was called
  bool rows_rounded = false;  // some rows are stored in a form that does not hold all their bits
  bool rows_dropped = false;  // some tokens have no row: evicted, or out of a sliding window

  // Whether attention over the state may differ from attention over all rows as they came.
  bool lossy() const { return rows_rounded || rows_dropped; }
};

// Whether bytes that begin like this are a saved state, of whatever version.
bool BeginsSavedState(std::span<const std::byte> bytes);

// Reads and checks the head of a saved state, which ends where the first layer begins.
Result<StateInfo> ReadStateInfo(ByteSource& source);

}  // namespace kvsieve

#endif  // KVSIEVE_SAVED_STATE_H_
