#include "tests/evict/oracle.h"

#include <algorithm>
#include <cmath>

namespace kvsieve::oracle {
namespace {

constexpr double kUnit = 0x1p-24;  // f32 rounding error, relative

double Reduced(const std::string& how, const std::vector<double>& values) {
  double sum = 0;
  double most = 0;
  for (const double value : values) {
    sum += value;
    most = std::max(most, value);
  }
  if (how == "max") return most;
  return how == "sum" ? sum : sum / static_cast<double>(values.size());
}

}  // namespace

// The bound on the relative error of weights in f32:
//   a logit is a sum of dim products, off by dim * 2^-24 * sum |q_d k_d| * scale at most (no order
//   of summing is worse), twice that in exp(x - max); exp is good to 1e-6 and is taken twice (to
//   the block's maximum, and between maxima); sums over 64 rows and over blocks add 2^-24 a term.
Weights Softmax(const Layer& layer, int kv_head, const float* q, std::int64_t visible) {
  const int dim = layer.spec.key_dim;
  Weights weights;
  weights.p.assign(static_cast<std::size_t>(layer.rows), 0.0);
  std::vector<double> logits(static_cast<std::size_t>(visible));
  double logit_error = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    const float* k = layer.k.data() + (kv_head * layer.rows + j) * dim;
    double dot = 0;
    double magnitude = 0;
    for (int d = 0; d < dim; ++d) {
      dot += static_cast<double>(q[d]) * k[d];
      magnitude += std::abs(static_cast<double>(q[d]) * k[d]);
    }
    logits[j] = dot * layer.spec.scale;
    logit_error = std::max(logit_error, (dim + 2) * kUnit * magnitude * layer.spec.scale);
    if (layer.spec.softcap > 0) {
      logits[j] = layer.spec.softcap * std::tanh(logits[j] / layer.spec.softcap);
    }
  }
  const double top = visible > 0 ? *std::max_element(logits.begin(), logits.end()) : 0;
  if (layer.spec.softcap > 0 && visible > 0) {
    // The softcap in f32: 2e-6 of a logit.
    const double lowest = *std::min_element(logits.begin(), logits.end());
    logit_error += 2e-6 * std::max(std::abs(top), std::abs(lowest));
  }
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - top);
  for (std::int64_t j = 0; j < visible; ++j) weights.p[j] = std::exp(logits[j] - top) / sum;
  const double blocks = static_cast<double>(layer.rows) / 64 + 1;
  weights.relative_error = 2 * logit_error + 4e-6 + (64 + blocks + 4) * kUnit;
  return weights;
}

// An output is a sum of `rows` terms of weight p.
Output OutputOf(const Layer& layer, int kv_head, const Weights& weights) {
  const int dim = layer.spec.value_dim;
  Output output;
  output.o.resize(static_cast<std::size_t>(dim));
  std::vector<double> magnitude(static_cast<std::size_t>(dim));
  for (std::int64_t j = 0; j < layer.rows; ++j) {
    const float* value = layer.v.data() + (kv_head * layer.rows + j) * dim;
    for (int d = 0; d < dim; ++d) {
      output.o[d] += weights.p[j] * value[d];
      magnitude[d] += weights.p[j] * std::abs(value[d]);
    }
  }
  for (int d = 0; d < dim; ++d) {
    const double error =
        (weights.relative_error + (static_cast<double>(layer.rows) + 2) * kUnit) * magnitude[d];
    output.error += error * error;
  }
  output.error = std::sqrt(output.error);
  return output;
}

