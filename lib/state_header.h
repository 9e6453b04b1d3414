// The head of a saved cache: what was saved and how long each layer's section is.
#ifndef KVSIEVE_LIB_STATE_HEADER_H_
#define KVSIEVE_LIB_STATE_HEADER_H_

#include <cstdint>

#include "kvsieve/result.h"
#include "kvsieve/saved_state.h"
#include "lib/state_stream.h"

namespace kvsieve {

struct StateHeader : StateInfo {
  std::int64_t scratch_peak_bytes = 0;
};

// The seed of the checksum of layer `index`: a section of another state, or of another layer, does
// not fit. header_checksum: what WriteStateHeader or ReadStateHeader gave.
inline std::uint64_t SectionSeed(std::uint64_t header_checksum, std::size_t index) {
  return header_checksum + index;
}

// Bytes of the whole state are computed. Fails when the head is too long.
Status WriteStateHeader(const StateHeader& header, StateWriter& out, std::uint64_t* checksum);

// `source` is the one that `in` reads. Checks all of the head, and that the source holds the layers
// that it promises, neither less nor more.
Result<StateHeader> ReadStateHeader(const ByteSource& source, StateReader& in,
                                    std::uint64_t* checksum);

// "layer 3: 32/8 heads, dims 128/128, scale 0.088, ...": every member, so that equal texts are
// equal shapes.
std::string ShapeText(const LayerSpec& layer);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_STATE_HEADER_H_
