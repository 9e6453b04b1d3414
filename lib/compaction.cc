#include "lib/compaction.h"

#include <algorithm>
#include <utility>

namespace kvsieve {
namespace {

// Calls body(row, index in keep) for the rows of one segment whose position is in `keep`; both
// lists increase.
template <class Body>
void ForEachKept(const PositionList& positions, std::span<const TokenPos> keep, Body body) {
  std::size_t next = 0;
  TokenPos block[kBlockRows];
  for (RowIndex begin = 0; begin < positions.rows(); begin += kBlockRows) {
    const auto count =
        static_cast<int>(std::min<std::int64_t>(kBlockRows, positions.rows() - begin));
    positions.Read(begin, count, block);
    for (int i = 0; i < count; ++i) {
      while (next < keep.size() && keep[next] < block[i]) ++next;
      if (next < keep.size() && keep[next] == block[i]) body(begin + i, next);
    }
  }
}

std::vector<RowIndex> RowsToKeep(const PositionList& positions, std::span<const TokenPos> keep) {
  std::vector<RowIndex> rows;
  ForEachKept(positions, keep, [&](RowIndex row, std::size_t) { rows.push_back(row); });
  return rows;
}

// A row on its way to a colder tier.
struct Moving {
  TokenPos position;
  const Tier* from;
  RowIndex row;
};

class MovingRows final : public RowSource {
 public:
  MovingRows(std::span<const Moving> rows, const RowShape& shape, Side side)
      : rows_(rows), shape_(shape), side_(side) {}
  std::int64_t rows() const override { return std::ssize(rows_); }
  int dim() const override { return shape_.dim(side_); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    for (int i = 0; i < count; ++i, out += dim()) {
      const Moving& row = rows_[static_cast<std::size_t>(first + i)];
      row.from->ReadRows(side_, row.row, 1, out);
    }
  }

 private:
  std::span<const Moving> rows_;
  const RowShape& shape_;
  Side side_;
};

// The rows of a tier when `stay` stay and `moving` come, which are sorted by position here.
Result<Tier::Kept> KeepWith(Allocator& allocator, const RowShape& shape, const Tier& tier,
                            std::span<const RowIndex> stay, std::vector<Moving>& moving) {
  if (moving.empty()) return tier.Keep(allocator, stay);
  std::sort(moving.begin(), moving.end(),
            [](const Moving& a, const Moving& b) { return a.position < b.position; });
  std::vector<TokenPos> positions;
  for (const Moving& row : moving) positions.push_back(row.position);
  return tier.KeepWith(
      allocator, stay,
      {positions, MovingRows(moving, shape, Side::kKey), MovingRows(moving, shape, Side::kValue)});
}

}  // namespace

std::int64_t Compaction::Demoted(const HeadStore& store, std::span<const TokenPos> keep,
                                 std::span<const std::uint8_t> tiers) {
  if (tiers.empty()) return 0;
  std::int64_t demoted = 0;
  for (std::size_t t = 0; t < store.tiers.size(); ++t) {
    ForEachKept(store.tiers[t].positions(), keep,
                [&](RowIndex, std::size_t i) { demoted += tiers[i] > t ? 1 : 0; });
  }
  return demoted;
}

Result<Compaction> Compaction::Prepare(Allocator& allocator, const RowShape& shape,
                                       const HeadStore& store, std::span<const TokenPos> keep,
                                       std::span<const std::uint8_t> tiers) {
  std::vector<std::vector<RowIndex>> stay(store.tiers.size());
  std::vector<std::vector<Moving>> moving(store.tiers.size());
  for (std::size_t t = 0; t < store.tiers.size(); ++t) {
    const Tier& tier = store.tiers[t];
    ForEachKept(tier.positions(), keep, [&](RowIndex row, std::size_t i) {
      if (tiers.empty() || tiers[i] <= t) return stay[t].push_back(row);
      moving[tiers[i]].push_back({keep[i], &tier, row});
    });
  }
  Compaction compaction;
  KVS_ASSIGN_OR_RETURN(
      compaction.sinks_,
      store.sinks.Keep(allocator, shape, RowsToKeep(store.sinks.positions(), keep)));
  for (std::size_t t = 0; t < store.tiers.size(); ++t) {
    KVS_ASSIGN_OR_RETURN(Tier::Kept kept,
                         KeepWith(allocator, shape, store.tiers[t], stay[t], moving[t]));
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