namespace {

// From here on a row has all of the weight: what goes with it is |v|.
constexpr double kAlone = 1 - 0x1p-20;

// p / (1 - p) |o - v| per row, and its bound: the odds amplify the error of p by 1 / (1 - p),
// |o - v| is a sum of dim squares.
void Perturb(const Layer& layer, int kv_head, Weights weights, std::vector<double>* score,
             std::vector<double>* bound) {
  const int dim = layer.spec.value_dim;
  const auto value = [&](std::int64_t j) {
    return layer.v.data() + (kv_head * layer.rows + j) * dim;
  };
  const Output output = OutputOf(layer, kv_head, weights);
  const std::vector<double>& o = output.o;
  for (std::int64_t j = 0; j < layer.rows; ++j) {
    const double p = std::min(weights.p[j], kAlone);
    double distance = 0;
    double length = 0;
    for (int d = 0; d < dim; ++d) {
      distance += (o[d] - value(j)[d]) * (o[d] - value(j)[d]);
      length += static_cast<double>(value(j)[d]) * value(j)[d];
    }
    distance = std::sqrt(distance);
    length = std::sqrt(length);
    const double odds = p / (1 - p);
    (*score)[j] = odds * distance;
    const double odds_error = odds * std::min(1.0, (weights.relative_error + 4 * kUnit) / (1 - p));
    const double distance_error = output.error + distance * (dim + 4) * kUnit;
    (*bound)[j] = odds_error * (distance + distance_error) + odds * distance_error;
    const double moved = (*score)[j];
    const bool alone = weights.p[j] >= kAlone;
    if (alone) (*score)[j] = length;
    if (alone) (*bound)[j] = length * (dim + 4) * kUnit;
    // Which of the two f32 takes is not certain there.
    const double p_error = kAlone * (weights.relative_error + 4 * kUnit);
    if (std::abs(weights.p[j] - kAlone) <= p_error) (*bound)[j] += std::abs(length - moved);
  }
}

// [queries of the window][rows] of one query head.
struct Table {
  std::vector<std::vector<double>> score;
  std::vector<std::vector<double>> bound;
};

Table WindowTable(const Layer& layer, const Options& options, int query_head) {
  const int window = static_cast<int>(std::min<std::int64_t>(options.window, layer.rows));
  const int kv_head = query_head / layer.spec.group();
  Table table;
  for (int w = 0; w < window; ++w) {
    const int row_in_q = layer.window_rows - window + w;
    const float* q =
        layer.q.data() + (query_head * layer.window_rows + row_in_q) * layer.spec.key_dim;
    const std::int64_t visible = options.causal ? layer.rows - window + w + 1 : layer.rows;
    const Weights weights = Softmax(layer, kv_head, q, visible);
    std::vector<double> score = weights.p;
    std::vector<double> bound(score.size());
    for (std::size_t j = 0; j < score.size(); ++j) bound[j] = score[j] * weights.relative_error;
    if (options.perturbation) Perturb(layer, kv_head, weights, &score, &bound);
    table.score.push_back(std::move(score));
    table.bound.push_back(std::move(bound));
  }
  return table;
}

double ReducedColumn(const std::string& how, const std::vector<std::vector<double>>& table,
                     std::size_t column) {
  std::vector<double> values;
  for (const auto& row : table) values.push_back(row[column]);
  return Reduced(how, values);
}

HeadScores ScoreHead(const Layer& layer, const Options& options, int kv_head) {
  Table heads;  // [group][rows]
  for (int g = 0; g < layer.spec.group(); ++g) {
    const Table table = WindowTable(layer, options, kv_head * layer.spec.group() + g);
    std::vector<double> score;
    std::vector<double> bound;
    for (std::int64_t j = 0; j < layer.rows; ++j) {
      score.push_back(ReducedColumn(options.queries, table.score, j));
      bound.push_back(ReducedColumn(options.queries, table.bound, j));
    }
    heads.score.push_back(std::move(score));
    heads.bound.push_back(std::move(bound));
  }
  HeadScores out;
  for (std::int64_t j = 0; j < layer.rows; ++j) {
    out.raw.push_back(ReducedColumn(options.group, heads.score, j));
    const double terms = options.window + layer.spec.group() + 4.0;
    // 1e-30: weights below the cutoff of exp (2.7e-38 before reductions) become 0.
    out.raw_bound.push_back(ReducedColumn(options.group, heads.bound, j) +
                            out.raw.back() * terms * kUnit + 1e-30);
  }
  const std::int64_t window = std::min<std::int64_t>(options.window, layer.rows);
  const std::int64_t pooled = options.pool_window ? layer.rows : layer.rows - window;
  const auto smooth = [&](const std::vector<double>& raw) {
    std::vector<double> smoothed = Smooth({raw.begin(), raw.begin() + pooled}, options);
    smoothed.insert(smoothed.end(), raw.begin() + pooled, raw.end());
    return smoothed;
  };
  out.smoothed = smooth(out.raw);
  out.smoothed_bound = smooth(out.raw_bound);
  for (std::size_t j = 0; j < out.smoothed.size(); ++j) {
    out.smoothed_bound[j] += out.smoothed[j] * (options.width + 2) * kUnit;
  }
  return out;
}

}  // namespace

std::vector<HeadScores> Score(const Layer& layer, const Options& options) {
  std::vector<HeadScores> heads;
  for (int h = 0; h < layer.spec.kv_heads; ++h) heads.push_back(ScoreHead(layer, options, h));
  return heads;
}

std::vector<double> Smooth(const std::vector<double>& raw, const Options& options) {
  if (options.pool == "none") return raw;
  const auto rows = static_cast<std::int64_t>(raw.size());
  std::vector<double> smoothed;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::vector<double> window;
    for (std::int64_t j = i - options.width / 2; j <= i + options.width / 2; ++j) {
      if (j >= 0 && j < rows) {
        window.push_back(raw[j]);
      } else if (options.pad_zero) {
        window.push_back(0);
      }
    }
    double sum = 0;
    for (const double value : window) sum += value;
    smoothed.push_back(options.pool == "max" ? *std::max_element(window.begin(), window.end())
                                             : sum / static_cast<double>(window.size()));
  }
  return smoothed;
}

std::vector<std::int64_t> Keep(const std::vector<float>& smoothed, const std::vector<float>& raw,
                               const Selection& selection) {
  const auto rows = static_cast<std::int64_t>(raw.size());
  std::vector<bool> kept(raw.size(), false);
  std::int64_t count = 0;
  const auto keep = [&](std::int64_t row) {
    if (row < 0 || row >= rows || kept[row]) return;
    kept[row] = true;
    ++count;
  };
  for (std::int64_t r = 0; r < selection.sinks; ++r) keep(r);
  for (std::int64_t r = rows - selection.newest; r < rows; ++r) keep(r);
  for (const auto& [first, last] : selection.ranges) {
    for (std::int64_t r = first; r <= last && r < rows; ++r) keep(r);
  }
  std::vector<std::int64_t> order;
  for (std::int64_t r = 0; r < rows; ++r) order.push_back(r);
  const auto compare = [](float a, float b) {  // -1: a first
    if (std::isnan(a) || std::isnan(b))
      return static_cast<int>(std::isnan(a)) - static_cast<int>(std::isnan(b));
    return a > b ? -1 : a < b ? 1 : 0;
  };
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    if (const int by_smoothed = compare(smoothed[a], smoothed[b])) return by_smoothed < 0;
    if (const int by_raw = compare(raw[a], raw[b])) return by_raw < 0;
    return selection.ties_high ? a > b : a < b;
  });
  for (const std::int64_t row : order) {
    if (count < selection.budget) keep(row);
  }
  std::vector<std::int64_t> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (kept[r]) out.push_back(r);
  }
  return out;
}

}  // namespace kvsieve::oracle
