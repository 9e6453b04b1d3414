// Rows of a saved cache in the type they came in: exact rows, an unfinished prompt, and queries.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "lib/exact_rows.h"
#include "lib/query_ring.h"
#include "lib/staging.h"
#include "lib/state_stream.h"

namespace kvsieve {
namespace {

constexpr Side kSides[] = {Side::kKey, Side::kValue};

template <class Bits, Bits kExponent>
bool NoneHasAllOf(const void* elements, std::size_t bytes) {
  const auto* bits = static_cast<const Bits*>(elements);
  Bits found = 0;
  for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) {
    found |= (bits[i] & kExponent) == kExponent ? 1 : 0;
  }
  return found == 0;
}

// NaN and Inf have all bits of the exponent.
bool AllFinite(const void* elements, ElementType type, std::size_t bytes) {
  switch (type) {
    case ElementType::kF32:
      return NoneHasAllOf<std::uint32_t, 0x7F800000U>(elements, bytes);
    case ElementType::kF16:
      return NoneHasAllOf<std::uint16_t, std::uint16_t{0x7C00U}>(elements, bytes);
    case ElementType::kBF16:
      return NoneHasAllOf<std::uint16_t, std::uint16_t{0x7F80U}>(elements, bytes);
  }
  return false;
}

// `rows` rows of one side; Append lets no NaN or Inf in.
Result<Buffer> LoadRows(Allocator& allocator, const RowShape& shape, Side side, std::int64_t rows,
                        StateReader& in) {
  const std::string_view field = SideName(side);
  const std::size_t row_bytes = shape.row_bytes(side);
  KVS_RETURN_IF_ERROR(in.NeedLeft(field, static_cast<std::uint64_t>(rows), row_bytes));
  const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes;
  KVS_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(allocator, bytes));
  KVS_RETURN_IF_ERROR(in.Bytes(buffer.data(), bytes));
  if (!AllFinite(buffer.data(), shape.type(side), bytes)) return BadState(field, "NaN or Inf");
  return buffer;
}

// Increasing and not before `next`.
Status CheckIncreasing(std::string_view field, std::span<const TokenPos> positions,
                       std::int64_t next) {
  for (const TokenPos position : positions) {
    if (position < next) return BadState(field, StrCat(position, " where ", next, " comes next"));
    next = std::int64_t{position} + 1;
  }
  return Status::Ok();
}

// Rows kept of each head by an earlier selection follow, then the positions of the rows that came
// since, then their keys of each head, then their values.
struct StagingRecord {
  std::int64_t fresh_rows;
  std::uint64_t kept_heads;
};

}  // namespace

void ExactRows::Save(const RowShape& shape, StateWriter& out) const {
  positions_.Save(out);
  if (rows() == 0) return;
  for (const Side side : kSides) {
    out.Bytes(row(shape, side, 0), static_cast<std::size_t>(rows()) * shape.row_bytes(side));
  }
}

Result<ExactRows> ExactRows::Load(Allocator& allocator, const RowShape& shape, StateReader& in) {
  ExactRows exact;
  KVS_ASSIGN_OR_RETURN(exact.positions_, PositionList::Load(allocator, in));
  KVS_ASSIGN_OR_RETURN(exact.keys_, LoadRows(allocator, shape, Side::kKey, exact.rows(), in));
  KVS_ASSIGN_OR_RETURN(exact.values_, LoadRows(allocator, shape, Side::kValue, exact.rows(), in));
  return exact;
}

void Staging::SaveFresh(const RowShape& shape, Side side, int head, StateWriter& out) const {
  for (const Page& page : pages_) {
    out.Bytes(fresh_row(shape, side, head, page.begin),
              static_cast<std::size_t>(RowsIn(page)) * shape.row_bytes(side));
  }
}

void Staging::Save(const RowShape& shape, int kv_heads, StateWriter& out) const {
  out.Put(StagingRecord{rows_, kept_.size()});
  for (const ExactRows& head : kept_) head.Save(shape, out);
  out.Bytes(positions_.data(), static_cast<std::size_t>(rows_) * sizeof(TokenPos));
  for (const Side side : kSides) {
    for (int head = 0; head < kv_heads; ++head) SaveFresh(shape, side, head, out);
  }
}

