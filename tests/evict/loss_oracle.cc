#include "tests/evict/loss_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvsieve::oracle {
namespace {

constexpr double kUnit = 0x1p-24;  // f32 rounding error, relative
// Weights below 1e-19 have squares below f32; weights below 2.7e-38 are 0.
constexpr double kLeastWeight = 1e-19;

// One head's sums over its queries. All are of terms that are not negative, so that bounds add up,
// as do the rounding errors of the sums: 2^-24 a term.
struct Sums {
  std::vector<Range> key, value, drop;  // [rows]
  std::vector<Range> diagonal;          // [rows]: the squares of the sums along them
  Range output_square;
  double query_square = 0;
  double terms = 0;  // queries of all heads of the group
  double group = 0;
};

void Add(Range* sum, double least, double most) {
  sum->least += std::max(0.0, least);
  sum->most += most;
}

// p (1 - e) .. p (1 + e) squared.
Range SquareOf(double value, double error) {
  const double least = std::max(0.0, value - error);
  return {least * least, (value + error) * (value + error)};
}

// A row's three terms of one query: p^2 |v - o|^2, p^2 |v|^2, (p / (1 - p))^2 |v - o|^2, or |v|^2
// of a row that has all of the weight. The odds amplify the error of p by 1 / (1 - p); o is off by
// output.error; a length is off by (dim + 4) * 2^-24 of itself. Gives p |v - o|.
Range AddRow(double weight, double weight_error, const Output& output, const float* value,
             Range* const to[3]) {
  const auto dim = output.o.size();
  double distance = 0;
  double length = 0;
  for (std::size_t d = 0; d < dim; ++d) {
    distance += (output.o[d] - value[d]) * (output.o[d] - value[d]);
    length += static_cast<double>(value[d]) * value[d];
  }
  distance = std::sqrt(distance);
  length = std::sqrt(length);
  const double rounding = (static_cast<double>(dim) + 4) * kUnit;
  const Range away = SquareOf(distance, output.error + distance * rounding);
  const Range size = SquareOf(length, length * rounding);
  const Range p = SquareOf(weight, weight * (weight_error + 4 * kUnit) + kLeastWeight);
  constexpr double kAlone = 1 - 0x1p-20;  // from here on |v| is what goes with the row
  const double clamped = std::min(weight, kAlone);
  const double odds = clamped / (1 - clamped);
  const double odds_error =
      odds * std::min(1.0, (weight_error + 4 * kUnit) / (1 - clamped)) + kLeastWeight;
  const Range odds_square = SquareOf(odds, odds_error);
  Add(to[0], p.least * away.least, p.most * away.most);
  Add(to[1], p.least * size.least, p.most * size.most);
  Range moved = {odds_square.least * away.least, odds_square.most * away.most};
  // Which of the two f32 takes is not certain close to it.
  const bool near = std::abs(weight - kAlone) <= kAlone * (weight_error + 4 * kUnit);
  if (near) moved = {std::min(moved.least, size.least), std::max(moved.most, size.most)};
  if (!near && weight > kAlone) moved = size;
  Add(to[2], moved.least, moved.most);
  return {std::sqrt(p.least * away.least), std::sqrt(p.most * away.most)};
}

// Of one query head: a sum of as many terms as queries, then its square. Sums below 1e-19 have
// squares below f32.
void AddSquares(const std::vector<Range>& along, int queries, std::vector<Range>* to) {
  const double rounding = (queries + 4) * kUnit;
  for (std::size_t j = 0; j < along.size(); ++j) {
    const double least = std::max(0.0, along[j].least * (1 - rounding) - kLeastWeight);
    const double most = along[j].most * (1 + rounding) + kLeastWeight;
    Add(&(*to)[j], least * least, most * most);
  }
}

Sums SumsOf(const Layer& layer, int kv_head, const LossOptions& options) {
  const auto rows = static_cast<std::size_t>(layer.rows);
  const int window = static_cast<int>(std::min<std::int64_t>(options.window, layer.rows));
  Sums sums;
  for (auto* figures : {&sums.key, &sums.value, &sums.drop, &sums.diagonal}) figures->resize(rows);
  sums.group = layer.spec.group();
  for (int g = 0; g < layer.spec.group(); ++g) {
    std::vector<Range> along(rows);
    for (int w = 0; w < window; ++w) {
      const int query_row =
          (kv_head * layer.spec.group() + g) * layer.window_rows + layer.window_rows - window + w;
      const float* q = layer.q.data() + query_row * layer.spec.key_dim;
      const Weights weights = Softmax(layer, kv_head, q, layer.rows - window + w + 1);
      const Output output = OutputOf(layer, kv_head, weights);
      for (std::size_t j = 0; j < rows; ++j) {
        const float* value =
            layer.v.data() +
            (kv_head * layer.rows + static_cast<std::int64_t>(j)) * layer.spec.value_dim;
        Range* const to[3] = {&sums.key[j], &sums.value[j], &sums.drop[j]};
        const Range moved = AddRow(weights.p[j], weights.relative_error, output, value, to);
        const std::size_t end = j + static_cast<std::size_t>(window - 1 - w);  // of the diagonal
        if (static_cast<int>(j) < options.sinks || end >= rows) continue;
        Add(&along[end], moved.least, moved.most);
      }
      double square = 0;
      for (const double o : output.o) square += o * o;
      const Range of_output = SquareOf(std::sqrt(square), output.error);
      Add(&sums.output_square, of_output.least, of_output.most);
      for (int d = 0; d < layer.spec.key_dim; ++d) {
        sums.query_square += static_cast<double>(q[d]) * q[d];
      }
      sums.terms += 1;
    }
    AddSquares(along, window, &sums.diagonal);
  }
  return sums;
}

// Over the rows that are neither sinks nor in the window; 0 where there are none.
double MeanOf(const std::vector<double>& values, const LossOptions& options) {
  double sum = 0;
  double count = 0;
  for (int j = options.sinks; j < static_cast<int>(values.size()) - options.window; ++j) {
    sum += values[static_cast<std::size_t>(j)];
    count += 1;
  }
  return count > 0 ? sum / count : 0;
}

// The largest of the last `follow` diagonals before each row, which grows with them.
std::vector<double> Ahead(const Sums& sums, const LossOptions& options, bool most) {
  const double queries = sums.terms / sums.group;
  const double rounding = (sums.group + 8) * kUnit;
  std::vector<double> ahead;
  for (int i = 0; i < static_cast<int>(sums.diagonal.size()); ++i) {
    double largest = 0;
    for (int e = std::max(0, i - options.follow); e < i; ++e) {
      const Range& square = sums.diagonal[static_cast<std::size_t>(e)];
      const double mean_square =
          (most ? square.most * (1 + rounding) : square.least * (1 - rounding)) /
          (queries * queries) / sums.group;
      const double output =
          (most ? sums.output_square.least : sums.output_square.most) / sums.terms;
      largest = std::max(largest, mean_square / output);
    }
    ahead.push_back(options.follow_weight * largest);
  }
  return ahead;
}

// F: over the mean square of the output, pooled over the rows before the window, what is ahead, to
// `power`, level and floor. Each step grows with what it is given, so bounds go through it.
std::vector<Range> Flattened(const std::vector<Range>& raw, const Sums& sums, double weight,
                             const LossOptions& options) {
  const double rounding = (sums.terms + options.pool.width + 8) * kUnit;
  const auto rows = static_cast<std::int64_t>(raw.size());
  const std::int64_t pooled = std::max<std::int64_t>(0, rows - options.window);
  const auto flatten = [&](bool most) {
    std::vector<double> values;
    for (const Range& range : raw) {
      values.push_back(most ? range.most * (1 + rounding) / sums.output_square.least
                            : range.least * (1 - rounding) / sums.output_square.most);
    }
    std::vector<double> smooth = Smooth({values.begin(), values.begin() + pooled}, options.pool);
    smooth.insert(smooth.end(), values.begin() + pooled, values.end());
    const std::vector<double> ahead = Ahead(sums, options, most);
    const double level = std::pow(MeanOf(values, options), options.level);
    for (std::size_t j = 0; j < smooth.size(); ++j) {
      smooth[j] = weight * level * std::pow(std::max(smooth[j], ahead[j]), options.power);
    }
    const double floor = options.floor * MeanOf(smooth, options);
    for (double& value : smooth) value += floor;
    return smooth;
  };
  const std::vector<double> least = flatten(false);
  const std::vector<double> most = flatten(true);
  std::vector<Range> ranges;
  for (std::size_t j = 0; j < raw.size(); ++j) {
    ranges.push_back({least[j] * (1 - 4 * kUnit), most[j] * (1 + 4 * kUnit)});
  }
  return ranges;
}

// At most 8 times as long as the median row: the middle one, the shorter of two.
double LongestTypical(const float* keys, const Layer& layer, TokenPos exact_before) {
  const auto dim = static_cast<std::size_t>(layer.spec.key_dim);
  std::vector<double> lengths;
  for (std::size_t j = 0; j < static_cast<std::size_t>(layer.rows); ++j) {
    if (layer.positions[j] < exact_before) continue;
    double square = 0;
    for (std::size_t d = 0; d < dim; ++d) square += std::pow(keys[j * dim + d], 2.0);
    lengths.push_back(std::sqrt(square));
  }
  std::ranges::sort(lengths);
  return lengths.empty() ? 0 : 8 * lengths[(lengths.size() - 1) / 2];
}

// |k - mean k|^2, the mean over the typical rows that are not exact. In f32 it is |k|^2 - 2 k.m +
// |m|^2, whose three sums of dim products are off by 2^-24 a product at most, and each element of m
// is a sum of 64 at a time.
std::vector<Range> Spreads(const Layer& layer, int kv_head, TokenPos exact_before) {
  const auto dim = static_cast<std::size_t>(layer.spec.key_dim);
  const float* keys = layer.k.data() + kv_head * layer.rows * layer.spec.key_dim;
  std::vector<double> mean(dim);
  std::vector<double> magnitude(dim);
  double count = 0;
  const double longest = LongestTypical(keys, layer, exact_before);
  for (std::size_t j = 0; j < static_cast<std::size_t>(layer.rows); ++j) {
    if (layer.positions[j] < exact_before) continue;
    double square = 0;
    for (std::size_t d = 0; d < dim; ++d) square += std::pow(keys[j * dim + d], 2.0);
    if (std::sqrt(square) > longest) continue;
    count += 1;
    for (std::size_t d = 0; d < dim; ++d) {
      mean[d] += keys[j * dim + d];
      magnitude[d] += std::abs(keys[j * dim + d]);
    }
  }
  std::vector<Range> spreads;
  for (std::size_t j = 0; j < static_cast<std::size_t>(layer.rows); ++j) {
    double square = 0;
    double error = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double m = count > 0 ? mean[d] / count : 0;
      const double mean_error = count > 0 ? (64 + 2) * kUnit * magnitude[d] / count : 0;
      const double k = keys[j * dim + d];
      square += (k - m) * (k - m);
      const double terms = k * k + 2 * std::abs(k * m) + m * m;
      error += (static_cast<double>(dim) + 6) * kUnit * terms +
               2 * (std::abs(k) + std::abs(m)) * mean_error;
    }
    spreads.push_back({std::max(0.0, square - error), square + error});
  }
  return spreads;
}

}  // namespace

std::vector<HeadLosses> Losses(const Layer& layer, const LossOptions& options) {
  std::vector<HeadLosses> heads;
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    HeadLosses losses;
    if (layer.rows > 0) {
      const Sums sums = SumsOf(layer, h, options);
      losses = {Flattened(sums.key, sums, 1, options), Flattened(sums.value, sums, 1, options),
                Flattened(sums.drop, sums, options.drop_weight, options)};
      const double scale = static_cast<double>(layer.spec.scale) * layer.spec.scale;
      const double factor = sums.query_square / sums.terms * scale / layer.spec.key_dim;
      const std::vector<Range> spreads = Spreads(layer, h, options.exact_before);
      for (std::size_t j = 0; j < spreads.size(); ++j) {
        losses.key[j].least *= spreads[j].least * factor * (1 - 6 * kUnit);
        losses.key[j].most *= spreads[j].most * factor * (1 + 6 * kUnit);
      }
    }
    heads.push_back(std::move(losses));
  }
  return heads;
}

}  // namespace kvsieve::oracle
