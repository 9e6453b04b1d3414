// Which rows are so much longer than the others that a mean over all would tell of them alone.
#ifndef KVSIEVE_EVICT_TYPICAL_LENGTH_H_
#define KVSIEVE_EVICT_TYPICAL_LENGTH_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

namespace kvsieve::evict {

// The longest that a typical row may be, of rows of these lengths: 8 times the median, the lower of
// two. Keys of models differ in length by less than 3, so that all of them are typical; a row that
// is not may be longer by any factor. Inf where there are no rows, or most have no length.
inline float LongestTypical(std::vector<float> lengths) {
  constexpr float kFactor = 8;
  constexpr float kNone = std::numeric_limits<float>::infinity();
  if (lengths.empty()) return kNone;
  const auto median = lengths.begin() + (std::ssize(lengths) - 1) / 2;
  std::nth_element(lengths.begin(), median, lengths.end());
  return *median > 0 ? kFactor * *median : kNone;
}

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_TYPICAL_LENGTH_H_
