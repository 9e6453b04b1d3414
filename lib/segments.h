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

// How many of `rows` rows (sinks left out) are stored by codecs that seal `group_rows` rows at
// once, when at least the last `tail` stay exact: whole groups.
inline std::int64_t SealedRows(std::int64_t rows, std::int64_t tail, int group_rows) {
  return std::max<std::int64_t>(0, rows - tail) / group_rows * group_rows;
}

// kept: increasing positions. sinks_end: one past the last position of an exact sink.
inline SegmentCuts CutSegments(std::span<const TokenPos> kept, TokenPos sinks_end,
                               std::int64_t tail, int group_rows) {
  const auto count = static_cast<std::int64_t>(kept.size());
  const auto sinks = std::lower_bound(kept.begin(), kept.end(), sinks_end) - kept.begin();
  return {sinks, sinks + SealedRows(count - sinks, tail, group_rows)};
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SEGMENTS_H_
