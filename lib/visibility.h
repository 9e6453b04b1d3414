// Which rows a query sees: masks over the slots of one block.
#ifndef KVSIEVE_LIB_VISIBILITY_H_
#define KVSIEVE_LIB_VISIBILITY_H_

#include <cstdint>

#include "kvsieve/types.h"

namespace kvsieve {

// What a query at one position sees. Positions of rows are read only where the mask cuts.
class Visibility {
 public:
  // window: rows that the query sees, itself included; 0 = all.
  Visibility(TokenPos position, int window)
      : position_(position), oldest_(window > 0 ? std::int64_t{position} - window + 1 : 0) {}

  bool All(TokenPos first, TokenPos last) const { return last <= position_ && first >= oldest_; }
  // Bit r stands for row r.
  std::uint64_t Mask(const TokenPos* positions, int rows) const {
    std::uint64_t mask = 0;
    for (int r = 0; r < rows; ++r) {
      const bool visible = positions[r] <= position_ && positions[r] >= oldest_;
      mask |= std::uint64_t{visible} << r;
    }
    return mask;
  }

 private:
  TokenPos position_;
  std::int64_t oldest_;
};

// Bit n of `mask` to the place of the n-th bit set in `slots`.
inline std::uint64_t Spread(std::uint64_t mask, std::uint64_t slots) {
  const bool without_gaps = (slots & (slots + 1)) == 0;
  if (without_gaps) return mask;
  std::uint64_t spread = 0;
  for (; slots != 0; slots &= slots - 1, mask >>= 1) {
    if ((mask & 1) != 0) spread |= slots & (~slots + 1);
  }
  return spread;
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_VISIBILITY_H_
