#include "lib/eval/generate_presets.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/eval/noise.h"

namespace kvsieve::eval {
namespace {

// Streams of one layer.
enum Purpose : std::uint64_t { kKeyNoise, kValueNoise, kQueryNoise, kStructure };

struct Layer {
  const GenerateOptions& options;
  Noise structure;  // what the preset itself draws
  SyntheticLayer rows;

  double scale() const { return 1 / std::sqrt(static_cast<double>(options.key_dim)); }
  int group() const { return options.query_heads / options.kv_heads; }
  std::int64_t all_rows() const { return rows.keys.rows; }
};

void FillGaussian(Noise noise, HeadRows& rows) {
  for (float& value : rows.values) value = static_cast<float>(noise.Gaussian());
}

void AddScaled(std::span<float> to, double factor, std::span<const double> direction) {
  for (std::size_t d = 0; d < to.size(); ++d) {
    to[d] = static_cast<float>(static_cast<double>(to[d]) + factor * direction[d]);
  }
}

// Raises the logit of a key by `lift` for one query: adds lift / (scale |key|^2) of the key.
void Aim(std::span<float> query, std::span<const double> key, double lift, double scale) {
  double square = 0;
  for (const double value : key) square += value * value;
  if (square > 0) AddScaled(query, lift / (scale * square), key);
}

// A key's logit that outweighs `rows` rows of logits N(0, 1) by e^margin.
double Outweigh(std::int64_t rows, double margin) {
  return PortableLog(static_cast<double>(rows)) + margin;
}

void Gaussian(Layer&) {}

void Needle(Layer& layer) {
  constexpr std::int64_t kQuestionQueries = 8;
  const GenerateOptions& options = layer.options;
  const double lift = Outweigh(layer.all_rows(), 3);
  for (int head = 0; head < options.kv_heads; ++head) {
    // In the middle 80 % of the prompt.
    const std::int64_t needle = options.tokens / 10 + layer.structure.Below(std::max<std::int64_t>(
                                                          1, options.tokens * 8 / 10));
    const auto key_row = layer.rows.keys.row(head, needle);
    const std::vector<double> key(key_row.begin(), key_row.end());
    for (int member = 0; member < layer.group(); ++member) {
      const std::int64_t first = std::max<std::int64_t>(0, options.window - kQuestionQueries);
      for (std::int64_t q = first; q < layer.rows.queries.rows; ++q) {
        Aim(layer.rows.queries.row(head * layer.group() + member, q), key, lift, layer.scale());
      }
    }
  }
}

void Outlier(Layer& layer) {
  constexpr int kOutlierChannels = 4;
  constexpr double kOutlierMean = 8;
  constexpr double kQueryScale = 2;
  const GenerateOptions& options = layer.options;
  Noise& draw = layer.structure;
  const auto dim = static_cast<std::size_t>(options.key_dim);
  for (float& value : layer.rows.queries.values) value *= static_cast<float>(kQueryScale);
  for (int head = 0; head < options.kv_heads; ++head) {
    std::vector<double> mean(dim);
    std::vector<double> deviation(dim);
    for (std::size_t d = 0; d < dim; ++d) {
      mean[d] = draw.Gaussian();
      deviation[d] = draw.LogNormal(0.4);
    }
    for (int i = 0; i < kOutlierChannels; ++i) {
      const auto channel = static_cast<std::size_t>(draw.Below(options.key_dim));
      mean[channel] = draw.Uniform() < 0 ? -kOutlierMean : kOutlierMean;
      deviation[channel] *= 2;
    }
    for (std::int64_t r = 0; r < layer.all_rows(); ++r) {
      const double token_scale = draw.LogNormal(0.15);
      const std::span<float> key = layer.rows.keys.row(head, r);
      for (std::size_t d = 0; d < dim; ++d) {
        key[d] =
            static_cast<float>(mean[d] + token_scale * deviation[d] * static_cast<double>(key[d]));
      }
      const double value_scale = draw.LogNormal(0.3);
      for (float& value : layer.rows.values.row(head, r)) {
        value = static_cast<float>(value_scale * static_cast<double>(value));
      }
    }
    // Every other query looks for one key of the prompt; the mean is common to all keys and
    // cannot be looked for.
    for (int member = 0; member < layer.group(); ++member) {
      for (std::int64_t q = 0; q < layer.rows.queries.rows; q += 2) {
        const auto key = layer.rows.keys.row(head, draw.Below(options.tokens));
        std::vector<double> centred(dim);
        for (std::size_t d = 0; d < dim; ++d) centred[d] = static_cast<double>(key[d]) - mean[d];
        Aim(layer.rows.queries.row(head * layer.group() + member, q), centred,
            Outweigh(layer.all_rows(), 1), layer.scale());
      }
    }
  }
}

void Sink(Layer& layer) {
  constexpr float kSinkLength = 0.1F;  // of a usual row
  const GenerateOptions& options = layer.options;
  const auto dim = static_cast<std::size_t>(options.key_dim);
  for (int head = 0; head < options.kv_heads; ++head) {
    // Keys lean towards one direction and queries away from it: all logits drop by the lift except
    // that of the first key, which is short. scale * sqrt(dim) = 1.
    std::vector<double> direction(dim);
    double square = 0;
    for (double& value : direction) {
      value = layer.structure.Gaussian();
      square += value * value;
    }
    for (double& value : direction) value /= std::sqrt(square);
    for (float& value : layer.rows.keys.row(head, 0)) value *= kSinkLength;
    for (float& value : layer.rows.values.row(head, 0)) value *= kSinkLength;
    for (std::int64_t r = 1; r < layer.all_rows(); ++r) {
      AddScaled(layer.rows.keys.row(head, r), std::sqrt(static_cast<double>(options.key_dim)),
                direction);
    }
    for (int member = 0; member < layer.group(); ++member) {
      for (std::int64_t q = 0; q < layer.rows.queries.rows; ++q) {
        AddScaled(layer.rows.queries.row(head * layer.group() + member, q),
                  -Outweigh(layer.all_rows(), 2), direction);
      }
    }
  }
}

struct Preset {
  StageInfo info;
  void (*shape)(Layer&);
};

constexpr char kOptions[] =
    "tokens=1024 seed=0 layers=2 query_heads=8 kv_heads=2 key_dim=64 value_dim=64 window=64 "
    "n_eval=32 dtype=f16|bf16|f32";

constexpr std::array<Preset, 4> kPresets = {{
    {{"needle",
      "One key of the middle of the prompt holds most of the mass of the queries to come.",
      "gaussian; the last 8 window queries and all eval queries += lift / (scale |k|^2) k, "
      "lift = ln(rows) + 3",
      kOptions},
     Needle},
    {{"gaussian", "Diffuse attention: nothing to find, every row matters a little.",
      "K, V, Q ~ N(0, 1), scale = 1 / sqrt(key_dim)", kOptions},
     Gaussian},
    {{"outlier", "Keys with a bias and four outlier channels, rows of different lengths.",
      "K = mu + lognormal(0.15) per row * lognormal(0.4) per channel * N(0, 1), 4 channels with mu "
      "= +-8 and twice the deviation; V rows * lognormal(0.3); Q = 2 N(0, 1), every other one "
      "aimed "
      "at a key",
      kOptions},
     Outlier},
    {{"sink", "The first key is short and takes most of the mass, as in trained models.",
      "K = N(0, 1) + sqrt(key_dim) u, Q = N(0, 1) - (ln(rows) + 2) u, first K and V row 0.1 N(0, "
      "1)",
      kOptions},
     Sink},
}};

}  // namespace

std::span<const StageInfo> GeneratePresets() {
  static constexpr auto kInfos = [] {
    std::array<StageInfo, kPresets.size()> infos = {};
    for (std::size_t i = 0; i < infos.size(); ++i) infos[i] = kPresets[i].info;
    return infos;
  }();
  return kInfos;
}

SyntheticLayer GenerateLayer(const GenerateOptions& options, int layer) {
  const auto seed_layer = static_cast<std::uint64_t>(layer);
  const std::int64_t all_rows = options.tokens + options.n_eval;
  Layer made{options,
             Noise(options.seed, seed_layer, kStructure),
             {HeadRows(options.kv_heads, all_rows, options.key_dim),
              HeadRows(options.kv_heads, all_rows, options.value_dim),
              HeadRows(options.query_heads, options.window + options.n_eval, options.key_dim)}};
  FillGaussian(Noise(options.seed, seed_layer, kKeyNoise), made.rows.keys);
  FillGaussian(Noise(options.seed, seed_layer, kValueNoise), made.rows.values);
  FillGaussian(Noise(options.seed, seed_layer, kQueryNoise), made.rows.queries);
  const auto preset = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& candidate) {
    return candidate.info.name == options.preset;
  });
  KVS_DCHECK(preset != kPresets.end());
  preset->shape(made);
  return std::move(made.rows);
}

}  // namespace kvsieve::eval
