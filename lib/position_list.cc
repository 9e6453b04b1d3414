#include "lib/position_list.h"

#include <algorithm>
#include <utility>

namespace kvsieve {
namespace {

constexpr std::int64_t kPositionBytes = sizeof(TokenPos);

std::int64_t Blocks(std::int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

// What a list may take before it changes its form, when the best one takes `least`.
std::int64_t MostInForm(std::int64_t least, std::int64_t rows) {
  return std::min(least + least / 4, rows * kPositionBytes);
}

}  // namespace

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
  KVS_ASSIGN_OR_RETURN(copy.store_, store_.Clone(allocator));
  return copy;
}

void PositionList::Read(RowIndex begin, int count, TokenPos* out) const {
  KVS_DCHECK(begin >= 0 && count <= kBlockRows && begin + count <= rows_);
  const int in_block = std::min(count, kBlockRows - static_cast<int>(begin % kBlockRows));
  store_.Read(begin, in_block, out);
  store_.Read(begin + in_block, count - in_block, out + in_block);
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
  const PositionStore store(PositionForm::Smallest(positions), positions.first);
  return {store.bytes(positions.rows, positions.last), store.room(positions.rows, positions.last)};
}

PositionBytes PositionList::MostBytesFor(std::int64_t rows, std::int64_t span) {
  if (rows == 0) return {};
  const std::int64_t with_gaps = std::min(rows, span - 1);
  if (with_gaps <= 1) return {kPositionBytes, kPositionBytes};
  // Positions dropped from the front leave up to 7 bits behind.
  const std::int64_t live =
      MostInForm(BytesFor({with_gaps, 0, static_cast<TokenPos>(span - 1)}).live, with_gaps) + 1;
  const auto grown = static_cast<std::size_t>(live + kPositionBytes);
  return {live, static_cast<std::int64_t>(Buffer::GrownBytes(grown, grown))};
}

bool PositionList::KeepsForm(const PositionSpan& room) const {
  const PositionForm smallest = PositionForm::Smallest(room);
  if (smallest == store_.form()) return true;
  using Kind = PositionForm::Kind;
  if (smallest.kind == Kind::kRun || store_.form().kind == Kind::kRun) return false;
  const std::int64_t least = PositionStore(smallest, room.first).bytes(room.rows, room.last);
  return store_.bytes(room.rows, room.last) <= MostInForm(least, room.rows);
}

Result<PositionStore> PositionList::CopyAs(Allocator& allocator, PositionForm form,
                                           std::int64_t rows, const PositionSpan& room) const {
  PositionStore copy(form, room.first);
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
  next_ = PositionStore();
  if (more.empty()) return Status::Ok();
  const PositionSpan room = {rows_ + static_cast<std::int64_t>(more.size()),
                             rows_ > 0 ? first_ : more.front(), more.back()};
  if (rows_ > 0 && KeepsForm(room)) return store_.Grow(allocator, room, {rows_, first_, last_});
  KVS_ASSIGN_OR_RETURN(next_, CopyAs(allocator, PositionForm::Smallest(room), rows_, room));
  return Status::Ok();
}

void PositionList::Append(TokenPos position) {
  KVS_DCHECK(rows_ == 0 || position > last_);
  if (next_.has_memory()) store_ = std::exchange(next_, PositionStore());
  KVS_DCHECK(store_.form().kind != PositionForm::Kind::kRun || rows_ == 0 || position == last_ + 1);
  store_.Put(rows_, position);
  if (rows_ == 0) first_ = position;
  last_ = position;
  ++rows_;
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
  const PositionSpan kept = {rows_, first_, last_};
  if (kept.length() == rows_) {
    store_.BecomeRun(first_);  // the gaps went
  } else {
    store_.DropFront(count, kept);
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
  cut.becomes_run = kept.length() == kept.rows;
  if (!cut.becomes_run && !KeepsForm(kept)) {
    KVS_ASSIGN_OR_RETURN(cut.store,
                         CopyAs(allocator, PositionForm::Smallest(kept), cut.rows, kept));
  }
  return cut;
}

void PositionList::Trim(Cut cut) {
  if (cut.rows == rows_) return;
  if (cut.rows == 0) {
    *this = PositionList();
    return;
  }
  next_ = PositionStore();
  if (cut.becomes_run) {
    store_.BecomeRun(first_);
  } else if (cut.store.has_memory()) {
    store_ = std::move(cut.store);
  } else {
    store_.DropBehind({cut.rows, first_, cut.last}, rows_, last_);
  }
  rows_ = cut.rows;
  last_ = cut.last;
}

}  // namespace kvsieve
