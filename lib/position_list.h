// Positions of the rows of one segment, strictly increasing, in little memory.
//
//   run      a list without gaps: its first position, 4 bytes
//   bitmap   one bit per position in [first, last], and the position of every 64th row, so that a
//            block's positions are found without counting from the start
//   list     4 bytes per row
// With gaps the smaller of bitmap and list is chosen when the first gap appears.
#ifndef KVSIEVE_LIB_POSITION_LIST_H_
#define KVSIEVE_LIB_POSITION_LIST_H_

#include <cstdint>
#include <span>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"

namespace kvsieve {

class PositionList {
 public:
  // Precondition: `positions` strictly increasing, non-negative.
  static Result<PositionList> Build(Allocator& allocator, std::span<const TokenPos> positions);

  std::int64_t rows() const { return rows_; }
  bool empty() const { return rows_ == 0; }
  TokenPos first() const { return first_; }  // precondition: !empty(), also of last()
  TokenPos last() const { return last_; }

  // Positions of rows [begin, begin + count). Precondition: begin a multiple of kBlockRows,
  // count <= kBlockRows.
  void Read(RowIndex begin, int count, TokenPos* out) const;

  // Makes room for `more`, strictly increasing and past last(); Append of these cannot fail.
  Status Reserve(Allocator& allocator, std::span<const TokenPos> more);
  // Precondition: reserved.
  void Append(TokenPos position);
  // Forgets the first `count` rows. Cheap for whole blocks.
  void DropFront(std::int64_t count);

  std::int64_t live_bytes() const;
  std::int64_t resident_bytes() const {
    return static_cast<std::int64_t>(body_.bytes() + marks_.bytes());
  }

 private:
  enum class Form : std::uint8_t { kRun, kBitmap, kList };
  static bool BitmapIsSmaller(std::int64_t rows, std::int64_t span);
  bool StaysRun(std::span<const TokenPos> more) const;
  Status Spread(Allocator& allocator, std::span<const TokenPos> more);
  Status Room(Allocator& allocator, std::int64_t rows_room, TokenPos last);
  std::int64_t body_bytes(std::int64_t rows, TokenPos last) const;
  std::int64_t mark_bytes(std::int64_t rows) const;
  void MarkAgain(RowIndex dropped);
  void SetBit(TokenPos position) {
    const std::int64_t bit = position - base_;
    body_.data()[bit / 8] |= static_cast<std::uint8_t>(1U << (bit % 8));
  }

  Form form_ = Form::kRun;
  std::int64_t rows_ = 0;
  TokenPos first_ = 0;
  TokenPos last_ = 0;
  TokenPos base_ = 0;  // position of bit 0
  Buffer body_;        // first position, bitmap or list
  Buffer marks_;       // bitmap only: position of rows 0, 64, 128, ...
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_POSITION_LIST_H_
