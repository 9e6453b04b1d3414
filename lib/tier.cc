#include "lib/tier.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/block_slots.h"

namespace kvsieve {

namespace {

Status Named(Side side, std::string_view of, Status status) {
  if (status.ok()) return status;
  return Status(status.error().code, StrCat(SideName(side), of, status.message()));
}

}  // namespace

int Tier::own_floats(Side side) const {
  return owns_all_ ? chain(side).stats_floats() : store_->stats_floats(side);
}

std::ptrdiff_t Tier::own_begin(Side side) const {
  return side == Side::kKey ? 0 : own_floats(Side::kKey);
}

const float* Tier::own_stats(Side side) const {
  const auto* floats = reinterpret_cast<const float*>(stats_.data());
  return floats == nullptr ? nullptr : floats + own_begin(side);
}

ChainStats Tier::stats(Side side) const {
  const float* borrowed = borrowed_[static_cast<std::size_t>(side)];
  return borrowed == nullptr ? ChainStats(own_stats(side)) : ChainStats(borrowed, own_stats(side));
}

std::size_t Tier::block_bytes(int capacity_rows) const {
  std::size_t bytes = 0;
  for (const Side side : store_->sides()) bytes += chain(side).codec().BlockBytes(capacity_rows);
  return bytes;
}

std::size_t Tier::side_begin(const Block& block, Side side) const {
  return side == Side::kKey ? 0 : store_->key->codec().BlockBytes(block.capacity_rows);
}

ConstBlockRef Tier::side_of(const Block& block, Side side) const {
  return {block.memory.data() + side_begin(block, side), block.capacity_rows};
}

BlockRef Tier::writable(Block& block, Side side) const {
  return {block.memory.data() + side_begin(block, side), block.capacity_rows};
}

ConstBlockRef Tier::block(int b, Side side) const { return side_of(blocks_[b], side); }

Status Tier::ReserveStats(Allocator& allocator) {
  const auto floats = static_cast<std::size_t>(store_->stats_floats());
  KVS_ASSIGN_OR_RETURN(stats_, SharedBuffer::Allocate(allocator, floats * sizeof(float)));
  return Status::Ok();
}

void Tier::BorrowFrom(const Tier& first) {
  if (owns_all_) return;
  for (const Side side : store_->sides()) {
    if (store_->borrows(side)) borrowed_[static_cast<std::size_t>(side)] = first.own_stats(side);
  }
}

Status Tier::Learn(Side side, const RowSource& stored, const RowSource& sharing) {
  const Chain& chain = this->chain(side);
  float* own = reinterpret_cast<float*>(stats_.data()) + own_begin(side);
  Status status;
  if (const float* borrowed = borrowed_[static_cast<std::size_t>(side)]; borrowed != nullptr) {
    status = chain.LearnRest(stored, borrowed, own);
  } else {
    status = chain.LearnFirst(sharing, own);
    if (status.ok()) status = chain.LearnRest(stored, own, own + chain.first_stats_floats());
  }
  return Named(side, ", of the rows kept ", std::move(status));
}

Result<Tier::Block> Tier::NewBlock(Allocator& allocator, int capacity_rows) const {
  Block block;
  KVS_ASSIGN_OR_RETURN(block.memory, SharedBuffer::Allocate(allocator, block_bytes(capacity_rows)));
  block.capacity_rows = capacity_rows;
  return block;
}

int Tier::blocks() const {
  auto count = static_cast<int>(blocks_.size());
  while (count > 0 && blocks_[count - 1].slots == 0) --count;
  return count;
}

// Counted over all blocks: where the next group begins.
std::int64_t Tier::NextSlot() const {
  const int held = blocks();
  if (held == 0) return 0;
  return std::int64_t{held - 1} * kBlockRows +
         RoundUp(SlotsUsed(blocks_[held - 1].slots), store_->group_rows());
}

Tier::Place Tier::PlaceOf(RowIndex row) const {
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.begin() + blocks(), row,
                       [](RowIndex r, const Block& block) { return r < block.first_row; });
  const Block& block = *(after - 1);
  return {static_cast<int>(after - 1 - blocks_.begin()),
          NthSlot(block.slots, static_cast<int>(row - block.first_row))};
}

