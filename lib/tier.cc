#include "lib/tier.h"

#include <algorithm>
#include <utility>

namespace kvsieve {
namespace {

int RoundUpToPanel(std::int64_t rows) {
  return static_cast<int>((rows + kPanelRows - 1) / kPanelRows * kPanelRows);
}

constexpr Side kSides[] = {Side::kKey, Side::kValue};

const Chain& ChainOf(const LayerStore& store, Side side) {
  return side == Side::kKey ? *store.key : *store.value;
}

// Live bytes of one side, the positions left out.
struct SideBytes {
  std::int64_t codes = 0;
  std::int64_t scales = 0;
  std::int64_t stats = 0;  // once learnt

  SideBytes(const Chain& chain, std::int64_t rows)
      : codes(rows * chain.codec().row_bytes().codes),
        scales(rows * chain.codec().row_bytes().scales),
        stats(std::int64_t{chain.stats_floats()} * 4) {}
  std::int64_t total() const { return codes + scales + stats; }
};

}  // namespace

const float* Tier::stats(Side side) const {
  return stats_.As<float>() + (side == Side::kKey ? 0 : store_->key->stats_floats());
}

std::size_t Tier::block_bytes(int capacity_rows) const {
  return store_->key->codec().BlockBytes(capacity_rows) +
         store_->value->codec().BlockBytes(capacity_rows);
}

BlockRef Tier::side_of(Block& block, Side side) const {
  std::uint8_t* data = block.memory.data();
  if (side == Side::kValue) data += store_->key->codec().BlockBytes(block.capacity_rows);
  return {data, block.capacity_rows};
}

ConstBlockRef Tier::block(int b, Side side) const {
  return side_of(const_cast<Block&>(blocks_[b]), side);
}

Status Tier::ReserveStats(Allocator& allocator) {
  const int floats = store_->key->stats_floats() + store_->value->stats_floats();
  KVS_ASSIGN_OR_RETURN(stats_, Buffer::Allocate(allocator, static_cast<std::size_t>(floats) * 4));
  return Status::Ok();
}

Status Tier::Learn(const RowSource& keys, const RowSource& values) {
  float* learnt = stats_.As<float>();
  const auto named = [](std::string_view side, Status status) {
    if (status.ok()) return status;
    return Status(status.error().code, StrCat(side, ", of the rows kept ", status.message()));
  };
  KVS_RETURN_IF_ERROR(named("keys", store_->key->Learn(keys, learnt)));
  return named("values", store_->value->Learn(values, learnt + store_->key->stats_floats()));
}

Result<Tier::Block> Tier::NewBlock(Allocator& allocator, int capacity_rows) const {
  Block block;
  KVS_ASSIGN_OR_RETURN(block.memory, Buffer::Allocate(allocator, block_bytes(capacity_rows)));
  block.capacity_rows = capacity_rows;
  return block;
}

// Moves the open block's rows, bit by bit, into a larger one.
Status Tier::GrowOpenBlock(Allocator& allocator, int capacity_rows) {
  KVS_ASSIGN_OR_RETURN(Block larger, NewBlock(allocator, capacity_rows));
  const int last = static_cast<int>(blocks_.size()) - 1;
  const int open_rows = block_rows(last);
  for (const Side side : kSides) {
    const ConstBlockRef from = block(last, side);
    const BlockRef to = side_of(larger, side);
    for (int r = 0; r < open_rows; ++r) chain(side).codec().MoveRow(from, r, to, r);
  }
  blocks_.back() = std::move(larger);
  return Status::Ok();
}

Status Tier::Reserve(Allocator& allocator, std::span<const TokenPos> positions) {
  if (positions.empty()) return Status::Ok();
  const auto more = static_cast<std::int64_t>(positions.size());
  KVS_RETURN_IF_ERROR(positions_.Reserve(allocator, positions));
  const std::int64_t total = rows_ + more;
  const auto count = static_cast<std::size_t>((total + kBlockRows - 1) / kBlockRows);
  const auto capacity_of = [&](std::size_t b) {
    const std::int64_t left = total - static_cast<std::int64_t>(b) * kBlockRows;
    return RoundUpToPanel(std::min<std::int64_t>(left, kBlockRows));
  };
  if (!blocks_.empty() && blocks_.back().capacity_rows < capacity_of(blocks_.size() - 1)) {
    KVS_RETURN_IF_ERROR(GrowOpenBlock(allocator, capacity_of(blocks_.size() - 1)));
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
  const std::int64_t total = keys.rows();
  for (std::int64_t done = 0; done < total;) {
    const int slot = static_cast<int>(rows_ % kBlockRows);
    const int count = static_cast<int>(std::min<std::int64_t>(kBlockRows - slot, total - done));
    Block& target = blocks_[static_cast<std::size_t>(rows_ / kBlockRows)];
    for (const Side side : kSides) {
      (side == Side::kKey ? keys : values).ReadRows(done, count, scratch);
      const Status status =
          chain(side).Encode(stats(side), scratch, count, side_of(target, side), slot);
      KVS_DCHECK(status.ok());
      static_cast<void>(status);
      saturated_ += chain(side).codec().CountSaturated(scratch, count);
    }
    for (int i = 0; i < count; ++i) positions_.Append(positions[done + i]);
    rows_ += count;
    done += count;
  }
}

Status Tier::EncodeAhead(std::int64_t ahead, float* key, float* value) {
  const RowIndex row = rows_ + ahead;
  Block& target = blocks_[static_cast<std::size_t>(row / kBlockRows)];
  const int slot = static_cast<int>(row % kBlockRows);
  KVS_RETURN_IF_ERROR(
      store_->key->Encode(stats(Side::kKey), key, 1, side_of(target, Side::kKey), slot));
  KVS_RETURN_IF_ERROR(
      store_->value->Encode(stats(Side::kValue), value, 1, side_of(target, Side::kValue), slot));
  if (ahead == 0) saturated_ahead_ = 0;
  saturated_ahead_ += store_->key->codec().CountSaturated(key, 1);
  saturated_ahead_ += store_->value->codec().CountSaturated(value, 1);
  return Status::Ok();
}

void Tier::ShowNext(TokenPos position) {
  positions_.Append(position);
  ++rows_;
  saturated_ += saturated_ahead_;
  saturated_ahead_ = 0;
}

TokenPos Tier::DropBefore(TokenPos position) {
  std::size_t gone = 0;
  TokenPos last_gone = -1;
  TokenPos block_positions[kBlockRows];
  while ((static_cast<std::int64_t>(gone) + 1) * kBlockRows <= rows_) {
    positions_.Read(static_cast<RowIndex>(gone) * kBlockRows, kBlockRows, block_positions);
    if (block_positions[kBlockRows - 1] >= position) break;
    last_gone = block_positions[kBlockRows - 1];
    ++gone;
  }
  if (gone == 0) return last_gone;
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(gone));
  rows_ -= static_cast<std::int64_t>(gone) * kBlockRows;
  positions_.DropFront(static_cast<std::int64_t>(gone) * kBlockRows);
  return last_gone;
}

// Codes of rows that went stay in the open block until others take their place: kernels give them
// no weight, and what a codec wrote is finite.
void Tier::Trim(PositionList::Cut cut) {
  if (cut.rows == rows_) return;
  rows_ = cut.rows;
  positions_.Trim(std::move(cut));
  blocks_.erase(blocks_.begin() + blocks(), blocks_.end());
}

Result<Tier> Tier::Clone(Allocator& allocator, const LayerStore& store) const {
  Tier copy(store);
  copy.rows_ = rows_;
  copy.saturated_ = saturated_;
  KVS_ASSIGN_OR_RETURN(copy.stats_, stats_.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.positions_, positions_.Clone(allocator));
  for (const Block& block : blocks_) {
    Block& block_copy = copy.blocks_.emplace_back();
    block_copy.capacity_rows = block.capacity_rows;
    KVS_ASSIGN_OR_RETURN(block_copy.memory, block.memory.Clone(allocator));
  }
  return copy;
}

void Tier::MoveRows(std::span<const RowIndex> rows, Kept& kept) const {
  for (const Side side : kSides) {
    const Codec& codec = chain(side).codec();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto from = static_cast<int>(rows[i] / kBlockRows);
      codec.MoveRow(block(from, side), static_cast<int>(rows[i] % kBlockRows),
                    side_of(kept.blocks[i / kBlockRows], side), static_cast<int>(i % kBlockRows));
    }
  }
}

