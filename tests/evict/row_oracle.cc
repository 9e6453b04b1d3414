#include "tests/evict/row_oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace kvsieve::oracle {
namespace {

constexpr double kUnit = 0x1p-24;  // f32 rounding error, relative

using Rows = std::vector<std::vector<double>>;

Rows RowsOf(const std::vector<float>& values, int head, std::int64_t rows, int dim) {
  Rows out;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto from = values.begin() + (head * rows + r) * dim;
    out.emplace_back(from, from + dim);
  }
  return out;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

double Norm(const std::vector<double>& a) { return std::sqrt(Dot(a, a)); }

std::vector<HeadScores> ForHeads(const Layer& layer,
                                 const std::function<HeadScores(const Rows&)>& score) {
  std::vector<HeadScores> heads;
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    heads.push_back(score(RowsOf(layer.k, h, layer.rows, layer.spec.key_dim)));
  }
  return heads;
}

// Deviation over channels of (x - low) / (high - low), and a bound on its error in f32: a
// normalised channel y is off by 4 units of |y|, their mean by dim + 6 units of the mean of |y|, a
// sum of dim squares by dim units, half of that after the root.
struct Deviation {
  double value = 0;
  double bound = 0;
};

Deviation DeviationOf(const std::vector<double>& x, const std::vector<double>& low,
                      const std::vector<double>& high) {
  const std::size_t dim = x.size();
  std::vector<double> y(dim);
  double mean = 0;
  double magnitude = 0;
  for (std::size_t d = 0; d < dim; ++d) {
    y[d] = high[d] > low[d] ? (x[d] - low[d]) / (high[d] - low[d]) : 0.0;
    mean += y[d] / static_cast<double>(dim);
    magnitude += std::abs(y[d]) / static_cast<double>(dim);
  }
  const double divisor = std::max<double>(1.0, static_cast<double>(dim) - 1);
  double squares = 0;
  double errors = 0;
  for (std::size_t d = 0; d < dim; ++d) {
    squares += (y[d] - mean) * (y[d] - mean);
    const double error = 5 * std::abs(y[d]) + (static_cast<double>(dim) + 7) * magnitude;
    errors += error * error;
  }
  const double value = std::sqrt(squares / divisor);
  return {value,
          kUnit * (std::sqrt(errors / divisor) + (static_cast<double>(dim) / 2 + 3) * value)};
}

// Adds half of the softmax of the deviations of rows [begin, begin + lag) to `scores`; a share is
// off by twice the largest error of a deviation and twice that of exp (1e-6), relative.
void AddShares(const Rows& rows, std::int64_t begin, std::int64_t lag, HeadScores* scores) {
  std::vector<double> low = rows[begin + lag];
  std::vector<double> high = low;
  for (std::int64_t r = begin + lag; r < begin + 2 * lag; ++r) {
    for (std::size_t d = 0; d < low.size(); ++d) {
      low[d] = std::min(low[d], rows[r][d]);
      high[d] = std::max(high[d], rows[r][d]);
    }
  }
  std::vector<Deviation> deviations;
  double top = 0;
  double error = 0;
  for (std::int64_t r = begin; r < begin + lag; ++r) {
    deviations.push_back(DeviationOf(rows[r], low, high));
    top = std::max(top, deviations.back().value);
    error = std::max(error, deviations.back().bound);
  }
  double sum = 0;
  for (const Deviation& deviation : deviations) sum += std::exp(deviation.value - top);
  for (std::int64_t i = 0; i < lag; ++i) {
    const double share = std::exp(deviations[i].value - top) / sum;
    scores->raw[begin + i] += share / 2;
    scores->raw_bound[begin + i] += share / 2 * (2 * error + 2e-6 + 4 * kUnit) + 1e-30;
  }
}

// Exponent of every row for one query head, and the largest error of one in f32: a dot is off by
// dim + 2 units of the summed magnitudes, a square by twice its root's error, a mean of W squares
// by W / 2 + 2 units.
struct Exponents {
  std::vector<double> value;
  double error = 0;
};

Exponents ExponentsOf(const Rows& queries, const Rows& keys, double scale) {
  const std::size_t dim = keys.empty() ? 0 : keys[0].size();
  const double count = static_cast<double>(queries.size());
  std::vector<double> mean(dim);
  for (const auto& query : queries) {
    for (std::size_t d = 0; d < dim; ++d) mean[d] += query[d] / count;
  }
  const double dot_units = (static_cast<double>(dim) + 2) * kUnit;
  Exponents out;
  for (const auto& key : keys) {
    const auto dot_error = [&](const std::vector<double>& query) {
      double magnitude = 0;
      for (std::size_t d = 0; d < dim; ++d) magnitude += std::abs(query[d] * key[d]);
      return dot_units * scale * magnitude;
    };
    double value = scale * Dot(mean, key);
    double error = dot_error(mean);
    double squares = 0;
    for (const auto& query : queries) {
      std::vector<double> centred = query;
      for (std::size_t d = 0; d < dim; ++d) centred[d] -= mean[d];
      const double dot = scale * Dot(centred, key);
      squares += dot * dot;
      error += std::abs(dot) * dot_error(centred) / count;
    }
    value += squares / count / 2;
    error += (count / 2 + 3) * kUnit * squares / count / 2 + kUnit * std::abs(value);
    out.value.push_back(value);
    out.error = std::max(out.error, error);
  }
  return out;
}

}  // namespace