// Moves the open block's rows, bit by bit, into one of this tier's own.
Status Tier::MoveOpenBlock(Allocator& allocator, int capacity_rows) {
  KVS_ASSIGN_OR_RETURN(Block own, NewBlock(allocator, capacity_rows));
  CopyRows(blocks_.back(), own);
  blocks_.back() = std::move(own);
  return Status::Ok();
}

// With room for these slots alone.
Result<Tier::Block> Tier::TightBlock(Allocator& allocator, std::uint64_t slots) const {
  return NewBlock(allocator, CapacityFor(*store_, SlotsUsed(slots)));
}

// To the same slots of a block that is empty.
void Tier::CopyRows(const Block& from, Block& to) const {
  for (const Side side : store_->sides()) {
    const ConstBlockRef source = side_of(from, side);
    const BlockRef target = writable(to, side);
    for (std::uint64_t left = from.slots; left != 0; left &= left - 1) {
      const int slot = std::countr_zero(left);
      chain(side).codec().MoveRow(source, slot, target, slot);
    }
  }
  to.slots = from.slots;
  to.first_row = from.first_row;
}

Status Tier::Reserve(Allocator& allocator, std::span<const TokenPos> positions) {
  if (positions.empty()) return Status::Ok();
  KVS_RETURN_IF_ERROR(positions_.Reserve(allocator, positions));
  const std::int64_t next = NextSlot();
  const std::int64_t total = next + static_cast<std::int64_t>(positions.size());
  const auto count = static_cast<std::size_t>(RoundUp(total, kBlockRows) / kBlockRows);
  const auto capacity_of = [&](std::size_t b) {
    return CapacityFor(*store_, total - static_cast<std::int64_t>(b) * kBlockRows);
  };
  // Blocks behind the one that the next row goes to were never shared, and that one is shared only
  // where it is the last.
  if (next < static_cast<std::int64_t>(blocks_.size()) * kBlockRows) {
    const int capacity = capacity_of(blocks_.size() - 1);
    if (blocks_.back().capacity_rows < capacity || blocks_.back().memory.shared()) {
      KVS_RETURN_IF_ERROR(MoveOpenBlock(allocator, capacity));
    }
  }
  blocks_.reserve(count);
  while (blocks_.size() < count) {
    KVS_ASSIGN_OR_RETURN(Block block, NewBlock(allocator, capacity_of(blocks_.size())));
    blocks_.push_back(std::move(block));
  }
  return Status::Ok();
}

void Tier::Fill(const RowSource& keys, const RowSource& values, std::span<const TokenPos> positions,
                float* scratch) {
  // By panels: while one is encoded, the rows of the next are on their way from memory.
  const int step = std::max(kPanelRows, store_->group_rows());
  const std::int64_t total = keys.rows();
  for (std::int64_t done = 0; done < total;) {
    const std::int64_t next = NextSlot();
    const int slot = static_cast<int>(next % kBlockRows);
    const int room = step - slot % step;
    const int count = static_cast<int>(std::min<std::int64_t>(room, total - done));
    Block& target = blocks_[static_cast<std::size_t>(next / kBlockRows)];
    for (const Side side : store_->sides()) {
      (side == Side::kKey ? keys : values).ReadRows(done, count, scratch);
      const Status status =
          chain(side).Encode(stats(side), scratch, count, writable(target, side), slot);
      KVS_DCHECK(status.ok());
      static_cast<void>(status);
      saturated_ += chain(side).codec().CountSaturated(scratch, count);
    }
    Show(positions.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)));
    done += count;
  }
}

Status Tier::EncodeAhead(std::int64_t ahead, int count, float* keys, float* values) {
  const std::int64_t next = NextSlot() + ahead;
  Block& target = blocks_[static_cast<std::size_t>(next / kBlockRows)];
  const int slot = static_cast<int>(next % kBlockRows);
  const auto rows_of = [&](Side side) { return side == Side::kKey ? keys : values; };
  for (const Side side : store_->sides()) {
    KVS_RETURN_IF_ERROR(
        Named(side, ", ",
              chain(side).Encode(stats(side), rows_of(side), count, writable(target, side), slot)));
  }
  if (ahead == 0) saturated_ahead_ = 0;
  for (const Side side : store_->sides()) {
    saturated_ahead_ += chain(side).codec().CountSaturated(rows_of(side), count);
  }
  return Status::Ok();
}