Result<Tier::Kept> Tier::Keep(Allocator& allocator, std::span<const RowIndex> rows) const {
  Kept kept;
  KVS_ASSIGN_OR_RETURN(kept.positions, PositionList::Build(allocator, positions_.ReadChosen(rows)));
  for (std::size_t done = 0; done < rows.size(); done += kBlockRows) {
    const auto left =
        static_cast<std::int64_t>(std::min<std::size_t>(rows.size() - done, kBlockRows));
    KVS_ASSIGN_OR_RETURN(Block block, NewBlock(allocator, RoundUpToPanel(left)));
    kept.blocks.push_back(std::move(block));
  }
  MoveRows(rows, kept);
  return kept;
}

void Tier::Replace(Kept kept) {
  blocks_ = std::move(kept.blocks);
  positions_ = std::move(kept.positions);
  rows_ = positions_.rows();
}

void Tier::ReadRows(Side side, RowIndex first, int count, float* out) const {
  const int dim = chain(side).dim();
  for (int done = 0; done < count;) {
    const RowIndex at = first + done;
    const int slot = static_cast<int>(at % kBlockRows);
    const int run = std::min(kBlockRows - slot, count - done);
    chain(side).Decode(stats(side), block(static_cast<int>(at / kBlockRows), side), slot, run,
                       out + std::int64_t{done} * dim);
    done += run;
  }
}

std::int64_t Tier::KeptBytes(const LayerStore& store, const PositionSpan& positions) {
  std::int64_t bytes = PositionList::BytesFor(positions);
  for (const Side side : kSides) bytes += SideBytes(ChainOf(store, side), positions.rows).total();
  return bytes;
}

void Tier::AddBytes(ByteReport& report) const {
  for (const Side side : kSides) {
    const RowBytes row = chain(side).codec().row_bytes();
    SideBytes live(chain(side), rows_);
    if (stats_.bytes() == 0) live.stats = 0;
    report.payload_bytes += live.codes;
    report.scale_bytes += live.scales;
    report.metadata_bytes += live.stats;
    (side == Side::kKey ? report.key_kept_bytes : report.value_kept_bytes) += live.total();
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const int capacity = blocks_[b].capacity_rows;
      const std::int64_t row_bytes = row.codes + row.scales;
      report.reserved_bytes += (capacity - block_rows(static_cast<int>(b))) * row_bytes;
      report.padding_bytes += static_cast<std::int64_t>(chain(side).codec().BlockBytes(capacity)) -
                              capacity * row_bytes;
    }
  }
  report.metadata_bytes += positions_.live_bytes();
  report.key_kept_bytes += positions_.live_bytes();
  report.reserved_bytes += positions_.resident_bytes() - positions_.live_bytes();
}

std::int64_t Tier::resident_bytes() const {
  std::size_t bytes = stats_.bytes();
  for (const Block& block : blocks_) bytes += block.memory.bytes();
  return static_cast<std::int64_t>(bytes) + positions_.resident_bytes();
}

}  // namespace kvsieve
