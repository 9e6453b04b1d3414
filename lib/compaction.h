// Eviction from a head that is already stored: the rows that stay move, bit by bit, into blocks of
// their own. Those that belong in a colder tier are encoded again for it, from what they decode to;
// no row moves to a warmer one, and exact rows stay exact.
#ifndef KVSIEVE_LIB_COMPACTION_H_
#define KVSIEVE_LIB_COMPACTION_H_

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/head_store.h"

namespace kvsieve {

// The rows of one head that stay, ready to be swapped in. Preparing is all that can fail.
class Compaction {
 public:
  // keep: increasing positions, each of them stored in `store`. tiers: where each belongs; empty:
  // where it is.
  static Result<Compaction> Prepare(Allocator& allocator, const RowShape& shape,
                                    const HeadStore& store, std::span<const TokenPos> keep,
                                    std::span<const std::uint8_t> tiers);
  // How many rows of `keep` would move to a colder tier.
  static std::int64_t Demoted(const HeadStore& store, std::span<const TokenPos> keep,
                              std::span<const std::uint8_t> tiers);
  // `store` is the one given to Prepare, unchanged since.
  void Commit(HeadStore& store);

 private:
  ExactRows sinks_;
  std::vector<Tier::Kept> tiers_;
  ExactRows tail_;
};

// One side of a stored head in increasing position: what is stored is what is scored.
class StoredRows final : public RowSource {
 public:
  StoredRows(std::shared_ptr<const StoredOrder> order, const RowShape& shape, Side side)
      : order_(std::move(order)), shape_(shape), side_(side) {}
  std::int64_t rows() const override { return order_->rows(); }
  int dim() const override { return shape_.dim(side_); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    order_->ReadRows(shape_, side_, first, count, out);
  }

 private:
  std::shared_ptr<const StoredOrder> order_;
  const RowShape& shape_;
  Side side_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_COMPACTION_H_
