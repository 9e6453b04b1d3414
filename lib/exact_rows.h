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

// Element types and dims of the rows of one layer.
struct RowShape {
  ElementType key_type = ElementType::kF32;
  ElementType value_type = ElementType::kF32;
  int key_dim = 0;
  int value_dim = 0;

  ElementType type(Side side) const { return side == Side::kKey ? key_type : value_type; }
  int dim(Side side) const { return side == Side::kKey ? key_dim : value_dim; }
  std::size_t row_bytes(Side side) const {
    return static_cast<std::size_t>(dim(side)) * ElementBytes(type(side));
  }
  // Of K and V of a row in a plain f16 cache.
  std::int64_t f16_row_bytes() const { return std::int64_t{2} * (key_dim + value_dim); }
};

class ExactRows {
 public:
  std::int64_t rows() const { return positions_.rows(); }
  const PositionList& positions() const { return positions_; }

  // Room for rows at positions `more`; Append of these cannot fail.
  Status Reserve(Allocator& allocator, const RowShape& shape, std::span<const TokenPos> more);
  // key, value: one row each, in the shape's types.
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
    return buffer(side).data() + static_cast<std::size_t>(begin_ + r) * shape.row_bytes(side);
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

// One side of ExactRows, as attention reads it.
class ExactRowSource final : public RowSource {
 public:
  ExactRowSource(const ExactRows& exact, const RowShape& shape, Side side)
      : exact_(exact), shape_(shape), side_(side) {}
  std::int64_t rows() const override { return exact_.rows(); }
  int dim() const override { return shape_.dim(side_); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    exact_.ReadRows(shape_, side_, first, count, out);
  }

 private:
  const ExactRows& exact_;
  const RowShape& shape_;
  Side side_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_EXACT_ROWS_H_
