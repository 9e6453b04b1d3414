// Encoded rows of a saved cache: what the chains learnt, positions, and blocks as they lie in
// memory. A block is written with room for its rows alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/head_store.h"
#include "lib/state_stream.h"
#include "lib/tier.h"

namespace kvsieve {
namespace {

// The statistics follow, then the positions, then the slots of each block, then the blocks.
struct TierRecord {
  std::int64_t saturated;
  std::uint32_t stats_floats;
  std::uint32_t blocks;
};

// Rows lie in the first slots of their group, groups in the first places of their block, and only
// the last block has room for more groups.
bool GoodSlots(std::uint64_t slots, int group_rows, bool last_block) {
  const std::uint64_t all = ~std::uint64_t{0} >> (kBlockRows - group_rows);
  bool ended = false;
  for (int first = 0; first < kBlockRows; first += group_rows) {
    const std::uint64_t group = slots >> first & all;
    if ((group & (group + 1)) != 0 || (group != 0 && ended)) return false;
    ended = ended || group == 0;
  }
  return slots != 0 && (last_block || !ended);
}

}  // namespace

void Tier::Save(StateWriter& out) const {
  const int held = blocks();
  out.Put(TierRecord{saturated_, static_cast<std::uint32_t>(stats_.bytes() / sizeof(float)),
                     static_cast<std::uint32_t>(held)});
  out.Bytes(stats_.data(), stats_.bytes());
  positions_.Save(out);
  for (int b = 0; b < held; ++b) out.Put(blocks_[b].slots);
  for (int b = 0; b < held; ++b) {
    const Block& block = blocks_[b];
    if (~block.slots == 0) {
      out.Bytes(block.memory.data(), block_bytes(kBlockRows));
      continue;
    }
    // The cache's own allocator serves no const call.
    Result<Block> tight = TightBlock(DefaultAllocator(), block.slots);
    if (!tight.ok()) return out.Fail(tight.TakeStatus());
    CopyRows(block, *tight);
    out.Bytes(tight->memory.data(), tight->memory.bytes());
  }
}

Result<Tier> Tier::Load(Allocator& allocator, const LayerStore& store, StateReader& in) {
  Tier tier(store);
  TierRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  if (record.saturated < 0) return BadState("saturated", "below 0");
  KVS_RETURN_IF_ERROR(tier.LoadStats(allocator, in, record.stats_floats));
  tier.saturated_ = record.saturated;
  KVS_ASSIGN_OR_RETURN(tier.positions_, PositionList::Load(allocator, in));
  if (record.stats_floats == 0 && store.stats_floats() > 0 && tier.positions_.rows() > 0) {
    return BadState("statistics", "missing beside rows");
  }
  KVS_RETURN_IF_ERROR(tier.LoadBlocks(allocator, in, record.blocks));
  return tier;
}

// Tiers of formats 1 and 2 had all statistics of their own, also without rows; they keep them.
Status Tier::LoadStats(Allocator& allocator, StateReader& in, std::uint32_t floats) {
  std::uint32_t all = 0;
  for (const Side side : store_->sides()) {
    all += static_cast<std::uint32_t>(chain(side).stats_floats());
  }
  const auto own = static_cast<std::uint32_t>(store_->stats_floats());
  const bool none = floats == 0 && !store_->grows;
  if (floats != own && floats != all && !none) {
    return BadState("statistics", StrCat(floats, " numbers, expected ", own));
  }
  owns_all_ = floats == all && floats != own;
  if (floats == 0) return Status::Ok();
  KVS_RETURN_IF_ERROR(in.NeedLeft("statistics", floats, sizeof(float)));
  KVS_ASSIGN_OR_RETURN(stats_, SharedBuffer::Allocate(allocator, floats * sizeof(float)));
  KVS_RETURN_IF_ERROR(in.Bytes(stats_.data(), stats_.bytes()));
  const auto* stats = reinterpret_cast<const float*>(stats_.data());
  if (std::all_of(stats, stats + floats, [](float x) { return std::isfinite(x); })) {
    return Status::Ok();
  }
  return BadState("statistics", "NaN or Inf");
}

Status Tier::LoadBlocks(Allocator& allocator, StateReader& in, std::uint32_t count) {
  KVS_RETURN_IF_ERROR(in.NeedLeft("blocks", count, sizeof(std::uint64_t)));
  std::vector<std::uint64_t> slots(count);
  KVS_RETURN_IF_ERROR(in.Bytes(slots.data(), count * sizeof(std::uint64_t)));
  std::int64_t rows = 0;
  for (std::uint32_t b = 0; b < count; ++b) {
    if (!GoodSlots(slots[b], store_->group_rows(), b + 1 == count)) {
      return BadState("slots", StrCat("of block ", b, " are none that rows can have"));
    }
    rows += std::popcount(slots[b]);
  }
  if (rows != positions_.rows()) {
    return BadState("slots",
                    StrCat("of ", rows, " rows, there are ", positions_.rows(), " positions"));
  }
  blocks_.reserve(count);
  for (const std::uint64_t of_block : slots) {
    KVS_RETURN_IF_ERROR(LoadBlock(allocator, in, of_block));
  }
  return Status::Ok();
}

Status Tier::LoadBlock(Allocator& allocator, StateReader& in, std::uint64_t slots) {
  KVS_ASSIGN_OR_RETURN(Block block, TightBlock(allocator, slots));
  KVS_RETURN_IF_ERROR(in.Bytes(block.memory.data(), block.memory.bytes()));
  block.slots = slots;
  block.first_row = rows_;
  if (~slots != 0) {
    KVS_ASSIGN_OR_RETURN(Block tight, TightBlock(DefaultAllocator(), slots));
    CopyRows(block, tight);
    if (std::memcmp(block.memory.data(), tight.memory.data(), block.memory.bytes()) != 0) {
      return BadState("blocks", "bytes that belong to no row are not 0");
    }
  }
  rows_ += std::popcount(slots);
  blocks_.push_back(std::move(block));
  return Status::Ok();
}

void HeadStore::Save(const RowShape& shape, StateWriter& out) const {
  sinks.Save(shape, out);
  for (const Tier& tier : tiers) tier.Save(out);
  tail.Save(shape, out);
}

Result<HeadStore> HeadStore::Load(Allocator& allocator, const RowShape& shape,
                                  std::span<const LayerStore> stores, StateReader& in) {
  const auto exact = [&](std::string_view name, ExactRows& rows) -> Status {
    Result<ExactRows> loaded = ExactRows::Load(allocator, shape, in);
    if (!loaded.ok()) return InState(name, loaded.TakeStatus());
    rows = *std::move(loaded);
    return Status::Ok();
  };
  HeadStore head;
  KVS_RETURN_IF_ERROR(exact("sinks", head.sinks));
  for (std::size_t t = 0; t < stores.size(); ++t) {
    Result<Tier> tier = Tier::Load(allocator, stores[t], in);
    if (!tier.ok()) return InState(StrCat("tier ", t), tier.TakeStatus());
    head.tiers.push_back(*std::move(tier));
  }
  head.ShareStats();
  KVS_RETURN_IF_ERROR(exact("tail", head.tail));
  return head;
}

}  // namespace kvsieve
