// Slots of a block: a mask of those that hold rows, bit s for slot s, and how many there are.
#ifndef KVSIEVE_LIB_BLOCK_SLOTS_H_
#define KVSIEVE_LIB_BLOCK_SLOTS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kvsieve/codec.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/types.h"

namespace kvsieve {

inline std::int64_t RoundUp(std::int64_t n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

inline int SlotsUsed(std::uint64_t slots) { return kBlockRows - std::countl_zero(slots); }

// The n-th of the slots set.
inline int NthSlot(std::uint64_t slots, int n) {
  const bool without_gaps = (slots & (slots + 1)) == 0;
  if (without_gaps) return n;
  for (; n > 0; --n) slots &= slots - 1;
  return std::countr_zero(slots);
}

// The first `count` of the slots set.
inline std::uint64_t FirstSlots(std::uint64_t slots, std::int64_t count) {
  while (std::popcount(slots) > count) slots &= ~std::bit_floor(slots);
  return slots;
}

// Slots of the block that holds the first of `rows` rows.
inline int CapacityFor(const LayerStore& store, std::int64_t rows) {
  const int unit = std::max(kPanelRows, store.group_rows());
  return static_cast<int>(RoundUp(std::min<std::int64_t>(rows, kBlockRows), unit));
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_BLOCK_SLOTS_H_
