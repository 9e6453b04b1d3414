// Strictly increasing positions in memory, in one of four forms.
//
//   run      no gaps: the first position, 4 bytes
//   bitmap   one bit per position from a base to the last, and the position of every 64th row
//   list     4 bytes per row
//   split    position - base = high * 2^low_bits + low
//              body    bit `high + row` is set for every row: rows + (last - base) / 2^low_bits
//              bits blocks  low bits of 64 rows, 8 * low_bits bytes, then 4 bytes: the bit of the
//              row
//                      behind them; so on, and the low bits of the last rows
//            With the best low_bits at most 2 + log2(span / rows) bits a row, 4 bytes per 64 rows
//            and 6 bytes of rounding. Elias, "Efficient storage and retrieval by content and
//            address of static files", JACM 21 (1974); Fano, MIT Project MAC Memo 61 (1971).
//
// Marks of every 64th row let a block's positions be read without counting from the start. How
// many bytes a form takes depends on the number of rows and the span alone.
#ifndef KVSIEVE_LIB_POSITION_STORE_H_
#define KVSIEVE_LIB_POSITION_STORE_H_

#include <algorithm>
#include <cstdint>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"

namespace kvsieve {

class StateReader;
class StateWriter;

// Increasing positions, as far as their size depends on them.
struct PositionSpan {
  std::int64_t rows = 0;
  TokenPos first = 0;
  TokenPos last = 0;

  std::int64_t length() const { return std::int64_t{last} - first + 1; }
};

struct PositionForm {
  enum class Kind : std::uint16_t { kRun, kBitmap, kList, kSplit };  // as in saved states
  static constexpr int kMaxLowBits = 30;

  Kind kind = Kind::kRun;
  std::uint16_t low_bits = 0;  // split only

  // The form that takes the fewest bytes; of equals the one that is read fastest. A run where there
  // are no gaps. Precondition: positions.rows > 0.
  static PositionForm Smallest(const PositionSpan& positions);
  bool operator==(const PositionForm&) const = default;
};

// Rows and their last position are the caller's to know. Bits behind the last row are 0.
class PositionStore {
 public:
  PositionStore() = default;
  // base: of the bitmap and of the split, at most the first position; for the split less than
  // 2^low_bits before it.
  PositionStore(PositionForm form, TokenPos base) : form_(form), base_(base) {}
  Result<PositionStore> Clone(Allocator& allocator) const;

  const PositionForm& form() const { return form_; }
  TokenPos base() const { return base_; }
  bool has_memory() const { return body_.bytes() > 0; }

  // Of `rows` rows, the last at `last`.
  std::int64_t bytes(std::int64_t rows, TokenPos last) const {
    return body_bytes(rows, last) + block_bytes(rows);
  }
  // What Grow asks a new store to have. A form that loses its gaps becomes a run in place, so there
  // is always room for one.
  std::int64_t room(std::int64_t rows, TokenPos last) const {
    return body_room(rows, last) + block_bytes(rows);
  }
  std::int64_t resident_bytes() const {
    return static_cast<std::int64_t>(body_.bytes() + blocks_.bytes());
  }

  // Room for all rows of `room`; those of `used` move along.
  Status Grow(Allocator& allocator, const PositionSpan& room, const PositionSpan& used);
  // The next row; precondition: there is room.
  void Put(RowIndex row, TokenPos position);
  // Positions of rows [begin, begin + count). Precondition: count <= kBlockRows and, but for runs
  // and lists, all of one block of 64 rows.
  void Read(RowIndex begin, int count, TokenPos* out) const;

  // In place; the form stays. Rows [count, count + kept.rows) become the first ones.
  void DropFront(std::int64_t count, const PositionSpan& kept);
  // In place: of `rows` rows, the last at `last`, those of `kept` stay.
  void DropBehind(const PositionSpan& kept, std::int64_t rows, TokenPos last);
  // In place, of any form.
  void BecomeRun(TokenPos first);

  // lib/position_save.cc: without marks, which Load makes again. Load checks all of it against
  // `positions`; form and base are checked before.
  void Save(std::int64_t rows, TokenPos last, StateWriter& out) const;
  Status Load(Allocator& allocator, const PositionSpan& positions, StateReader& in);

 private:
  std::int64_t body_bytes(std::int64_t rows, TokenPos last) const;
  std::int64_t body_room(std::int64_t rows, TokenPos last) const {
    return std::max<std::int64_t>(body_bytes(rows, last), sizeof(TokenPos));
  }
  std::int64_t block_bytes(std::int64_t rows) const;
  std::int64_t stride() const { return kBlockRows / 8 * std::int64_t{form_.low_bits} + 4; }
  std::uint8_t* low_bits_of(std::int64_t block) { return blocks_.data() + block * stride(); }
  // Of the split, of a block behind the first.
  std::uint32_t* mark_of(std::int64_t block) {
    return reinterpret_cast<std::uint32_t*>(low_bits_of(block) - sizeof(std::uint32_t));
  }
  std::int64_t bit_of(RowIndex row, TokenPos position) const {
    return ((std::int64_t{position} - base_) >> form_.low_bits) + row;
  }

  void PutSplit(RowIndex row, TokenPos position);
  void ReadBitmap(RowIndex begin, int count, TokenPos* out) const;
  void ReadSplit(RowIndex begin, int count, TokenPos* out) const;
  void DropBits(RowIndex dropped, const PositionSpan& kept);
  void DropSplit(RowIndex dropped, const PositionSpan& kept);
  Status LoadBitmap(const PositionSpan& positions, StateReader& in);
  Status LoadList(const PositionSpan& positions, StateReader& in);
  Status LoadSplit(const PositionSpan& positions, StateReader& in);

  PositionForm form_;
  TokenPos base_ = 0;
  Buffer body_;    // first position, bits or list
  Buffer blocks_;  // bitmap: position of rows 0, 64, 128, ...; split: low bits and marks
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_POSITION_STORE_H_
