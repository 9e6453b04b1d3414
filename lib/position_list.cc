#include "lib/position_list.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvsieve {
namespace {

constexpr std::int64_t kPositionBytes = sizeof(TokenPos);

std::int64_t Blocks(std::int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

}  // namespace

std::int64_t PositionList::Store::body_bytes(std::int64_t rows, TokenPos last) const {
  switch (form) {
    case Form::kRun:
      return kPositionBytes;
    case Form::kBitmap:
      return (std::int64_t{last} - base + 8) / 8;
    case Form::kList:
      return rows * kPositionBytes;
  }
  return 0;
}

std::int64_t PositionList::Store::mark_bytes(std::int64_t rows) const {
  return form == Form::kBitmap ? Blocks(rows) * kPositionBytes : 0;
}

void PositionList::Store::Put(RowIndex row, TokenPos position) {
  switch (form) {
    case Form::kRun:
      if (row == 0) *body.As<TokenPos>() = position;
      return;
    case Form::kBitmap: {
      const std::int64_t bit = position - base;
      body.data()[bit / 8] |= static_cast<std::uint8_t>(1U << (bit % 8));
      if (row % kBlockRows == 0) marks.As<TokenPos>()[row / kBlockRows] = position;
      return;
    }
    case Form::kList:
      body.As<TokenPos>()[row] = position;
      return;
  }
}

Result<PositionList> PositionList::Build(Allocator& allocator,
                                         std::span<const TokenPos> positions) {
  PositionList list;
  KVS_RETURN_IF_ERROR(list.Reserve(allocator, positions));
  for (const TokenPos position : positions) list.Append(position);
  return list;
}

// What was reserved in another form is left out.
Result<PositionList> PositionList::Clone(Allocator& allocator) const {
  PositionList copy;
  copy.rows_ = rows_;
  copy.first_ = first_;
  copy.last_ = last_;
  copy.store_.form = store_.form;
  copy.store_.base = store_.base;
  KVS_ASSIGN_OR_RETURN(copy.store_.body, store_.body.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.store_.marks, store_.marks.Clone(allocator));
  return copy;
}

void PositionList::Read(RowIndex begin, int count, TokenPos* out) const {
  KVS_DCHECK(begin >= 0 && count <= kBlockRows && begin + count <= rows_);
  if (count == 0) return;
  if (store_.form == Form::kRun) {
    for (int i = 0; i < count; ++i) out[i] = first_ + static_cast<TokenPos>(begin) + i;
    return;
  }
  if (store_.form == Form::kList) {
    std::memcpy(out, store_.body.As<TokenPos>() + begin,
                static_cast<std::size_t>(count * kPositionBytes));
    return;
  }
  TokenPos position = store_.marks.As<TokenPos>()[begin / kBlockRows];
  for (std::int64_t i = -(begin % kBlockRows); i < count; ++position) {
    if (!store_.Has(position)) continue;
    if (i >= 0) out[i] = position;
    ++i;
  }
}

void PositionList::ReadAll(TokenPos* out) const {
  for (RowIndex begin = 0; begin < rows_; begin += kBlockRows) {
    Read(begin, static_cast<int>(std::min<std::int64_t>(kBlockRows, rows_ - begin)), out + begin);
  }
}

std::vector<TokenPos> PositionList::ReadChosen(std::span<const RowIndex> rows) const {
  std::vector<TokenPos> chosen(rows.size());
  TokenPos block[kBlockRows];
  RowIndex read = -1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowIndex begin = rows[i] / kBlockRows * kBlockRows;
    const std::int64_t count = std::min<std::int64_t>(kBlockRows, rows_ - begin);
    if (begin != read) Read(begin, static_cast<int>(count), block);
    read = begin;
    chosen[i] = block[rows[i] - begin];
  }
  return chosen;
}

PositionBytes PositionList::BytesFor(const PositionSpan& positions) {
  if (positions.rows == 0) return {};
  Store store;
  store.form = FormFor(Form::kRun, positions);
  store.base = positions.first;
  return {store.bytes(positions.rows, positions.last),
          store.body_room(positions.rows, positions.last) + store.mark_bytes(positions.rows)};
}