// All in one page.
Status Staging::LoadFresh(Allocator& allocator, const RowShape& shape, int kv_heads,
                          StateReader& in) {
  const auto rows = static_cast<std::uint64_t>(rows_);
  KVS_RETURN_IF_ERROR(in.NeedLeft("rows", rows, sizeof(TokenPos)));
  KVS_ASSIGN_OR_RETURN(
      positions_, Buffer::Allocate(allocator, static_cast<std::size_t>(rows) * sizeof(TokenPos)));
  KVS_RETURN_IF_ERROR(in.Bytes(positions_.data(), positions_.bytes()));
  std::int64_t next = 0;
  for (const ExactRows& head : kept_) {
    if (head.rows() > 0) next = std::max(next, std::int64_t{head.positions().last()} + 1);
  }
  KVS_RETURN_IF_ERROR(CheckIncreasing(
      "positions", {positions_.As<TokenPos>(), static_cast<std::size_t>(rows)}, next));
  Page page;
  page.room = rows_;
  for (const Side side : kSides) {
    KVS_ASSIGN_OR_RETURN(Buffer rows_of_side,
                         LoadRows(allocator, shape, side, rows_ * kv_heads, in));
    page.buffer(side) = SharedBuffer(std::move(rows_of_side));
  }
  pages_.push_back(std::move(page));
  return Status::Ok();
}

Result<Staging> Staging::Load(Allocator& allocator, const RowShape& shape, int kv_heads,
                              StateReader& in) {
  StagingRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  if (record.kept_heads != 0 && record.kept_heads != static_cast<std::uint64_t>(kv_heads)) {
    return BadState("heads", StrCat("rows kept of ", record.kept_heads, " of ", kv_heads));
  }
  if (record.fresh_rows < 0 || record.fresh_rows > std::int64_t{1} << 31) {
    return BadState("rows", StrCat(record.fresh_rows));
  }
  Staging staging;
  staging.largest_ = std::numeric_limits<float>::infinity();  // not known
  for (std::uint64_t h = 0; h < record.kept_heads; ++h) {
    Result<ExactRows> head = ExactRows::Load(allocator, shape, in);
    if (!head.ok()) return InState(StrCat("head ", h), head.TakeStatus());
    staging.kept_.push_back(*std::move(head));
  }
  staging.rows_ = record.fresh_rows;
  if (record.fresh_rows > 0) {
    KVS_RETURN_IF_ERROR(staging.LoadFresh(allocator, shape, kv_heads, in));
  }
  return staging;
}

// In order of position, whatever the slots.
void QueryRing::Save(const LayerSpec& layer, StateWriter& out) const {
  const std::size_t count = positions_.size();
  out.Put(static_cast<std::uint64_t>(count));
  out.Bytes(positions_.data(), count * sizeof(TokenPos));
  const std::size_t dim = row_floats(layer);
  for (int head = 0; head < layer.query_heads; ++head) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t slot = static_cast<std::size_t>(head) * count + (oldest_ + i) % count;
      out.Bytes(buffer_.As<float>() + slot * dim, dim * sizeof(float));
    }
  }
}

Result<QueryRing> QueryRing::Load(Allocator& allocator, const LayerSpec& layer, int capacity,
                                  StateReader& in) {
  std::uint64_t count = 0;
  KVS_RETURN_IF_ERROR(in.Get(&count));
  if (count > static_cast<std::uint64_t>(capacity)) {
    return BadState("rows", StrCat(count, ", the evict stage keeps at most ", capacity));
  }
  KVS_RETURN_IF_ERROR(in.NeedLeft("rows", count, sizeof(TokenPos)));
  QueryRing ring;
  ring.positions_.resize(count);
  KVS_RETURN_IF_ERROR(in.Bytes(ring.positions_.data(), count * sizeof(TokenPos)));
  KVS_RETURN_IF_ERROR(CheckIncreasing("positions", ring.positions_, 0));
  RowShape shape;
  shape.key_dim = layer.key_dim;
  const auto rows = static_cast<std::int64_t>(count) * layer.query_heads;
  KVS_ASSIGN_OR_RETURN(ring.buffer_, LoadRows(allocator, shape, Side::kKey, rows, in));
  return ring;
}

}  // namespace kvsieve
