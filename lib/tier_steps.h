// What a byte buys for each row, tier by tier: the arithmetic of a plan in bytes.
//
// Rung 0 is a row that is not stored; rung i takes bytes[i] a row, more than rung i - 1. The loss
// of a row on rung i is key * key_errors[i] + value * value_errors[i], on rung 0 its drop loss. The
// step to rung i,
//   steps[i - 1] = min over a < i of max over b >= i of (loss[a] - loss[b]) / (bytes[b] - bytes[a])
// is the slope of the lower convex hull of (bytes, loss) there (the min-max form of antitonic
// regression; Barlow, Bartholomew, Bremner and Brunk 1972). Steps never increase with i, and rungs
// above the hull have the step of the rung that overtakes them. At a price of lambda a byte the row
// that costs least stands on rung #{i : steps[i] >= lambda}.
//
// Operations of one row do not mix with others', so steps are the same bits on every target.
#ifndef KVSIEVE_LIB_TIER_STEPS_H_
#define KVSIEVE_LIB_TIER_STEPS_H_

#include <array>
#include <cstdint>
#include <span>

namespace kvsieve {

inline constexpr int kMaxRungs = 16;  // beside rung 0

struct Ladder {
  int rungs = 0;
  std::array<float, kMaxRungs + 1> bytes = {};  // a row; increasing from bytes[0] = 0
  std::array<float, kMaxRungs + 1> key_errors = {};
  std::array<float, kMaxRungs + 1> value_errors = {};
};

// Losses per unit of normalised squared error, [rows] each; 0 <= loss <= 1e30.
struct RowLossSpans {
  std::span<const float> key;
  std::span<const float> value;
  std::span<const float> drop;
};

// steps: [ladder.rungs, rows].
void FindSteps(const Ladder& ladder, const RowLossSpans& losses, float* steps);

// How many of `values` are >= least. values hold no NaN.
std::int64_t CountAtLeast(std::span<const float> values, float least);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_TIER_STEPS_H_
