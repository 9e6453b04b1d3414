#include "quant/row_math.h"

#include <algorithm>
#include <bit>

#include "kvsieve/str_cat.h"

namespace kvsieve::quant {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
constexpr std::uint32_t kExponent = 0x7F800000U;

// 1.5 * 2^23: adding it to |x| < 2^22 leaves round-half-even(x) in the low mantissa bits. Unlike
// lrintf it vectorises on every target.
constexpr float kRounder = 12582912.0F;
constexpr std::int32_t kRounderBits = 0x4B400000;

}  // namespace

float AbsMax(const float* row, int dim) {
  std::int32_t largest = 0;  // magnitudes order like their bits
  for (int j = 0; j < dim; ++j) {
    largest = std::max(
        largest, static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(row[j]) & kMagnitude));
  }
  return std::bit_cast<float>(largest);
}

MinMax FindMinMax(const float* row, int dim) {
  MinMax result{row[0], row[0]};
  for (int j = 1; j < dim; ++j) {
    result.min = row[j] < result.min ? row[j] : result.min;
    result.max = row[j] > result.max ? row[j] : result.max;
  }
  return result;
}

double SumSquares(const float* row, int dim) {
  constexpr int kLanes = 8;
  double sums[kLanes] = {};
  int j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = row[j + lane];
      sums[lane] += x * x;
    }
  }
  for (; j < dim; ++j) sums[j % kLanes] += static_cast<double>(row[j]) * row[j];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void RoundToCodes(const float* row, int dim, float zero, float scale, CodeRange range,
                  std::uint8_t* codes) {
  if (scale == 0.0F) {
    std::fill(codes, codes + dim, static_cast<std::uint8_t>(range.bias));
    return;
  }
  for (int j = 0; j < dim; ++j) {
    float steps = (row[j] - zero) / scale;
    steps = steps < range.low ? range.low : steps;
    steps = steps > range.high ? range.high : steps;
    const std::int32_t code = std::bit_cast<std::int32_t>(steps + kRounder) - kRounderBits;
    codes[j] = static_cast<std::uint8_t>(code + range.bias);
  }
}

void CountThresholds(const float* row, int dim, const float* thresholds, int count,
                     std::uint8_t* codes) {
  for (int j = 0; j < dim; ++j) {
    std::int32_t code = 0;
    for (int k = 0; k < count; ++k) code += row[j] >= thresholds[k] ? 1 : 0;
    codes[j] = static_cast<std::uint8_t>(code);
  }
}

Status CheckFinite(const float* row, int dim, std::int64_t row_index, std::string_view codec) {
  std::int32_t bad = 0;
  for (int j = 0; j < dim; ++j) {
    bad |= (std::bit_cast<std::uint32_t>(row[j]) & kExponent) == kExponent ? 1 : 0;
  }
  if (bad == 0) return Status::Ok();
  int j = 0;
  while ((std::bit_cast<std::uint32_t>(row[j]) & kExponent) != kExponent) ++j;
  return {ErrorCode::kNonFinite, StrCat("row ", row_index, ", element ", j, " is ", row[j], "; ",
                                        codec, " stores finite values only")};
}

}  // namespace kvsieve::quant
