// The positions that came to one layer, kept or not, as runs without gaps: an engine that counts on
// makes one run, whatever the length.
#ifndef KVSIEVE_LIB_SEEN_POSITIONS_H_
#define KVSIEVE_LIB_SEEN_POSITIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

class StateReader;
class StateWriter;

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

  // Whether each of `positions`, which increase, was seen.
  bool HasAll(std::span<const TokenPos> positions) const;
  // lib/position_save.cc.
  void Save(StateWriter& out) const;
  static Result<SeenPositions> Load(StateReader& in);

 private:
  struct Run {
    TokenPos first = 0;
    std::int64_t tokens_before = 0;  // in the runs before it
  };
  // One past the last position of run `r`.
  std::int64_t end_of(std::size_t r) const {
    const std::int64_t tokens_after = r + 1 < runs_.size() ? runs_[r + 1].tokens_before : tokens_;
    return runs_[r].first + tokens_after - runs_[r].tokens_before;
  }
  // One past the last position; -1, which no position follows, when there is none.
  std::int64_t next() const { return runs_.empty() ? -1 : end_of(runs_.size() - 1); }

  std::vector<Run> runs_;
  std::int64_t tokens_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SEEN_POSITIONS_H_
