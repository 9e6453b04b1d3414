// Which rows are so much longer than the others that a mean over all would tell of them alone.
#ifndef KVSIEVE_TYPICAL_LENGTH_H_
#define KVSIEVE_TYPICAL_LENGTH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

namespace kvsieve {

// |row|, summed in f64. Lengths past the end of f32, and of rows that hold a NaN, are its largest.
inline float RowLength(const float* row, int dim) {
  constexpr double kLongest = std::numeric_limits<float>::max();
  constexpr int kSums = 8;  // one alone would wait for each of its additions
  double squares[kSums] = {};
  int d = 0;
  for (; d + kSums <= dim; d += kSums) {
    for (int i = 0; i < kSums; ++i) squares[i] += static_cast<double>(row[d + i]) * row[d + i];
  }
  for (; d < dim; ++d) squares[0] += static_cast<double>(row[d]) * row[d];
  const double square = std::accumulate(squares, squares + kSums, 0.0);
  return static_cast<float>(std::min(kLongest, std::sqrt(square)));
}

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

}  // namespace kvsieve

#endif  // KVSIEVE_TYPICAL_LENGTH_H_
