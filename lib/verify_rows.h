// Rows of one layer that may still be taken back: a draft that the model is checking. They lie
// apart from the stores, row-major in the type they came in, until they are accepted: rolling back
// touches nothing that was stored.
#ifndef KVSIEVE_LIB_VERIFY_ROWS_H_
#define KVSIEVE_LIB_VERIFY_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/codec.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"
#include "lib/exact_rows.h"

namespace kvsieve {

// How many rows a layer may hold, and whether the first one takes memory for all of them.
struct VerifyRoom {
  std::int64_t most = 64;
  bool reserved = false;
};

class VerifyRows {
 public:
  std::int64_t rows() const { return rows_; }
  std::span<const TokenPos> positions() const {
    return {positions_.As<TokenPos>(), static_cast<std::size_t>(rows_)};
  }

  std::int64_t RowsBefore(TokenPos end) const;

  // Copies the rows behind those held, scanning for NaN and Inf; takes memory for at most
  // `allowed.most`, which bounds the rows held. An error names side, head and row, and nothing
  // changes.
  Status Append(Allocator& allocator, const RowShape& shape, const HeadsView& keys,
                const HeadsView& values, std::span<const TokenPos> positions,
                NonFinitePolicy policy, VerifyRoom allowed);
  // The same rows with room for `room` in all, which is not less than rows().
  Result<VerifyRows> WithRoom(Allocator& allocator, const RowShape& shape, int kv_heads,
                              std::int64_t room) const;
  Result<VerifyRows> Clone(Allocator& allocator) const;
  // Forgets the rows from `rows` on; their room stays.
  void Truncate(std::int64_t rows) { rows_ = rows; }

  // The first `count` rows, as they came; of a side that lies in the other an empty view.
  HeadsView First(const RowShape& shape, Side side, std::int64_t count) const;
  // Elements of the first `count` rows that were NaN or Inf.
  std::int64_t ZeroedInFirst(std::int64_t count) const;
  // Rows [first, first + count) of one head, f32 [count, dim(side)].
  void ReadRows(const RowShape& shape, Side side, int head, RowIndex first, int count,
                float* out) const;

  std::int64_t resident_bytes() const {
    return static_cast<std::int64_t>(keys_.bytes() + values_.bytes() + positions_.bytes());
  }

 private:
  const Buffer& buffer(Side side) const { return side == Side::kKey ? keys_ : values_; }
  Buffer& buffer(Side side) { return side == Side::kKey ? keys_ : values_; }
  // Where a row of a head begins, counted in rows of `side`.
  std::size_t place(int head, RowIndex r) const {
    return static_cast<std::size_t>(r * kv_heads_ + head);
  }
  std::int64_t room() const { return std::ssize(zeroed_); }
  // The same for rows of these types: the memory may have been taken for smaller ones.
  std::int64_t RoomFor(const RowShape& shape) const;
  Status Copy(const RowShape& shape, Side side, const HeadsView& rows, NonFinitePolicy policy);

  Buffer keys_;  // [room][kv_heads][dim], so that more room moves nothing about
  Buffer values_;
  Buffer positions_;
  std::vector<std::int64_t> zeroed_;  // [room], elements of each row
  int kv_heads_ = 0;
  std::int64_t rows_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_VERIFY_ROWS_H_
