// What a tier says of its memory, and what one would take.
#include <bit>
#include <cstdint>

#include "lib/block_slots.h"
#include "lib/tier.h"

namespace kvsieve {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

// Slots of the groups that hold rows.
int SlotsOfGroups(std::uint64_t slots, int group_rows) {
  const std::uint64_t group = ~std::uint64_t{0} >> (kBlockRows - group_rows);
  int count = 0;
  for (int first = 0; first < kBlockRows; first += group_rows) {
    if ((slots >> first & group) != 0) count += group_rows;
  }
  return count;
}

// One side of a block of which `slots` hold rows. Slots behind the last group are room for rows to
// come; those that rows left behind in a group are padding, but its scales are all in use.
ByteReport BlockBytes(const Codec& codec, int group_rows, int capacity_rows, std::uint64_t slots) {
  const RowBytes row = codec.row_bytes();
  const std::int64_t room = capacity_rows - RoundUp(SlotsUsed(slots), group_rows);
  ByteReport report;
  report.payload_bytes = std::popcount(slots) * row.codes;
  report.scale_bytes = SlotsOfGroups(slots, codec.group_rows()) * row.scales;
  const std::int64_t kept = report.payload_bytes + report.scale_bytes;
  (codec.side() == Side::kKey ? report.key_kept_bytes : report.value_kept_bytes) = kept;
  report.reserved_bytes = room * (row.codes + row.scales);
  report.padding_bytes =
      static_cast<std::int64_t>(codec.BlockBytes(capacity_rows)) - kept - report.reserved_bytes;
  return report;
}

ByteReport BytesOfStats(Side side, int floats) {
  ByteReport report;
  report.metadata_bytes = floats * kFloatBytes;
  (side == Side::kKey ? report.key_kept_bytes : report.value_kept_bytes) = report.metadata_bytes;
  return report;
}

}  // namespace

ByteReport Tier::BytesOf(const LayerStore& store, std::int64_t rows,
                         const PositionBytes& positions) {
  const std::int64_t full_blocks = rows / kBlockRows;
  const std::int64_t open_rows = rows % kBlockRows;
  ByteReport report;
  for (const Side side : store.sides()) {
    const Chain& chain = store.chain(side);
    if (store.learns(rows)) report += BytesOfStats(side, store.stats_floats(side));
    const auto block = [&](int capacity_rows, std::int64_t block_rows) {
      return BlockBytes(chain.codec(), store.group_rows(), capacity_rows,
                        ~std::uint64_t{0} >> (kBlockRows - block_rows));
    };
    report += block(kBlockRows, kBlockRows) * full_blocks;
    if (open_rows > 0) report += block(CapacityFor(store, open_rows), open_rows);
  }
  positions.AddTo(report);
  return report;
}

std::int64_t Tier::StatsBytes(const LayerStore& store) {
  return store.stats_floats() * kFloatBytes;
}

void Tier::CountStats(ByteReport& report) const {
  if (stats_.bytes() == 0) return;
  for (const Side side : store_->sides()) report += BytesOfStats(side, own_floats(side));
}

void Tier::AddBytes(ByteReport& report) const {
  CountStats(report);
  for (const Side side : store_->sides()) {
    for (const Block& block : blocks_) {
      report +=
          BlockBytes(chain(side).codec(), store_->group_rows(), block.capacity_rows, block.slots);
    }
  }
  positions_.bytes().AddTo(report);
  const auto add_shared = [&report](const SharedBuffer& memory) {
    if (memory.shared()) report.shared_bytes += static_cast<std::int64_t>(memory.bytes());
  };
  add_shared(stats_);
  for (const Block& block : blocks_) add_shared(block.memory);
}

void Tier::AddRepeated(CountedMemory& counted, ByteReport& repeated) const {
  if (stats_.shared() && !counted.try_emplace(stats_.data()).second) {
    CountStats(repeated);
    repeated.shared_bytes += static_cast<std::int64_t>(stats_.bytes());
  }
  for (const Block& block : blocks_) {
    if (!block.memory.shared()) continue;
    const auto [held, first] = counted.try_emplace(block.memory.data(), block.slots);
    if (first) continue;
    // All hold the first so many of its rows. A row that any holds counts, once.
    for (const Side side : store_->sides()) {
      repeated += BlockBytes(chain(side).codec(), store_->group_rows(), block.capacity_rows,
                             held->second & block.slots);
    }
    repeated.shared_bytes += static_cast<std::int64_t>(block.memory.bytes());
    held->second |= block.slots;
  }
}

}  // namespace kvsieve
