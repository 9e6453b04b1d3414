#include "tests/lib/tier_plan_fixture.h"

#include <algorithm>

#include "kvsieve/str_cat.h"
#include "lib/tier_errors.h"

namespace kvsieve::tier_plan_test {
using cache_test::Prompt;

Model::Model(std::vector<LayerSpec> specs, std::int64_t rows, std::uint64_t seed)
    : layers(std::move(specs)) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].layer = static_cast<int>(i);
    const LayerSpec& layer = layers[i];
    prompts.push_back(cache_test::MakePrompt(layer, rows, seed + 10 * i));
    Prompt& prompt = prompts.back();
    const auto dim = static_cast<std::size_t>(layer.key_dim);
    queries.push_back(
        cache_test::UniformRows(layer.query_heads * Window(i) * layer.key_dim, seed + 10 * i + 5));
    // Every seventh row is longer, and every query leans toward one of the rows.
    for (std::size_t r = 0; r * dim < prompt.keys.size(); ++r) {
      for (std::size_t d = 0; d < dim; ++d) prompt.keys[r * dim + d] *= r % 7 == 0 ? 1.6F : 0.8F;
    }
    for (std::size_t q = 0; q * dim < queries[i].size(); ++q) {
      const std::size_t head = q / static_cast<std::size_t>(Window(i) * layer.group());
      const std::size_t row = head * static_cast<std::size_t>(rows) +
                              (q * 7919 + seed) % static_cast<std::size_t>(rows);
      for (std::size_t d = 0; d < dim; ++d) {
        queries[i][q * dim + d] += 0.5F * prompt.keys[row * dim + d];
      }
    }
    if (layer.value_is_key_prefix) {
      prompt.values = cache_test::KeyPrefixes(prompt.keys, layer.key_dim, layer.value_dim);
    }
  }
}

std::int64_t Model::Window(std::size_t layer) const {
  return std::min(kQueries, prompts[layer].rows());
}

Cache Model::Staged(std::string_view spec, std::int64_t chunk, Parallel* parallel) const {
  CacheOptions options;
  options.parallel = parallel;
  Cache cache = cache_test::MustCreate(spec, layers, options);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const int index = static_cast<int>(i);
    if (type == ElementType::kF32) {
      cache_test::MustAppend(cache, index, prompts[i], chunk);
    } else {
      const cache_test::TypedRows keys(prompts[i].keys, type);
      const cache_test::TypedRows values(prompts[i].values, type);
      const LayerSpec& layer = layers[i];
      const Status appended = cache.Append(
          index, Phase::kPrefill, keys.HeadMajor(layer.kv_heads, prompts[i].rows(), layer.key_dim),
          layer.value_is_key_prefix
              ? HeadsView()
              : values.HeadMajor(layer.kv_heads, prompts[i].rows(), layer.value_dim),
          prompts[i].positions);
      EXPECT_TRUE(appended.ok()) << (appended.ok() ? "" : appended.message());
    }
    const auto window = std::span(prompts[i].positions).last(static_cast<std::size_t>(Window(i)));
    const Status observed =
        cache.Observe(index, window,
                      HeadsView::HeadMajor(queries[i].data(), layers[i].query_heads, Window(i),
                                           layers[i].key_dim));
    EXPECT_TRUE(observed.ok()) << observed.message();
  }
  return cache;
}

Cache Model::Finished(std::string_view spec, std::int64_t chunk, Parallel* parallel) const {
  Cache cache = Staged(spec, chunk, parallel);
  const Status finished = cache.FinishPrefill();
  EXPECT_TRUE(finished.ok()) << spec << ": " << finished.message();
  return cache;
}

void Model::SpreadPositions(TokenPos n) {
  for (Prompt& prompt : prompts) {
    for (TokenPos& position : prompt.positions) position *= n;
  }
}

std::int64_t Model::FullBytes(std::size_t layer) const {
  const LayerSpec& spec = layers[layer];
  std::int64_t rows = prompts[layer].rows();
  if (spec.sliding_window > 0) rows = std::min<std::int64_t>(rows, spec.sliding_window);
  const int dims = spec.key_dim + (spec.value_is_key_prefix ? 0 : spec.value_dim);
  return 2 * rows * spec.kv_heads * dims;
}

std::int64_t Model::FullBytes() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) bytes += FullBytes(i);
  return bytes;
}