void Tier::Show(std::span<const TokenPos> positions) {
  if (positions.empty()) return;
  std::int64_t next = NextSlot();
  for (const TokenPos position : positions) {
    Block& block = blocks_[static_cast<std::size_t>(next / kBlockRows)];
    if (block.slots == 0) block.first_row = rows_;
    block.slots |= std::uint64_t{1} << (next % kBlockRows);
    positions_.Append(position);
    ++rows_;
    ++next;
  }
  saturated_ += saturated_ahead_;
  saturated_ahead_ = 0;
}

TokenPos Tier::DropBefore(TokenPos position) {
  TokenPos last_gone = -1;
  RowIndex rows_gone = 0;
  const std::int64_t full_blocks = NextSlot() / kBlockRows;
  std::int64_t gone = 0;
  for (; gone < full_blocks; ++gone) {
    const RowIndex end = rows_gone + std::popcount(blocks_[gone].slots);
    TokenPos last;
    positions_.Read(end - 1, 1, &last);
    if (last >= position) break;
    last_gone = last;
    rows_gone = end;
  }
  if (gone == 0) return last_gone;
  blocks_.erase(blocks_.begin(), blocks_.begin() + gone);
  for (Block& block : blocks_) block.first_row -= rows_gone;
  rows_ -= rows_gone;
  positions_.DropFront(rows_gone);
  return last_gone;
}

// Codes of rows that went stay in the open block until others take their place: kernels give them
// no weight, and what a codec wrote is finite.
void Tier::Trim(PositionList::Cut cut) {
  if (cut.rows == rows_) return;
  rows_ = cut.rows;
  positions_.Trim(std::move(cut));
  for (Block& block : blocks_) {
    block.slots = FirstSlots(block.slots, std::max<std::int64_t>(0, rows_ - block.first_row));
  }
  blocks_.erase(blocks_.begin() + blocks(), blocks_.end());
}

// The open block is copied at once, not by who writes first: it is at most one a head, and a decode
// step after a fork then costs what any step does.
Result<Tier> Tier::Fork(Allocator& allocator, const LayerStore& store) const {
  Tier fork(store);
  fork.rows_ = rows_;
  fork.saturated_ = saturated_;
  fork.stats_ = stats_.Share();
  fork.owns_all_ = owns_all_;
  KVS_ASSIGN_OR_RETURN(fork.positions_, positions_.Clone(allocator));
  const std::int64_t full_blocks = NextSlot() / kBlockRows;
  for (int b = 0; b < blocks(); ++b) {
    const Block& block = blocks_[b];
    Block& held = fork.blocks_.emplace_back();
    if (b < full_blocks) {
      held.memory = block.memory.Share();
    } else {
      KVS_ASSIGN_OR_RETURN(held, NewBlock(allocator, block.capacity_rows));
      std::memcpy(held.memory.data(), block.memory.data(), block.memory.bytes());
    }
    held.capacity_rows = block.capacity_rows;
    held.slots = block.slots;
    held.first_row = block.first_row;
  }
  return fork;
}

// Where rows go when only they stay: close together, but those of one group to one group.
std::vector<std::int64_t> Tier::SlotsWhenKept(std::span<const RowIndex> rows) const {
  const int group = store_->group_rows();
  std::vector<std::int64_t> to(rows.size());
  std::int64_t next = 0;
  std::int64_t last_group = -1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Place from = PlaceOf(rows[i]);
    const std::int64_t from_group = (std::int64_t{from.block} * kBlockRows + from.slot) / group;
    if (from_group != last_group) next = RoundUp(next, group);
    last_group = from_group;
    to[i] = next++;
  }
  return to;
}

