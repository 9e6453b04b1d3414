// Turns a budget in bytes into rows. Evict ranks the rows once and knows no bytes; the stores know
// what rows take. Between the two stands this search.
#ifndef KVSIEVE_LIB_BYTE_BUDGET_H_
#define KVSIEVE_LIB_BYTE_BUDGET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"
#include "lib/layer_state.h"

namespace kvsieve {

// kept_bytes of one head right after the prompt if it keeps the rows at `kept` (increasing):
// payload, scales, statistics and positions of sinks, tiers and tail. tiers: of each row, or empty
// when all are in tier 0.
std::int64_t KeptBytes(const LayerState& layer, std::int64_t tail, std::span<const TokenPos> kept,
                       std::span<const std::uint8_t> tiers);

// f16 K and V that a plain engine would hold of one layer.
std::int64_t FullBytes(const LayerState& layer);

struct ByteBudgetCall {
  const Evictor& evictor;  // its budget is in bytes
  const TierRule& tiers;
  std::int64_t limit_bytes = 0;
  std::int64_t fixed_bytes = 0;  // part of the limit taken by layers that are not ranked
  std::int64_t tail = 0;
  std::span<const LayerState* const> layers;  // ranked
  std::span<const Observation> observations;  // one per layer
};

// What a layer's report says where `bytes` stay whatever the budget.
std::string MustStayNote(const ByteBudgetCall& call, std::int64_t bytes);

// The largest number of rows, over all heads, whose kept bytes are within the limit: as many rows
// of each head, then one more in (layer, head) order while it fits, divided by the evictor's split.
// When everything fits, nothing is scored; when the rows that must stay do not, they stay and the
// notes say so.
//
// Bytes grow with rows except where positions change to a shorter form (a head that closes its last
// gap stores one position) and where exact rows become a group of a codec that stores such. Found
// is a number of rows that fits while one more row does not; beyond such a step a still larger one
// may fit as well, and only that of all rows is tried.
Result<std::vector<LayerDecision>> DecideBytes(const ByteBudgetCall& call, Parallel& parallel,
                                               ScoreScratch* scratch);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_BYTE_BUDGET_H_