std::vector<std::vector<RowLoss>> Model::LossesOf(std::string_view spec,
                                                  std::size_t layer_index) const {
  const auto pipeline = cache_test::MustParse(spec);
  const LayerSpec& layer = layers[layer_index];
  const Prompt& prompt = prompts[layer_index];
  const std::int64_t rows = prompt.rows();
  const auto sinks = std::min<RowIndex>(rows, pipeline->exact_sinks());
  const auto end = std::max<RowIndex>(sinks, rows - pipeline->tail());
  std::vector<PlainRows> sources;
  for (int h = 0; h < layer.kv_heads; ++h) {
    sources.emplace_back(prompt.keys.data() + h * rows * layer.key_dim, rows, layer.key_dim);
    sources.emplace_back(prompt.values.data() + h * rows * layer.value_dim, rows, layer.value_dim);
  }
  std::vector<HeadObservation> heads;
  for (std::size_t h = 0; h < sources.size(); h += 2) {
    heads.push_back({&sources[h], &sources[h + 1], prompt.positions});
  }
  Observation observation;
  observation.layer = layer;
  observation.heads = heads;
  observation.window_queries = queries[layer_index].data();
  observation.window_positions =
      std::span(prompt.positions).last(static_cast<std::size_t>(Window(layer_index)));
  observation.exact_before = sinks < rows ? prompt.positions[static_cast<std::size_t>(sinks)]
                                          : prompt.positions.back() + 1;
  SerialParallel serial;
  RowLosses losses;
  const Status status =
      pipeline->evictor()->loss_estimator()->Estimate(observation, serial, nullptr, &losses);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());

  const int count = static_cast<int>(layers.size());
  std::vector<std::vector<RowLoss>> all(heads.size());
  for (std::size_t h = 0; h < heads.size(); ++h) {
    all[h].resize(static_cast<std::size_t>(rows));
    for (int tier = 0; tier < pipeline->TiersOf(static_cast<int>(layer_index), count); ++tier) {
      const Result<LayerStore> store =
          BuildStore(pipeline->StoreFor(static_cast<int>(layer_index), count, tier), layer);
      EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.message());
      const Result<TierErrors> errors = MeasureErrors(*store, heads[h], sinks, end);
      EXPECT_TRUE(errors.ok()) << (errors.ok() ? "" : errors.message());
      for (std::size_t r = 0; r < all[h].size(); ++r) {
        const auto at = static_cast<std::size_t>(losses.head_begin[h]) + r;
        all[h][r].in_tier.push_back(static_cast<double>(losses.key[at]) * errors->key +
                                    static_cast<double>(losses.value[at]) * errors->value);
        all[h][r].drop = losses.drop[at];
      }
    }
  }
  return all;
}

std::vector<std::int32_t> PlaceOfRows(const Cache& cache, int layer, int head, std::int64_t rows) {
  std::vector<std::int32_t> places(static_cast<std::size_t>(rows), kDropped);
  std::vector<std::int32_t> tiers(static_cast<std::size_t>(cache.rows(layer, head)));
  std::vector<TokenPos> positions(tiers.size());
  EXPECT_TRUE(cache.RowTiers(layer, head, tiers).ok());
  EXPECT_TRUE(cache.Gather(layer, head, positions, {}, {}).ok());
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    places[static_cast<std::size_t>(positions[i])] = tiers[i];
  }
  return places;
}

double LossOf(const Model& model, std::string_view spec, const Cache& cache) {
  double sum = 0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].sliding_window > 0) continue;
    const auto losses = model.LossesOf(spec, i);
    for (std::size_t h = 0; h < losses.size(); ++h) {
      const auto places =
          PlaceOfRows(cache, static_cast<int>(i), static_cast<int>(h), model.prompts[i].rows());
      for (std::size_t r = 0; r < places.size(); ++r) {
        if (places[r] == Cache::kExactRow) continue;
        sum += places[r] == kDropped ? losses[h][r].drop
                                     : losses[h][r].in_tier[static_cast<std::size_t>(places[r])];
      }
    }
  }
  return sum;
}

std::string SpecOf(std::int64_t bytes, std::string_view more, std::string_view tiers,
                   std::string_view rest) {
  return StrCat("waterfill(budget=", bytes, "B", more, ") | tiers=[", tiers, "]", rest);
}

}  // namespace kvsieve::tier_plan_test
