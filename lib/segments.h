// Where the rows that a head keeps go: [exact sinks][tiers][exact tail]. One rule, for storing the
// rows and for telling beforehand how many bytes they will take.
#ifndef KVSIEVE_LIB_SEGMENTS_H_
#define KVSIEVE_LIB_SEGMENTS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "kvsieve/types.h"

namespace kvsieve {

// Kept rows [0, sinks) go to the exact sinks, [sinks, tail_begin) to the tiers, the others to the
// exact tail.
struct SegmentCuts {
  std::int64_t sinks = 0;
  std::int64_t tail_begin = 0;
};

// kept: increasing positions. sinks_end: one past the last position of an exact sink. tail: rows
// that stay exact at the end.
inline SegmentCuts CutSegments(std::span<const TokenPos> kept, TokenPos sinks_end,
                               std::int64_t tail) {
  const auto count = static_cast<std::int64_t>(kept.size());
  const auto sinks = std::lower_bound(kept.begin(), kept.end(), sinks_end) - kept.begin();
  return {sinks, std::max<std::int64_t>(sinks, count - tail)};
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SEGMENTS_H_