// dim squares and dim - 1 sums: relative dim * 2^-24 of the square, half of that of its root, one
// more rounding for the root.
std::vector<HeadScores> KeyNorm(const Layer& layer) {
  return ForHeads(layer, [&](const Rows& keys) {
    HeadScores out;
    for (const auto& key : keys) {
      out.raw.push_back(-Norm(key));
      out.raw_bound.push_back((layer.spec.key_dim / 2.0 + 2) * kUnit * Norm(key));
    }
    return out;
  });
}

// A unit key is off by (dim / 2 + 3) units, a sum of them by 64 + blocks + 1 units of the summed
// magnitudes: together e of |anchor|. The cosine carries 2 e, and dim + 2 units each for the dot
// and for the three norms and products.
std::vector<HeadScores> KeyDiff(const Layer& layer) {
  const int dim = layer.spec.key_dim;
  return ForHeads(layer, [&](const Rows& keys) {
    std::vector<double> anchor(static_cast<std::size_t>(dim));
    std::vector<double> magnitude(static_cast<std::size_t>(dim));
    for (const auto& key : keys) {
      if (Norm(key) == 0) continue;
      for (int d = 0; d < dim; ++d) {
        anchor[d] += key[d] / Norm(key);
        magnitude[d] += std::abs(key[d]) / Norm(key);
      }
    }
    const double length = Norm(anchor);
    const double terms = dim / 2.0 + 3 + 64 + static_cast<double>(layer.rows) / 64 + 2;
    const double anchor_error = length == 0 ? 0 : terms * kUnit * Norm(magnitude) / length;
    HeadScores out;
    for (const auto& key : keys) {
      const bool directed = length > 0 && Norm(key) > 0;
      out.raw.push_back(directed ? -Dot(key, anchor) / (Norm(key) * length) : 0.0);
      out.raw_bound.push_back(2 * anchor_error + 2 * (dim + 6) * kUnit);
    }
    return out;
  });
}

std::vector<HeadScores> Lag(const Layer& layer, std::int64_t lag, std::int64_t sinks) {
  std::vector<HeadScores> heads;
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    const Rows keys = RowsOf(layer.k, h, layer.rows, layer.spec.key_dim);
    const Rows values = RowsOf(layer.v, h, layer.rows, layer.spec.value_dim);
    HeadScores out;
    for (std::int64_t r = 0; r < layer.rows; ++r) {
      out.raw.push_back(
          static_cast<double>(1.0F + static_cast<float>(r) / static_cast<float>(layer.rows)));
    }
    out.raw_bound.assign(out.raw.size(), 0.0);
    for (std::int64_t begin = sinks; begin + 2 * lag <= layer.rows; begin += lag) {
      std::fill_n(out.raw.begin() + begin, lag, 0.0);
      AddShares(keys, begin, lag, &out);
      AddShares(values, begin, lag, &out);
    }
    heads.push_back(std::move(out));
  }
  return heads;
}

std::vector<HeadScores> ExpectedAttention(const Layer& layer, int window,
                                          const std::string& group) {
  std::vector<HeadScores> heads;
  const int group_size = layer.spec.group();
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    const Rows keys = RowsOf(layer.k, h, layer.rows, layer.spec.key_dim);
    const Rows values = RowsOf(layer.v, h, layer.rows, layer.spec.value_dim);
    HeadScores out;
    out.raw.assign(keys.size(), 0.0);
    out.raw_bound.assign(keys.size(), 0.0);
    for (int g = 0; g < group_size; ++g) {
      Rows queries = RowsOf(layer.q, h * group_size + g, layer.window_rows, layer.spec.key_dim);
      queries.erase(queries.begin(), queries.end() - std::min<std::int64_t>(window, layer.rows));
      const Exponents exponents = ExponentsOf(queries, keys, layer.spec.scale);
      const double top = *std::max_element(exponents.value.begin(), exponents.value.end());
      double sum = 0;
      for (const double value : exponents.value) sum += std::exp(value - top);
      for (std::size_t j = 0; j < keys.size(); ++j) {
        const double weight = std::exp(exponents.value[j] - top) / sum;
        const double bound = weight * std::expm1(2 * exponents.error + 2e-6 + 8 * kUnit) + 1e-30;
        if (group == "max") {
          out.raw[j] = std::max(out.raw[j], weight);
          out.raw_bound[j] = std::max(out.raw_bound[j], bound);
        } else {
          const double share = group == "mean" ? 1.0 / group_size : 1.0;
          out.raw[j] += weight * share;
          out.raw_bound[j] += bound * share;
        }
      }
    }
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const double length = Norm(values[j]);
      const double units = layer.spec.value_dim / 2.0 + group_size + 5;
      out.raw_bound[j] = length * (out.raw_bound[j] + out.raw[j] * units * kUnit);
      out.raw[j] *= length;
    }
    heads.push_back(std::move(out));
  }
  return heads;
}

Layer KeysAsQueries(const Layer& layer, int window) {
  Layer proxy = layer;
  const int dim = layer.spec.key_dim;
  proxy.spec.query_heads = layer.spec.kv_heads;
  proxy.window_rows = static_cast<int>(std::min<std::int64_t>(window, layer.rows));
  proxy.q.clear();
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    const auto end = layer.k.begin() + (h + 1) * layer.rows * dim;
    proxy.q.insert(proxy.q.end(), end - std::int64_t{proxy.window_rows} * dim, end);
  }
  return proxy;
}

}  // namespace kvsieve::oracle