void Tier::MoveRow(RowIndex row, Block& target, int slot) const {
  const Place from = PlaceOf(row);
  for (const Side side : store_->sides()) {
    chain(side).codec().MoveRow(block(from.block, side), from.slot, writable(target, side), slot);
  }
}

Status Tier::EncodeRow(const Incoming& incoming, RowIndex row, Block& target, int slot,
                       std::int64_t* saturated) const {
  alignas(64) float elements[kMaxDim];
  for (const Side side : store_->sides()) {
    (side == Side::kKey ? incoming.keys : incoming.values).ReadRows(row, 1, elements);
    KVS_RETURN_IF_ERROR(Named(
        side, ", ", chain(side).Encode(stats(side), elements, 1, writable(target, side), slot)));
    *saturated += chain(side).codec().CountSaturated(elements, 1);
  }
  return Status::Ok();
}

Result<Tier::Kept> Tier::RoomFor(Allocator& allocator, std::span<const TokenPos> positions,
                                 std::int64_t slots) const {
  Kept kept;
  KVS_ASSIGN_OR_RETURN(kept.positions, PositionList::Build(allocator, positions));
  for (std::int64_t done = 0; done < slots; done += kBlockRows) {
    KVS_ASSIGN_OR_RETURN(Block block, NewBlock(allocator, CapacityFor(*store_, slots - done)));
    kept.blocks.push_back(std::move(block));
  }
  return kept;
}

Result<Tier::Kept> Tier::Keep(Allocator& allocator, std::span<const RowIndex> rows) const {
  const std::vector<std::int64_t> to = SlotsWhenKept(rows);
  KVS_ASSIGN_OR_RETURN(
      Kept kept, RoomFor(allocator, positions_.ReadChosen(rows), to.empty() ? 0 : to.back() + 1));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Block& target = kept.blocks[static_cast<std::size_t>(to[i] / kBlockRows)];
    const auto slot = static_cast<int>(to[i] % kBlockRows);
    MoveRow(rows[i], target, slot);
    if (target.slots == 0) target.first_row = static_cast<RowIndex>(i);
    target.slots |= std::uint64_t{1} << slot;
  }
  return kept;
}

Result<Tier::Kept> Tier::KeepWith(Allocator& allocator, std::span<const RowIndex> rows,
                                  const Incoming& incoming) const {
  KVS_DCHECK(store_->group_rows() == 1);
  const std::vector<TokenPos> held = positions_.ReadChosen(rows);
  std::vector<TokenPos> positions(held.size() + incoming.positions.size());
  std::merge(held.begin(), held.end(), incoming.positions.begin(), incoming.positions.end(),
             positions.begin());
  KVS_ASSIGN_OR_RETURN(Kept kept, RoomFor(allocator, positions, std::ssize(positions)));
  std::size_t moved = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    Block& target = kept.blocks[i / kBlockRows];
    const auto slot = static_cast<int>(i % kBlockRows);
    if (slot == 0) target.first_row = static_cast<RowIndex>(i);
    target.slots |= std::uint64_t{1} << slot;
    if (moved < held.size() && held[moved] == positions[i]) {
      MoveRow(rows[moved++], target, slot);
      continue;
    }
    const Status encoded =
        EncodeRow(incoming, static_cast<RowIndex>(i - moved), target, slot, &kept.saturated);
    if (encoded.ok()) continue;
    return Status(encoded.error().code, StrCat("position ", positions[i], ": ", encoded.message()));
  }
  return kept;
}

void Tier::Replace(Kept kept) {
  blocks_ = std::move(kept.blocks);
  positions_ = std::move(kept.positions);
  rows_ = positions_.rows();
  saturated_ += kept.saturated;
}

void Tier::ReadRows(Side side, RowIndex first, int count, float* out) const {
  const int dim = chain(side).dim();
  for (int done = 0; done < count;) {
    const Place at = PlaceOf(first + done);
    const int run = std::min(std::countr_one(blocks_[at.block].slots >> at.slot), count - done);
    chain(side).Decode(stats(side), block(at.block, side), at.slot, run,
                       out + std::int64_t{done} * dim);
    done += run;
  }
}

}  // namespace kvsieve
