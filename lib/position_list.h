// Positions of the rows of one segment, strictly increasing, in little memory: in the form of
// lib/position_store.h that takes the least when rows are added. A list that grows stays in its
// form until that takes a quarter more than the best, so that rows are copied rarely.
#ifndef KVSIEVE_LIB_POSITION_LIST_H_
#define KVSIEVE_LIB_POSITION_LIST_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/byte_report.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/position_store.h"

namespace kvsieve {

// Of a list of positions.
struct PositionBytes {
  std::int64_t live = 0;      // the positions it holds
  std::int64_t resident = 0;  // asked of the allocator

  // Metadata, on the side of K, and reserve.
  void AddTo(ByteReport& report) const {
    report.metadata_bytes += live;
    report.key_kept_bytes += live;
    report.reserved_bytes += resident - live;
  }
};

class PositionList {
 public:
  // bytes() of a list built with these positions. Between spans of as many rows, a longer one takes
  // as much or more.
  static PositionBytes BytesFor(const PositionSpan& positions);

  // No list of at most `rows` rows, the last less than `span` behind the first, takes more, however
  // it grew: lists are slow to change their form, and buffers grow by half.
  static PositionBytes MostBytesFor(std::int64_t rows, std::int64_t span);

  // Precondition: `positions` strictly increasing, non-negative.
  static Result<PositionList> Build(Allocator& allocator, std::span<const TokenPos> positions);

  Result<PositionList> Clone(Allocator& allocator) const;
  // lib/position_save.cc.
  void Save(StateWriter& out) const;
  static Result<PositionList> Load(Allocator& allocator, StateReader& in);

  std::int64_t rows() const { return rows_; }
  bool empty() const { return rows_ == 0; }
  TokenPos first() const { return first_; }  // precondition: !empty(), also of last()
  TokenPos last() const { return last_; }

  // Positions of rows [begin, begin + count). Precondition: count <= kBlockRows. Quickest where
  // begin is a multiple of it.
  void Read(RowIndex begin, int count, TokenPos* out) const;

  // All positions, [rows()].
  void ReadAll(TokenPos* out) const;
  // Positions of some rows, increasing.
  std::vector<TokenPos> ReadChosen(std::span<const RowIndex> rows) const;

  // Makes room for `more`, strictly increasing and past last(); Append of these cannot fail. Shows
  // nothing: without Append, or with another Reserve before it, the list is what it was.
  Status Reserve(Allocator& allocator, std::span<const TokenPos> more);
  // Precondition: reserved.
  void Append(TokenPos position);
  // Forgets the first `count` rows. Cheap for whole blocks.
  void DropFront(std::int64_t count);

  // Forgetting the rows at `end` and behind it: preparing is all that can fail, and changes
  // nothing.
  struct Cut;
  Result<Cut> PrepareTrim(Allocator& allocator, TokenPos end) const;
  void Trim(Cut cut);

  std::int64_t live_bytes() const { return rows_ == 0 ? 0 : store_.bytes(rows_, last_); }
  std::int64_t resident_bytes() const { return store_.resident_bytes() + next_.resident_bytes(); }
  PositionBytes bytes() const { return {live_bytes(), resident_bytes()}; }

 private:
  bool KeepsForm(const PositionSpan& room) const;
  // The first `rows` rows in another form, with room for all of `room`.
  Result<PositionStore> CopyAs(Allocator& allocator, PositionForm form, std::int64_t rows,
                               const PositionSpan& room) const;
  std::int64_t RowsBefore(TokenPos end) const;

  std::int64_t rows_ = 0;
  TokenPos first_ = 0;
  TokenPos last_ = 0;
  PositionStore store_;
  PositionStore
      next_;  // the same rows in the form that the reserved ones need; empty: store_ will do
};

// What stays: how many rows, the last one's position and, where it takes another form, the rows.
struct PositionList::Cut {
  std::int64_t rows = 0;
  TokenPos last = 0;
  bool becomes_run = false;
  PositionStore store;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_POSITION_LIST_H_
