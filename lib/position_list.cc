#include "lib/position_list.h"

#include <cstring>

namespace kvsieve {
namespace {

constexpr std::int64_t kPositionBytes = sizeof(TokenPos);

}  // namespace

bool PositionList::BitmapIsSmaller(std::int64_t rows, std::int64_t span) {
  const std::int64_t marks = (rows + kBlockRows - 1) / kBlockRows * kPositionBytes;
  return (span + 7) / 8 + marks < rows * kPositionBytes;
}

std::int64_t PositionList::body_bytes(std::int64_t rows, TokenPos last) const {
  switch (form_) {
    case Form::kRun:
      return rows > 0 ? kPositionBytes : 0;
    case Form::kBitmap:
      return (std::int64_t{last} - base_ + 8) / 8;
    case Form::kList:
      return rows * kPositionBytes;
  }
  return 0;
}

std::int64_t PositionList::mark_bytes(std::int64_t rows) const {
  if (form_ != Form::kBitmap) return 0;
  return (rows + kBlockRows - 1) / kBlockRows * kPositionBytes;
}

Result<PositionList> PositionList::Build(Allocator& allocator,
                                         std::span<const TokenPos> positions) {
  PositionList list;
  KVS_RETURN_IF_ERROR(list.Reserve(allocator, positions));
  for (const TokenPos position : positions) list.Append(position);
  return list;
}

void PositionList::Read(RowIndex begin, int count, TokenPos* out) const {
  KVS_DCHECK(begin % kBlockRows == 0 && begin + count <= rows_);
  if (form_ == Form::kRun) {
    for (int i = 0; i < count; ++i) out[i] = first_ + static_cast<TokenPos>(begin) + i;
    return;
  }
  if (form_ == Form::kList) {
    std::memcpy(out, body_.As<TokenPos>() + begin,
                static_cast<std::size_t>(count * kPositionBytes));
    return;
  }
  if (count == 0) return;
  TokenPos position = marks_.As<TokenPos>()[begin / kBlockRows];
  for (int i = 0; i < count; ++position) {
    const std::int64_t bit = position - base_;
    if ((body_.data()[bit / 8] >> (bit % 8) & 1) != 0) out[i++] = position;
  }
}

bool PositionList::StaysRun(std::span<const TokenPos> more) const {
  if (form_ != Form::kRun) return false;
  const bool follows = rows_ == 0 || more.front() == last_ + 1;
  return follows &&
         std::int64_t{more.back()} - more.front() + 1 == static_cast<std::int64_t>(more.size());
}

// Room for `rows_room` rows up to position `last` in the present form.
Status PositionList::Room(Allocator& allocator, std::int64_t rows_room, TokenPos last) {
  KVS_RETURN_IF_ERROR(
      body_.Grow(allocator, static_cast<std::size_t>(body_bytes(rows_room, last)),
                 static_cast<std::size_t>(rows_ > 0 ? body_bytes(rows_, last_) : 0)));
  return marks_.Grow(allocator, static_cast<std::size_t>(mark_bytes(rows_room)),
                     static_cast<std::size_t>(mark_bytes(rows_)));
}

// Turns a run into a bitmap or a list with room for `more`.
Status PositionList::Spread(Allocator& allocator, std::span<const TokenPos> more) {
  const std::int64_t rows_room = rows_ + static_cast<std::int64_t>(more.size());
  PositionList spread;
  spread.base_ = rows_ > 0 ? first_ : more.front();
  const bool bitmap = BitmapIsSmaller(rows_room, std::int64_t{more.back()} - spread.base_ + 1);
  spread.form_ = bitmap ? Form::kBitmap : Form::kList;
  KVS_RETURN_IF_ERROR(spread.Room(allocator, rows_room, more.back()));
  for (std::int64_t i = 0; i < rows_; ++i) spread.Append(first_ + static_cast<TokenPos>(i));
  *this = std::move(spread);
  return Status::Ok();
}

Status PositionList::Reserve(Allocator& allocator, std::span<const TokenPos> more) {
  if (more.empty()) return Status::Ok();
  if (form_ == Form::kRun && !StaysRun(more)) return Spread(allocator, more);
  return Room(allocator, rows_ + static_cast<std::int64_t>(more.size()), more.back());
}

void PositionList::Append(TokenPos position) {
  KVS_DCHECK(rows_ == 0 || position > last_);
  KVS_DCHECK(form_ != Form::kRun || rows_ == 0 || position == last_ + 1);
  if (rows_ == 0) first_ = position;
  if (form_ == Form::kRun) {
    *body_.As<TokenPos>() = first_;
  } else if (form_ == Form::kBitmap) {
    SetBit(position);
    if (rows_ % kBlockRows == 0) marks_.As<TokenPos>()[rows_ / kBlockRows] = position;
  } else if (form_ == Form::kList) {
    body_.As<TokenPos>()[rows_] = position;
  }
  last_ = position;
  ++rows_;
}

// Finds the positions of rows 0, 64, ... again after the first `dropped` rows were forgotten.
void PositionList::MarkAgain(RowIndex dropped) {
  TokenPos* marks = marks_.As<TokenPos>();
  if (dropped % kBlockRows == 0) {
    const std::int64_t gone = dropped / kBlockRows;
    std::memmove(marks, marks + gone,
                 static_cast<std::size_t>(mark_bytes(rows_ + dropped) - gone * kPositionBytes));
    return;
  }
  TokenPos position = first_;
  for (RowIndex row = 0; row < rows_; ++position) {
    const std::int64_t bit = position - base_;
    if ((body_.data()[bit / 8] >> (bit % 8) & 1) == 0) continue;
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
  if (form_ == Form::kRun) {
    *body_.As<TokenPos>() = first_;
  } else if (form_ == Form::kList) {
    std::memmove(body_.As<TokenPos>(), body_.As<TokenPos>() + count,
                 static_cast<std::size_t>(rows_ * kPositionBytes));
  } else {
    MarkAgain(count);
  }
}

std::int64_t PositionList::live_bytes() const {
  return rows_ == 0 ? 0 : body_bytes(rows_, last_) + mark_bytes(rows_);
}

}  // namespace kvsieve
