// All stored rows of one KV head: [exact sinks][tier 0][tier 1]...[exact tail]. Attention merges
// the segments by online softmax, so each may be stored in its own way.
#ifndef KVSIEVE_LIB_HEAD_STORE_H_
#define KVSIEVE_LIB_HEAD_STORE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/byte_report.h"
#include "kvsieve/types.h"
#include "lib/exact_rows.h"
#include "lib/tier.h"

namespace kvsieve {

// Counts `rows` stored rows.
inline void AddRows(const RowShape& shape, std::int64_t rows, ByteReport& report) {
  report.rows_kept += rows;
  report.f16_rows_bytes += rows * shape.f16_row_bytes();
}

struct HeadStore {
  ExactRows sinks;
  std::vector<Tier> tiers;
  ExactRows tail;

  std::int64_t rows() const;
  // Once all tiers are there.
  void ShareStats() {
    for (std::size_t t = 1; t < tiers.size(); ++t) tiers[t].BorrowFrom(tiers.front());
  }
  // The same rows: exact ones copied, encoded ones as Tier::Fork says. stores: those of the tiers,
  // for the fork.
  Result<HeadStore> Fork(Allocator& allocator, std::span<const LayerStore> stores) const;
  // lib/tier_save.cc.
  void Save(const RowShape& shape, StateWriter& out) const;
  static Result<HeadStore> Load(Allocator& allocator, const RowShape& shape,
                                std::span<const LayerStore> stores, StateReader& in);
  // Payload, scales, metadata, padding, reserve and rows_kept of the exact rows, and of each tier:
  // [1 + tiers].
  std::vector<ByteReport> BytesByStore(const RowShape& shape) const;
};

// The rows of a head in increasing position, whatever segments hold them. Outlived by the store,
// which does not change.
class StoredOrder {
 public:
  explicit StoredOrder(const HeadStore& store);
  std::int64_t rows() const { return store_.rows(); }
  void ReadPositions(TokenPos* out) const;
  // Of each row the tier that holds it; `exact` for sinks and tail.
  void ReadTiers(std::int32_t exact, std::int32_t* out) const;
  // Rows [first, first + count) of one side, decoded: f32 [count, dim].
  void ReadRows(const RowShape& shape, Side side, RowIndex first, int count, float* out) const;

 private:
  const HeadStore& store_;
  // Of each row, its place among sinks, tiers and tail one after the other. Empty where that is the
  // order of positions: when at most one tier has rows.
  std::vector<RowIndex> places_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_HEAD_STORE_H_
