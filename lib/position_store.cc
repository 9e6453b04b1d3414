#include "lib/position_store.h"

#include <bit>
#include <cstring>
#include <utility>

namespace kvsieve {
namespace {

using Kind = PositionForm::Kind;

constexpr std::int64_t kPositionBytes = sizeof(TokenPos);

std::int64_t Blocks(std::int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }
std::int64_t RowsOfLastBlock(std::int64_t rows) { return rows - (Blocks(rows) - 1) * kBlockRows; }
std::int64_t BytesOfBits(std::int64_t bits) { return (bits + 7) / 8; }

// Bits [from, end) become 0.
void ClearBits(std::uint8_t* bits, std::int64_t from, std::int64_t end) {
  if (from >= end) return;
  const auto keep_low = static_cast<std::uint8_t>((1U << (from % 8)) - 1);
  const auto keep_high = static_cast<std::uint8_t>(0xFFU << ((end - 1) % 8) << 1);
  const std::int64_t first = from / 8;
  const std::int64_t last = (end - 1) / 8;
  if (first == last) {
    bits[first] &= static_cast<std::uint8_t>(keep_low | keep_high);
    return;
  }
  bits[first] &= keep_low;
  std::memset(bits + first + 1, 0, static_cast<std::size_t>(last - first - 1));
  bits[last] &= keep_high;
}

bool HasBit(const std::uint8_t* bits, std::int64_t bit) {
  return (bits[bit / 8] >> (bit % 8) & 1) != 0;
}

}  // namespace

PositionForm PositionForm::Smallest(const PositionSpan& positions) {
  if (positions.length() == positions.rows) return {};
  const auto bytes_as = [&](PositionForm form) {
    return PositionStore(form, positions.first).bytes(positions.rows, positions.last);
  };
  PositionForm smallest = {Kind::kList};
  std::int64_t least = bytes_as(smallest);
  const auto consider = [&](PositionForm form) {
    const std::int64_t bytes = bytes_as(form);
    if (bytes < least) {
      least = bytes;
      smallest = form;
    }
  };
  consider({Kind::kBitmap});
  // One low bit more costs a bit a row and halves the high ones: best is the first that leaves no
  // more than two of these a row. Rounding to bytes shifts that by one; few rows, whose high bits
  // take 4 bytes anyway, by four.
  const std::int64_t gap = (positions.length() + positions.rows - 1) / positions.rows;
  const int best = std::bit_width(static_cast<std::uint64_t>(gap - 1)) - 1;
  for (int bits = std::max(0, best - 4); bits <= std::min(best + 1, kMaxLowBits); ++bits) {
    consider({Kind::kSplit, static_cast<std::uint16_t>(bits)});
  }
  return smallest;
}

Result<PositionStore> PositionStore::Clone(Allocator& allocator) const {
  PositionStore copy(form_, base_);
  KVS_ASSIGN_OR_RETURN(copy.body_, body_.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.blocks_, blocks_.Clone(allocator));
  return copy;
}

std::int64_t PositionStore::body_bytes(std::int64_t rows, TokenPos last) const {
  switch (form_.kind) {
    case Kind::kRun:
      return kPositionBytes;
    case Kind::kBitmap:
      return BytesOfBits(std::int64_t{last} - base_ + 1);
    case Kind::kList:
      return rows * kPositionBytes;
    case Kind::kSplit:
      // At least a run's, so that a list with gaps never takes less than one without.
      return std::max(kPositionBytes, BytesOfBits(bit_of(rows - 1, last) + 1));
  }
  return 0;
}

std::int64_t PositionStore::block_bytes(std::int64_t rows) const {
  if (rows == 0) return 0;
  if (form_.kind == Kind::kBitmap) return Blocks(rows) * kPositionBytes;
  if (form_.kind != Kind::kSplit) return 0;
  return (Blocks(rows) - 1) * stride() + BytesOfBits(RowsOfLastBlock(rows) * form_.low_bits);
}

Status PositionStore::Grow(Allocator& allocator, const PositionSpan& room,
                           const PositionSpan& used) {
  const std::int64_t body_used = used.rows == 0 ? 0 : body_bytes(used.rows, used.last);
  KVS_RETURN_IF_ERROR(body_.Grow(allocator,
                                 static_cast<std::size_t>(body_room(room.rows, room.last)),
                                 static_cast<std::size_t>(body_used)));
  return blocks_.Grow(allocator, static_cast<std::size_t>(block_bytes(room.rows)),
                      static_cast<std::size_t>(block_bytes(used.rows)));
}

void PositionStore::Put(RowIndex row, TokenPos position) {
  switch (form_.kind) {
    case Kind::kRun:
      if (row == 0) *body_.As<TokenPos>() = position;
      return;
    case Kind::kBitmap: {
      const std::int64_t bit = std::int64_t{position} - base_;
      body_.data()[bit / 8] |= static_cast<std::uint8_t>(1U << (bit % 8));
      if (row % kBlockRows == 0) blocks_.As<TokenPos>()[row / kBlockRows] = position;
      return;
    }
    case Kind::kList:
      body_.As<TokenPos>()[row] = position;
      return;
    case Kind::kSplit:
      PutSplit(row, position);
      return;
  }
}

void PositionStore::PutSplit(RowIndex row, TokenPos position) {
  const std::int64_t bit = bit_of(row, position);
  body_.data()[bit / 8] |= static_cast<std::uint8_t>(1U << (bit % 8));
  const std::int64_t block = row / kBlockRows;
  const std::int64_t in_block = row % kBlockRows;
  if (in_block == 0 && block > 0) *mark_of(block) = static_cast<std::uint32_t>(bit);
  const std::int64_t low_bit = in_block * form_.low_bits;
  const std::uint64_t mask = (std::uint64_t{1} << form_.low_bits) - 1;
  std::uint64_t low = (static_cast<std::uint64_t>(std::int64_t{position} - base_) & mask)
                      << (low_bit % 8);
  for (std::uint8_t* at = low_bits_of(block) + low_bit / 8; low != 0; low >>= 8) {
    *at++ |= static_cast<std::uint8_t>(low);
  }
}

void PositionStore::Read(RowIndex begin, int count, TokenPos* out) const {
  if (count == 0) return;
  switch (form_.kind) {
    case Kind::kRun:
      for (int i = 0; i < count; ++i) {
        out[i] = *body_.As<TokenPos>() + static_cast<TokenPos>(begin) + i;
      }
      return;
    case Kind::kBitmap:
      return ReadBitmap(begin, count, out);
    case Kind::kList:
      std::memcpy(out, body_.As<TokenPos>() + begin,
                  static_cast<std::size_t>(count * kPositionBytes));
      return;
    case Kind::kSplit:
      return ReadSplit(begin, count, out);
  }
}

void PositionStore::ReadBitmap(RowIndex begin, int count, TokenPos* out) const {
  TokenPos position = blocks_.As<TokenPos>()[begin / kBlockRows];
  for (std::int64_t i = -(begin % kBlockRows); i < count; ++position) {
    if (!HasBit(body_.data(), std::int64_t{position} - base_)) continue;
    if (i >= 0) out[i] = position;
    ++i;
  }
}

void PositionStore::ReadSplit(RowIndex begin, int count, TokenPos* out) const {
  const std::int64_t block = begin / kBlockRows;
  const auto skip = static_cast<int>(begin % kBlockRows);
  const int low_bits = form_.low_bits;
  // With room behind the last ones for a read of 8 bytes.
  std::uint8_t lows[kBlockRows / 8 * PositionForm::kMaxLowBits + 8];
  auto& self = const_cast<PositionStore&>(*this);
  if (low_bits > 0) {  // else there are none, and nowhere to copy from
    std::memcpy(lows, self.low_bits_of(block),
                static_cast<std::size_t>(BytesOfBits(std::int64_t{skip + count} * low_bits)));
  }
  const std::uint64_t mask = (std::uint64_t{1} << low_bits) - 1;
  const std::uint8_t* body = body_.data();
  const std::int64_t first_bit = block == 0 ? 0 : *self.mark_of(block);
  std::int64_t at = first_bit / 8;
  unsigned bits = body[at] & (0xFFU << (first_bit % 8)) & 0xFFU;
  for (int i = 0; i < skip + count; ++i, bits &= bits - 1) {
    while (bits == 0) bits = body[++at];
    if (i < skip) continue;
    const std::int64_t high = at * 8 + std::countr_zero(bits) - (block * kBlockRows + i);
    std::uint64_t word;
    std::memcpy(&word, lows + i * low_bits / 8, sizeof word);
    const std::uint64_t low = word >> (i * low_bits % 8) & mask;
    out[i - skip] =
        static_cast<TokenPos>(base_ + (high << low_bits) + static_cast<std::int64_t>(low));
  }
}

void PositionStore::DropFront(std::int64_t count, const PositionSpan& kept) {
  switch (form_.kind) {
    case Kind::kRun:
      *body_.As<TokenPos>() = kept.first;
      return;
    case Kind::kBitmap:
      return DropBits(count, kept);
    case Kind::kList:
      std::memmove(body_.As<TokenPos>(), body_.As<TokenPos>() + count,
                   static_cast<std::size_t>(kept.rows * kPositionBytes));
      return;
    case Kind::kSplit:
      return DropSplit(count, kept);
  }
}

// Gives whole bytes of the bitmap back to the rows to come, and finds the positions of rows 0, 64,
// ... again.
void PositionStore::DropBits(RowIndex dropped, const PositionSpan& kept) {
  std::uint8_t* bits = body_.data();
  const auto used = static_cast<std::size_t>(body_bytes(kept.rows, kept.last));
  const auto gone = static_cast<std::size_t>((kept.first - base_) / 8);
  std::memmove(bits, bits + gone, used - gone);
  std::memset(bits + used - gone, 0, gone);
  base_ += static_cast<TokenPos>(gone) * 8;
  // The byte of the first row may hold bits of rows that went.
  bits[0] &= static_cast<std::uint8_t>(0xFFU << (kept.first - base_));

  TokenPos* marks = blocks_.As<TokenPos>();
  if (dropped % kBlockRows == 0) {
    std::memmove(marks, marks + dropped / kBlockRows,
                 static_cast<std::size_t>(block_bytes(kept.rows)));
    return;
  }
  TokenPos position = kept.first;
  for (RowIndex row = 0; row < kept.rows; ++position) {
    if (!HasBit(bits, std::int64_t{position} - base_)) continue;
    if (row % kBlockRows == 0) marks[row / kBlockRows] = position;
    ++row;
  }
}

// Block by block: its rows are read and cleared, then put where they belong, which is before all
// that was not read yet. A block's mark lies behind the low bits of the one before it, so that it
// outlives their clearing.
void PositionStore::DropSplit(RowIndex dropped, const PositionSpan& kept) {
  const TokenPos old_base = base_;
  const std::int64_t high = (std::int64_t{kept.first} - old_base) >> form_.low_bits;
  const auto new_base = static_cast<TokenPos>(old_base + (high << form_.low_bits));
  const std::int64_t rows = dropped + kept.rows;
  std::int64_t cleared = 0;
  TokenPos positions[kBlockRows];
  for (RowIndex begin = 0; begin < rows; begin += kBlockRows) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows - begin));
    base_ = old_base;
    Read(begin, count, positions);
    const std::int64_t end = bit_of(begin + count - 1, positions[count - 1]) + 1;
    ClearBits(body_.data(), cleared, end);
    cleared = end;
    if (form_.low_bits > 0) {  // else there is nothing to clear, and maybe no memory
      std::memset(low_bits_of(begin / kBlockRows), 0,
                  static_cast<std::size_t>(BytesOfBits(std::int64_t{count} * form_.low_bits)));
    }
    base_ = new_base;
    for (int i = 0; i < count; ++i) {
      if (begin + i >= dropped) Put(begin + i - dropped, positions[i]);
    }
  }
}

void PositionStore::DropBehind(const PositionSpan& kept, std::int64_t rows, TokenPos last) {
  const std::int64_t body_end = body_bytes(rows, last) * 8;
  if (form_.kind == Kind::kBitmap) {
    ClearBits(body_.data(), std::int64_t{kept.last} - base_ + 1, body_end);
  }
  if (form_.kind != Kind::kSplit) return;
  ClearBits(body_.data(), bit_of(kept.rows - 1, kept.last) + 1, body_end);
  const std::int64_t block_begin = (Blocks(kept.rows) - 1) * stride() * 8;
  ClearBits(blocks_.data(), block_begin + RowsOfLastBlock(kept.rows) * form_.low_bits,
            block_bytes(rows) * 8);
}

void PositionStore::BecomeRun(TokenPos first) {
  form_ = {};
  base_ = 0;
  blocks_ = Buffer();
  Put(0, first);
}

}  // namespace kvsieve
