// Which rows of a layer stay: the only thing that eviction hands to storage.
#ifndef KVSIEVE_KEEP_SET_H_
#define KVSIEVE_KEEP_SET_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

// Per KV head a strictly increasing list of positions, each with a tier number (0 = the pipeline's
// main store, 1.. = colder stores). Heads may keep different numbers of rows. Immutable.
class KeepSet {
 public:
  KeepSet() = default;

  // `head_begin` has kv_heads + 1 entries: head h owns [head_begin[h], head_begin[h + 1]) of
  // `positions` (and of `tiers`, which is empty when every tier is 0). Fails, naming head and
  // position, unless each head's positions are non-negative and strictly increasing.
  static Result<KeepSet> Create(std::vector<std::int64_t> head_begin,
                                std::vector<TokenPos> positions, std::vector<std::uint8_t> tiers);

  int kv_heads() const {
    return head_begin_.empty() ? 0 : static_cast<int>(head_begin_.size()) - 1;
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(positions_.size()); }
  std::int64_t rows(int head) const { return head_begin_[head + 1] - head_begin_[head]; }
  std::span<const TokenPos> positions(int head) const {
    return std::span(positions_).subspan(head_begin_[head], rows(head));
  }
  // Empty when every row is in tier 0.
  std::span<const std::uint8_t> tiers(int head) const {
    return tiers_.empty() ? std::span<const std::uint8_t>()
                          : std::span(tiers_).subspan(head_begin_[head], rows(head));
  }

 private:
  std::vector<std::int64_t> head_begin_;
  std::vector<TokenPos> positions_;
  std::vector<std::uint8_t> tiers_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_KEEP_SET_H_
