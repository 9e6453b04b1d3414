#include "lib/compaction.h"

#include <algorithm>
#include <utility>

namespace kvsieve {
namespace {

// Indexes of the rows of one segment whose position is in `keep`; both lists increase.
std::vector<RowIndex> RowsToKeep(const PositionList& positions, std::span<const TokenPos> keep) {
  std::vector<RowIndex> rows;
  auto next = keep.begin();
  TokenPos block[kBlockRows];
  for (RowIndex begin = 0; begin < positions.rows(); begin += kBlockRows) {
    const auto count =
        static_cast<int>(std::min<std::int64_t>(kBlockRows, positions.rows() - begin));
    positions.Read(begin, count, block);
    for (int i = 0; i < count; ++i) {
      while (next != keep.end() && *next < block[i]) ++next;
      if (next != keep.end() && *next == block[i]) rows.push_back(begin + i);
    }
  }
  return rows;
}

}  // namespace

Result<Compaction> Compaction::Prepare(Allocator& allocator, const RowShape& shape,
                                       const HeadStore& store, std::span<const TokenPos> keep) {
  Compaction compaction;
  KVS_ASSIGN_OR_RETURN(
      compaction.sinks_,
      store.sinks.Keep(allocator, shape, RowsToKeep(store.sinks.positions(), keep)));
  for (const Tier& tier : store.tiers) {
    KVS_ASSIGN_OR_RETURN(Tier::Kept kept, tier.Keep(allocator, RowsToKeep(tier.positions(), keep)));
    compaction.tiers_.push_back(std::move(kept));
  }
  KVS_ASSIGN_OR_RETURN(compaction.tail_,
                       store.tail.Keep(allocator, shape, RowsToKeep(store.tail.positions(), keep)));
  return compaction;
}

void Compaction::Commit(HeadStore& store) {
  store.sinks = std::move(sinks_);
  for (std::size_t t = 0; t < tiers_.size(); ++t) store.tiers[t].Replace(std::move(tiers_[t]));
  store.tail = std::move(tail_);
}

}  // namespace kvsieve
