#include "lib/verify_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lib/row_copy.h"

namespace kvsieve {

std::int64_t VerifyRows::RoomFor(const RowShape& shape) const {
  std::int64_t rows = room();
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::size_t row_bytes = static_cast<std::size_t>(kv_heads_) * shape.row_bytes(side);
    if (row_bytes == 0) continue;
    rows = std::min(rows, static_cast<std::int64_t>(buffer(side).bytes() / row_bytes));
  }
  return rows;
}

Result<VerifyRows> VerifyRows::WithRoom(Allocator& allocator, const RowShape& shape, int kv_heads,
                                        std::int64_t room) const {
  KVS_DCHECK(room >= rows_);
  VerifyRows roomy;
  roomy.kv_heads_ = kv_heads;
  roomy.rows_ = rows_;
  const auto copied = [&](const Buffer& from, std::size_t row_bytes) -> Result<Buffer> {
    KVS_ASSIGN_OR_RETURN(Buffer to,
                         Buffer::Allocate(allocator, static_cast<std::size_t>(room) * row_bytes));
    const std::size_t used = static_cast<std::size_t>(rows_) * row_bytes;
    if (used > 0) std::memcpy(to.data(), from.data(), used);
    return to;
  };
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::size_t row_bytes = static_cast<std::size_t>(kv_heads) * shape.row_bytes(side);
    KVS_ASSIGN_OR_RETURN(roomy.buffer(side), copied(buffer(side), row_bytes));
  }
  KVS_ASSIGN_OR_RETURN(roomy.positions_, copied(positions_, sizeof(TokenPos)));
  roomy.zeroed_.resize(static_cast<std::size_t>(room));
  std::copy_n(zeroed_.begin(), rows_, roomy.zeroed_.begin());
  return roomy;
}

Result<VerifyRows> VerifyRows::Clone(Allocator& allocator) const {
  VerifyRows copy;
  KVS_ASSIGN_OR_RETURN(copy.keys_, keys_.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.values_, values_.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.positions_, positions_.Clone(allocator));
  copy.zeroed_ = zeroed_;
  copy.kv_heads_ = kv_heads_;
  copy.rows_ = rows_;
  return copy;
}

// To the places behind those held.
Status VerifyRows::Copy(const RowShape& shape, Side side, const HeadsView& rows,
                        NonFinitePolicy policy) {
  const std::size_t row_bytes = shape.row_bytes(side);
  if (row_bytes == 0) return Status::Ok();
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    RowTally tally;
    for (int head = 0; head < rows.heads; ++head) {
      std::uint8_t* to = buffer(side).data() + place(head, rows_ + r) * row_bytes;
      KVS_RETURN_IF_ERROR(CopyCheckedRow(rows, side, head, r, policy, to, &tally));
    }
    zeroed_[static_cast<std::size_t>(rows_ + r)] += tally.zeroed;
  }
  return Status::Ok();
}

Status VerifyRows::Append(Allocator& allocator, const RowShape& shape, const HeadsView& keys,
                          const HeadsView& values, std::span<const TokenPos> positions,
                          NonFinitePolicy policy, VerifyRoom allowed) {
  const std::int64_t total = rows_ + std::ssize(positions);
  KVS_DCHECK(total <= allowed.most);
  if (const std::int64_t room = RoomFor(shape); total > room) {
    const std::int64_t wanted =
        allowed.reserved ? allowed.most : std::min(allowed.most, std::max(total, 2 * room));
    KVS_ASSIGN_OR_RETURN(VerifyRows roomy, WithRoom(allocator, shape, keys.heads, wanted));
    KVS_RETURN_IF_ERROR(roomy.Append(allocator, shape, keys, values, positions, policy, allowed));
    *this = std::move(roomy);
    return Status::Ok();
  }
  std::fill(zeroed_.begin() + rows_, zeroed_.begin() + total, 0);
  KVS_RETURN_IF_ERROR(Copy(shape, Side::kKey, keys, policy));
  KVS_RETURN_IF_ERROR(Copy(shape, Side::kValue, values, policy));
  std::copy(positions.begin(), positions.end(), positions_.As<TokenPos>() + rows_);
  rows_ = total;
  return Status::Ok();
}

std::int64_t VerifyRows::RowsBefore(TokenPos end) const {
  const std::span<const TokenPos> held = positions();
  return std::lower_bound(held.begin(), held.end(), end) - held.begin();
}

HeadsView VerifyRows::First(const RowShape& shape, Side side, std::int64_t count) const {
  if (shape.holder(side) != side) return {};
  const int dim = shape.dim(side);
  return {buffer(side).data(),          shape.type(side), kv_heads_, count, dim, dim,
          std::int64_t{kv_heads_} * dim};
}

std::int64_t VerifyRows::ZeroedInFirst(std::int64_t count) const {
  return std::accumulate(zeroed_.begin(), zeroed_.begin() + count, std::int64_t{0});
}

void VerifyRows::ReadRows(const RowShape& shape, Side side, int head, RowIndex first, int count,
                          float* out) const {
  const std::uint8_t* rows = buffer(shape.holder(side)).data();
  for (RowIndex r = first; r < first + count; ++r, out += shape.dim(side)) {
    shape.ReadRowMajor(side, rows + place(head, r) * shape.stride_bytes(side), 1, out);
  }
}

}  // namespace kvsieve
