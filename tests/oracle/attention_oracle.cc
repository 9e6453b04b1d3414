#include "tests/oracle/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsieve::oracle {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

double Logit(const LayerSpec& layer, const float* q, const float* k) {
  double dot = 0.0;
  for (int d = 0; d < layer.key_dim; ++d) dot += static_cast<double>(q[d]) * k[d];
  dot *= layer.scale;
  return layer.softcap > 0 ? layer.softcap * std::tanh(dot / layer.softcap) : dot;
}

bool Visible(const LayerSpec& layer, TokenPos row, TokenPos query) {
  if (row > query) return false;
  return layer.sliding_window == 0 || row > std::int64_t{query} - layer.sliding_window;
}

struct Softmax {
  double lse = kMinusInf;
  double top = 0.0;
};

// One query head at one position: writes out [value_dim]. sink: a logit, or -inf.
Softmax AttendOne(const LayerSpec& layer, const HeadRows& head, const float* q, TokenPos position,
                  double sink, double* out) {
  std::vector<double> logits(head.positions.size(), kMinusInf);
  double largest = sink;
  double largest_row = kMinusInf;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    if (!Visible(layer, head.positions[r], position)) continue;
    logits[r] = Logit(layer, q, head.keys.data() + r * static_cast<std::size_t>(layer.key_dim));
    largest_row = std::max(largest_row, logits[r]);
    largest = std::max(largest, logits[r]);
  }
  std::fill_n(out, layer.value_dim, 0.0);
  if (largest == kMinusInf) return {};
  double sum = std::exp(sink - largest);
  for (std::size_t r = 0; r < logits.size(); ++r) {
    const double weight = std::exp(logits[r] - largest);
    const float* v = head.values.data() + r * static_cast<std::size_t>(layer.value_dim);
    for (int d = 0; d < layer.value_dim; ++d) out[d] += weight * v[d];
    sum += weight;
  }
  for (int d = 0; d < layer.value_dim; ++d) out[d] /= sum;
  return {largest + std::log(sum), std::exp(largest_row - largest) / sum};
}

}  // namespace

Attention Attend(const LayerSpec& layer, std::span<const HeadRows> heads,
                 std::span<const float> queries, std::span<const TokenPos> positions,
                 std::span<const float> sinks) {
  const std::size_t n = positions.size();
  const auto key_dim = static_cast<std::size_t>(layer.key_dim);
  const auto value_dim = static_cast<std::size_t>(layer.value_dim);
  const auto query_heads = static_cast<std::size_t>(layer.query_heads);
  Attention result;
  result.out.resize(query_heads * n * value_dim);
  result.lse.resize(query_heads * n);
  result.top.resize(query_heads * n);
  for (std::size_t h = 0; h < query_heads; ++h) {
    const HeadRows& head = heads[h / (query_heads / heads.size())];
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = h * n + i;
      const Softmax softmax =
          AttendOne(layer, head, queries.data() + at * key_dim, positions[i],
                    sinks.empty() ? kMinusInf : sinks[h], result.out.data() + at * value_dim);
      result.lse[at] = softmax.lse;
      result.top[at] = softmax.top;
    }
  }
  return result;
}

}  // namespace kvsieve::oracle