PositionBytes PositionList::MostBytesFor(std::int64_t rows, std::int64_t span) {
  if (rows == 0) return {};
  const std::int64_t with_gaps = std::min(rows, span - 1);
  if (with_gaps <= 1) return {kPositionBytes, kPositionBytes};
  Store store;
  const PositionSpan positions = {with_gaps, 0, static_cast<TokenPos>(span - 1)};
  store.form = FormFor(Form::kList, positions);
  // Positions dropped from the front of a bitmap leave up to 7 bits behind.
  const std::int64_t live = store.bytes(with_gaps, positions.last) + 1;
  const auto grown = static_cast<std::size_t>(live + kPositionBytes);
  return {live, static_cast<std::int64_t>(Buffer::GrownBytes(grown, grown))};
}

PositionList::Form PositionList::FormFor(Form now, const PositionSpan& positions) {
  const std::int64_t span = std::int64_t{positions.last} - positions.first + 1;
  if (span == positions.rows) return Form::kRun;
  const std::int64_t bitmap_bytes = (span + 7) / 8 + Blocks(positions.rows) * kPositionBytes;
  const std::int64_t list_bytes = positions.rows * kPositionBytes;
  const std::int64_t worth = now == Form::kList ? 2 * bitmap_bytes : bitmap_bytes;
  return worth < list_bytes ? Form::kBitmap : Form::kList;
}

Status PositionList::Store::Grow(Allocator& allocator, const PositionSpan& room,
                                 const PositionSpan& used) {
  const std::int64_t body_wanted = body_room(room.rows, room.last);
  const std::int64_t body_used = used.rows == 0 ? 0 : body_bytes(used.rows, used.last);
  KVS_RETURN_IF_ERROR(body.Grow(allocator, static_cast<std::size_t>(body_wanted),
                                static_cast<std::size_t>(body_used)));
  return marks.Grow(allocator, static_cast<std::size_t>(mark_bytes(room.rows)),
                    static_cast<std::size_t>(mark_bytes(used.rows)));
}

Result<PositionList::Store> PositionList::CopyAs(Allocator& allocator, Form form, std::int64_t rows,
                                                 const PositionSpan& room) const {
  Store copy;
  copy.form = form;
  copy.base = room.first;
  KVS_RETURN_IF_ERROR(copy.Grow(allocator, room, {}));
  TokenPos block[kBlockRows];
  for (RowIndex begin = 0; begin < rows; begin += kBlockRows) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows - begin));
    Read(begin, count, block);
    for (int i = 0; i < count; ++i) copy.Put(begin + i, block[i]);
  }
  return copy;
}

Status PositionList::Reserve(Allocator& allocator, std::span<const TokenPos> more) {
  next_ = Store();
  if (more.empty()) return Status::Ok();
  const PositionSpan room = {rows_ + static_cast<std::int64_t>(more.size()),
                             rows_ > 0 ? first_ : more.front(), more.back()};
  const Form form = FormFor(store_.form, room);
  if (rows_ > 0 && form == store_.form) {
    return store_.Grow(allocator, room, {rows_, first_, last_});
  }
  KVS_ASSIGN_OR_RETURN(next_, CopyAs(allocator, form, rows_, room));
  return Status::Ok();
}

void PositionList::Append(TokenPos position) {
  KVS_DCHECK(rows_ == 0 || position > last_);
  if (next_.body.bytes() > 0) store_ = std::exchange(next_, Store());
  KVS_DCHECK(store_.form != Form::kRun || rows_ == 0 || position == last_ + 1);
  store_.Put(rows_, position);
  if (rows_ == 0) first_ = position;
  last_ = position;
  ++rows_;
}

// In place; first_ is known.
void PositionList::BecomeRun() {
  store_.form = Form::kRun;
  store_.marks = Buffer();
  store_.Put(0, first_);
}

// Rows to come find no bit set.
void PositionList::ClearBitsFrom(TokenPos end) {
  std::uint8_t* bits = store_.body.data();
  const std::int64_t bit = std::int64_t{end} - store_.base;
  const std::int64_t used = store_.body_bytes(rows_, last_);
  const std::int64_t whole = (bit + 7) / 8;
  if (bit % 8 != 0) bits[bit / 8] &= static_cast<std::uint8_t>(0xFFU >> (8 - bit % 8));
  std::memset(bits + whole, 0, static_cast<std::size_t>(used - whole));
}

