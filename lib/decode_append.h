// Rows that arrive after the prompt: through the exact tail into tier 0, every head or none. In two
// steps, so that several layers can take rows, or none of them.
#ifndef KVSIEVE_LIB_DECODE_APPEND_H_
#define KVSIEVE_LIB_DECODE_APPEND_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "lib/layer_state.h"
#include "lib/row_copy.h"

namespace kvsieve {

inline constexpr std::int64_t kEndlessTail = std::numeric_limits<std::int64_t>::max();

class DecodeAppend {
 public:
  // tail_rows: rows of a head that at least stay exact behind tier 0; kEndlessTail never encodes.
  DecodeAppend(LayerState& layer, Allocator& allocator, std::int64_t exact_sinks,
               std::int64_t tail_rows)
      : layer_(layer), allocator_(allocator), exact_sinks_(exact_sinks), tail_rows_(tail_rows) {}

  // All that can fail: checks and encodes the rows, of which none is visible yet. `positions` stay
  // valid until Commit, the rows need not.
  Status Prepare(const HeadsView& keys, const HeadsView& values,
                 std::span<const TokenPos> positions, NonFinitePolicy policy);
  // Shows them in every head and counts them. The layer has not changed since Prepare.
  void Commit();

 private:
  // The rows of one head that leave the tail, or pass through it, into tier 0. Heads may hold
  // tails of different lengths, for an evictor may keep fewer rows than the tail has room for.
  struct Leaving {
    std::int64_t held = 0;   // rows in the tail before
    std::int64_t count = 0;  // rows that go to tier 0: from the tail first, then new ones
    std::vector<TokenPos> positions;
    std::int64_t from_tail() const { return count < held ? count : held; }
    std::int64_t from_new() const { return count - from_tail(); }
  };
  Leaving PlanHead(const HeadStore& store) const;
  Status Stage(const HeadsView& keys, const HeadsView& values, NonFinitePolicy policy);
  Status ReserveHead(const Leaving& leaving, HeadStore& store);
  Status EncodeHead(int head, HeadStore& store);
  void ReadLeaving(int head, const HeadStore& store, std::int64_t first, int count, Side side,
                   float* out) const;
  void CommitHead(int head, HeadStore& store);
  void DropOutOfWindow();
  const std::uint8_t* staged(Side side, int head, std::int64_t r) const;

  LayerState& layer_;
  Allocator& allocator_;
  const std::int64_t exact_sinks_;
  const std::int64_t tail_rows_;

  std::span<const TokenPos> positions_;
  std::int64_t to_sinks_ = 0;       // leading new rows that are sinks
  std::vector<Leaving> leaving_;    // per head
  std::vector<std::uint8_t> keys_;  // the new rows, checked: [kv_heads][n][row]
  std::vector<std::uint8_t> values_;
  RowTally tally_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_DECODE_APPEND_H_
