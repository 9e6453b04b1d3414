#include "lib/exact_rows.h"

#include <cstring>
#include <utility>
#include <vector>

#include "kvsieve/float16.h"

namespace kvsieve {

void RowShape::ReadRowMajor(Side side, const std::uint8_t* rows, int count, float* out) const {
  if (holder(side) == side) {
    ConvertToF32(rows, type(side), std::int64_t{count} * dim(side), out);
    return;
  }
  for (int r = 0; r < count; ++r, rows += stride_bytes(side), out += dim(side)) {
    ConvertToF32(rows, type(side), dim(side), out);
  }
}

Status ExactRows::Reserve(Allocator& allocator, const RowShape& shape,
                          std::span<const TokenPos> more) {
  KVS_RETURN_IF_ERROR(positions_.Reserve(allocator, more));
  const auto wanted = static_cast<std::size_t>(begin_ + rows()) + more.size();
  const auto used = static_cast<std::size_t>(begin_ + rows());
  for (const Side side : {Side::kKey, Side::kValue}) {
    Buffer& rows_buffer = side == Side::kKey ? keys_ : values_;
    const std::size_t row_bytes = shape.row_bytes(side);
    KVS_RETURN_IF_ERROR(rows_buffer.Grow(allocator, wanted * row_bytes, used * row_bytes));
  }
  return Status::Ok();
}

void ExactRows::Append(const RowShape& shape, const void* key, const void* value,
                       TokenPos position) {
  const auto slot = static_cast<std::size_t>(begin_ + rows());
  const std::size_t key_bytes = shape.row_bytes(Side::kKey);
  const std::size_t value_bytes = shape.row_bytes(Side::kValue);
  KVS_DCHECK((slot + 1) * key_bytes <= keys_.bytes());
  std::memcpy(keys_.data() + slot * key_bytes, key, key_bytes);
  if (value_bytes > 0) std::memcpy(values_.data() + slot * value_bytes, value, value_bytes);
  positions_.Append(position);
}

void ExactRows::DropFront(const RowShape& shape, std::int64_t count) {
  positions_.DropFront(count);
  if (rows() == 0) {
    *this = ExactRows();
    return;
  }
  begin_ += count;
  if (begin_ < rows()) return;
  // Move down once the gap is as long as what is left: each row moves O(1) times.
  for (const Side side : {Side::kKey, Side::kValue}) {
    Buffer& rows_buffer = side == Side::kKey ? keys_ : values_;
    const std::size_t row_bytes = shape.row_bytes(side);
    if (row_bytes == 0) continue;
    std::memmove(rows_buffer.data(),
                 rows_buffer.data() + static_cast<std::size_t>(begin_) * row_bytes,
                 static_cast<std::size_t>(rows()) * row_bytes);
  }
  begin_ = 0;
}

void ExactRows::Trim(PositionList::Cut cut) {
  positions_.Trim(std::move(cut));
  if (rows() == 0) *this = ExactRows();
}

Result<ExactRows> ExactRows::Clone(Allocator& allocator) const {
  ExactRows copy;
  copy.begin_ = begin_;
  KVS_ASSIGN_OR_RETURN(copy.keys_, keys_.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.values_, values_.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.positions_, positions_.Clone(allocator));
  return copy;
}

Result<ExactRows> ExactRows::Keep(Allocator& allocator, const RowShape& shape,
                                  std::span<const RowIndex> rows) const {
  ExactRows kept;
  const std::vector<TokenPos> kept_positions = positions_.ReadChosen(rows);
  KVS_RETURN_IF_ERROR(kept.Reserve(allocator, shape, kept_positions));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    kept.Append(shape, row(shape, Side::kKey, rows[i]), row(shape, Side::kValue, rows[i]),
                kept_positions[i]);
  }
  return kept;
}

void ExactRows::ReadRows(const RowShape& shape, Side side, RowIndex first, int count,
                         float* out) const {
  shape.ReadRowMajor(side, row(shape, side, first), count, out);
}

ByteReport ExactRows::BytesOf(const RowShape& shape, std::int64_t rows,
                              const PositionBytes& positions) {
  ByteReport report;
  report.key_kept_bytes = rows * static_cast<std::int64_t>(shape.row_bytes(Side::kKey));
  report.value_kept_bytes = rows * static_cast<std::int64_t>(shape.row_bytes(Side::kValue));
  report.payload_bytes = report.key_kept_bytes + report.value_kept_bytes;
  positions.AddTo(report);
  return report;
}

void ExactRows::AddBytes(const RowShape& shape, ByteReport& report) const {
  const ByteReport held = BytesOf(shape, rows(), positions_.bytes());
  report += held;
  report.reserved_bytes +=
      static_cast<std::int64_t>(keys_.bytes() + values_.bytes()) - held.payload_bytes;
}

}  // namespace kvsieve
