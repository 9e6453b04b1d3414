// Rows of one head, K and V, row-major in the type they came in: attention sinks and the tail.
#ifndef KVSIEVE_LIB_EXACT_ROWS_H_
#define KVSIEVE_LIB_EXACT_ROWS_H_

#include <cstdint>
#include <span>

#include "kvsieve/allocator.h"
#include "kvsieve/byte_report.h"
#include "kvsieve/codec.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"
#include "lib/position_list.h"

namespace kvsieve {

class StateReader;
class StateWriter;

// Element types and dims of the rows of one layer, and where they lie.
struct RowShape {
  ElementType key_type = ElementType::kF32;
  ElementType value_type = ElementType::kF32;  // of K's where V lies in K
  int key_dim = 0;
  int value_dim = 0;
  bool value_is_key_prefix = false;  // V is the first elements of K and has no memory of its own

  ElementType type(Side side) const { return side == Side::kKey ? key_type : value_type; }
  int dim(Side side) const { return side == Side::kKey ? key_dim : value_dim; }
  // The side whose memory holds `side`.
  Side holder(Side side) const { return value_is_key_prefix ? Side::kKey : side; }
  // What a row takes in memory of its own: 0 for a side that lies in the other.
  std::size_t row_bytes(Side side) const {
    if (holder(side) != side) return 0;
    return static_cast<std::size_t>(dim(side)) * ElementBytes(type(side));
  }
  // Elements from one row to the next, where rows lie row-major.
  int row_stride(Side side) const { return dim(holder(side)); }
  std::size_t stride_bytes(Side side) const { return row_bytes(holder(side)); }
  // Of K and V of a row in a plain f16 cache.
  std::int64_t f16_row_bytes() const {
    return std::int64_t{2} * (key_dim + (value_is_key_prefix ? 0 : value_dim));
  }
  // Rows that lie row-major, as f32 [count, dim(side)].
  void ReadRowMajor(Side side, const std::uint8_t* rows, int count, float* out) const;
};

class ExactRows {
 public:
  std::int64_t rows() const { return positions_.rows(); }
  const PositionList& positions() const { return positions_; }

  // Room for rows at positions `more`; Append of these cannot fail.
  Status Reserve(Allocator& allocator, const RowShape& shape, std::span<const TokenPos> more);
  // key, value: one row each, in the shape's types. `value` is not read where V lies in K.
  void Append(const RowShape& shape, const void* key, const void* value, TokenPos position);
  void DropFront(const RowShape& shape, std::int64_t count);
  void Trim(PositionList::Cut cut);

  Result<ExactRows> Clone(Allocator& allocator) const;
  // lib/rows_save.cc.
  void Save(const RowShape& shape, StateWriter& out) const;
  static Result<ExactRows> Load(Allocator& allocator, const RowShape& shape, StateReader& in);
  // Some of the rows, in memory of their own.
  Result<ExactRows> Keep(Allocator& allocator, const RowShape& shape,
                         std::span<const RowIndex> rows) const;

  const std::uint8_t* row(const RowShape& shape, Side side, RowIndex r) const {
    return buffer(shape.holder(side)).data() +
           static_cast<std::size_t>(begin_ + r) * shape.stride_bytes(side);
  }
  void ReadRows(const RowShape& shape, Side side, RowIndex first, int count, float* out) const;

  // What AddBytes says of `rows` rows that were reserved together.
  static ByteReport BytesOf(const RowShape& shape, std::int64_t rows,
                            const PositionBytes& positions);
  // Payload, positions and reserve; not rows_kept, which is the caller's count.
  void AddBytes(const RowShape& shape, ByteReport& report) const;

 private:
  const Buffer& buffer(Side side) const { return side == Side::kKey ? keys_ : values_; }

  Buffer keys_;
  Buffer values_;
  RowIndex begin_ = 0;  // rows dropped from the front whose room is not yet used again
  PositionList positions_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_EXACT_ROWS_H_
