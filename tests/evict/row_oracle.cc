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
