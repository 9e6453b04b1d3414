#include "bench/peers/exact_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace kvsieve::bench {
namespace {

using Vector = std::array<double, kDim>;

constexpr double kF32Half = 0x1p-24;  // largest relative rounding error of f32
constexpr double kF16Half = 0x1p-11;

double Square(double x) { return x * x; }

double Norm(const float* x) {
  double sum = 0;
  for (int d = 0; d < kDim; ++d) sum += Square(x[d]);
  return std::sqrt(sum);
}

// Normalised weights of all rows.
std::vector<double> Weights(const HeadRows& rows, const float* query) {
  std::vector<double> weights(static_cast<std::size_t>(rows.rows()));
  for (std::size_t r = 0; r < weights.size(); ++r) {
    const float* key = rows.keys.data() + r * kDim;
    double dot = 0;
    for (int d = 0; d < kDim; ++d) dot += static_cast<double>(query[d]) * key[d];
    weights[r] = dot * kScale;
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - top);
  for (double& weight : weights) weight /= sum;
  return weights;
}

Vector Output(const HeadRows& rows, const std::vector<double>& weights) {
  Vector out{};
  for (std::size_t r = 0; r < weights.size(); ++r) {
    const float* value = rows.values.data() + r * kDim;
    for (int d = 0; d < kDim; ++d) out[d] += weights[r] * value[d];
  }
  return out;
}

// Standard deviation of one logit.
double LogitDeviation(double key_norm, const float* query, const Rounding& rounding) {
  const double norm = Norm(query);
  double step = 0;  // squared, summed over blocks that share a largest element
  for (int begin = 0; begin < kDim; begin += rounding.query_block) {
    double largest = 0;
    for (int d = begin; d < begin + rounding.query_block; ++d) {
      largest = std::max(largest, std::fabs(static_cast<double>(query[d])));
    }
    step += Square(rounding.query_step * largest) * rounding.query_block / kDim;
  }
  return kScale * key_norm *
         std::sqrt(step + Square(rounding.query_relative * norm) +
                   Square(rounding.code * norm) / kDim);
}

// Variance of an output that is summed in f16: each sum is rounded, but never by more than what was
// added, since the sum before is an f16 number.
double F16SumVariance(const HeadRows& rows, const std::vector<double>& weights) {
  Vector sum{};
  double variance = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    const float* value = rows.values.data() + r * kDim;
    for (int d = 0; d < kDim; ++d) {
      const double added = weights[r] * value[d];
      sum[d] += added;
      variance += Square(std::min(std::fabs(added), kF16Half * std::fabs(sum[d])));
    }
  }
  return variance;
}

// What the sums over all rows need.
struct RowSums {
  double key_norm = 0;       // the largest
  double spread = 0;         // sum of weight x |value - out|
  double spread_square = 0;  // sum of its square
  double square = 0;         // sum of (weight x |value|)^2
  double block_square = 0;   // the same with the largest weight of the row's 64
  double norm = 0;           // sum of weight x |value|
};

RowSums Sum(const HeadRows& rows, const std::vector<double>& weights, const Vector& out) {
  RowSums sums;
  double block_top = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    if (r % kBlockRows == 0) {
      const auto first = weights.begin() + static_cast<std::ptrdiff_t>(r);
      block_top =
          *std::max_element(first, first + static_cast<std::ptrdiff_t>(std::min<std::size_t>(
                                               kBlockRows, weights.size() - r)));
    }
    const float* value = rows.values.data() + r * kDim;
    double distance = 0;
    for (int d = 0; d < kDim; ++d) distance += Square(value[d] - out[d]);
    const double norm = Norm(value);
    sums.key_norm = std::max(sums.key_norm, Norm(rows.keys.data() + r * kDim));
    sums.spread += weights[r] * std::sqrt(distance);
    sums.spread_square += Square(weights[r]) * distance;
    sums.square += Square(weights[r] * norm);
    sums.block_square += Square(block_top * norm);
    sums.norm += weights[r] * norm;
  }
  return sums;
}

// An error e of a row's logit moves the output by weight x e x (value - out), to first order.
// Rounding errors of rows are independent, so their variances add up; six standard deviations of
// that are allowed. f32 rounding of a logit is allowed in full for all rows at once: (dim + 2)
// roundings, each relative to |query| |key|, weights being off by twice that.
double Tolerance(const HeadRows& rows, const std::vector<double>& weights, const float* query,
                 const Rounding& rounding, const Vector& out) {
  const RowSums sums = Sum(rows, weights, out);
  const double logit = LogitDeviation(sums.key_norm, query, rounding);
  const auto count = static_cast<double>(weights.size());
  double variance = Square(logit) * sums.spread_square + Square(rounding.code) * sums.square +
                    Square(rounding.weight) * sums.block_square +
                    Square(kF32Half * sums.norm) * count;  // f32 sums of weights and values
  if (rounding.f16_sums) variance += F16SumVariance(rows, weights);
  const double f32_logit = (kDim + 2) * kF32Half * kScale * Norm(query) * sums.key_norm;
  return 6 * std::sqrt(variance) + 2 * f32_logit * sums.spread;
}

}  // namespace

Deviation Deviate(const HeadRows& rows, const float* query, const Rounding& rounding,
                  const float* out) {
  const std::vector<double> weights = Weights(rows, query);
  const Vector exact = Output(rows, weights);
  double error = 0;
  double norm = 0;
  for (int d = 0; d < kDim; ++d) {
    error += Square(out[d] - exact[d]);
    norm += Square(exact[d]);
  }
  norm = std::sqrt(norm);
  return {std::sqrt(error) / norm, Tolerance(rows, weights, query, rounding, exact) / norm};
}

}  // namespace kvsieve::bench
