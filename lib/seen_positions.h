// The positions that came to one layer, kept or not, as runs without gaps: an engine that counts on
// makes one run, whatever the length.
#ifndef KVSIEVE_LIB_SEEN_POSITIONS_H_
#define KVSIEVE_LIB_SEEN_POSITIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/types.h"

namespace kvsieve {

class SeenPositions {
 public:
  std::int64_t tokens() const { return tokens_; }
  std::int64_t TokensBefore(TokenPos position) const;

  // `more`: strictly increasing and past those seen. After Reserve, Append of these takes no
  // memory.
  void Reserve(std::span<const TokenPos> more);
  void Append(std::span<const TokenPos> more);
  // Forgets the positions from `end` on.
  void TrimTo(TokenPos end);

 private:
  struct Run {
    TokenPos first = 0;
    std::int64_t tokens_before = 0;  // in the runs before it
  };
  // One past the last position; -1, which no position follows, when there is none.
  std::int64_t next() const {
    return runs_.empty() ? -1 : runs_.back().first + tokens_ - runs_.back().tokens_before;
  }

  std::vector<Run> runs_;
  std::int64_t tokens_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SEEN_POSITIONS_H_