// After the first `dropped` rows were forgotten: gives their whole bytes of the bitmap back to the
// rows to come, and finds the positions of rows 0, 64, ... again.
void PositionList::DropBits(RowIndex dropped, TokenPos last_before) {
  std::uint8_t* bits = store_.body.data();
  const auto used = static_cast<std::size_t>(store_.body_bytes(0, last_before));
  const auto gone = static_cast<std::size_t>((first_ - store_.base) / 8);
  std::memmove(bits, bits + gone, used - gone);
  std::memset(bits + used - gone, 0, gone);
  store_.base += static_cast<TokenPos>(gone) * 8;
  // The byte of the first row may hold bits of rows that went.
  bits[0] &= static_cast<std::uint8_t>(0xFFU << (first_ - store_.base));

  TokenPos* marks = store_.marks.As<TokenPos>();
  if (dropped % kBlockRows == 0) {
    std::memmove(marks, marks + dropped / kBlockRows,
                 static_cast<std::size_t>(store_.mark_bytes(rows_)));
    return;
  }
  TokenPos position = first_;
  for (RowIndex row = 0; row < rows_; ++position) {
    if (!store_.Has(position)) continue;
    if (row % kBlockRows == 0) marks[row / kBlockRows] = position;
    ++row;
  }
}

void PositionList::DropFront(std::int64_t count) {
  if (count == 0) return;
  if (count >= rows_) {
    *this = PositionList();
    return;
  }
  TokenPos block[kBlockRows];
  const RowIndex block_begin = count / kBlockRows * kBlockRows;
  const int in_block = static_cast<int>(count - block_begin);
  Read(block_begin, in_block + 1, block);
  first_ = block[in_block];
  rows_ -= count;
  if (std::int64_t{last_} - first_ + 1 == rows_) {
    BecomeRun();  // the gaps went
  } else if (store_.form == Form::kBitmap) {
    DropBits(count, last_);
  } else {
    std::memmove(store_.body.As<TokenPos>(), store_.body.As<TokenPos>() + count,
                 static_cast<std::size_t>(rows_ * kPositionBytes));
  }
}

std::int64_t PositionList::RowsBefore(TokenPos end) const {
  if (rows_ == 0 || end <= first_) return 0;
  if (end > last_) return rows_;
  // The last block that begins before `end`, then the row in it.
  RowIndex low = 0;
  RowIndex high = Blocks(rows_);
  TokenPos block[kBlockRows];
  while (high - low > 1) {
    const RowIndex middle = (low + high) / 2;
    Read(middle * kBlockRows, 1, block);
    (block[0] < end ? low : high) = middle;
  }
  const RowIndex begin = low * kBlockRows;
  const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows_ - begin));
  Read(begin, count, block);
  return begin + (std::lower_bound(block, block + count, end) - block);
}

Result<PositionList::Cut> PositionList::PrepareTrim(Allocator& allocator, TokenPos end) const {
  Cut cut;
  cut.rows = RowsBefore(end);
  if (cut.rows == 0) return cut;
  const RowIndex last = cut.rows - 1;
  const RowIndex block_begin = last / kBlockRows * kBlockRows;
  TokenPos block[kBlockRows];
  Read(block_begin, static_cast<int>(cut.rows - block_begin), block);
  cut.last = block[last - block_begin];
  const PositionSpan kept = {cut.rows, first_, cut.last};
  cut.form = FormFor(store_.form, kept);
  if (cut.form != store_.form && cut.form != Form::kRun) {
    KVS_ASSIGN_OR_RETURN(cut.store, CopyAs(allocator, cut.form, cut.rows, kept));
  }
  return cut;
}

void PositionList::Trim(Cut cut) {
  if (cut.rows == rows_) return;
  if (cut.rows == 0) {
    *this = PositionList();
    return;
  }
  next_ = Store();
  if (cut.store.body.bytes() > 0) {
    store_ = std::move(cut.store);
  } else if (cut.form == Form::kRun) {
    BecomeRun();
  } else if (cut.form == Form::kBitmap) {
    ClearBitsFrom(cut.last + 1);
  }
  rows_ = cut.rows;
  last_ = cut.last;
}

}  // namespace kvsieve
