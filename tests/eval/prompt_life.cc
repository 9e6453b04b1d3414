#include "tests/eval/prompt_life.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvsieve::eval {
namespace {

// Runs `evict` with a score for every row where the pipeline ranks by such.
template <class Evict>
Status HandScoresIn(Cache& cache, const Pipeline& pipeline, Evict&& evict) {
  if (pipeline.evictor() == nullptr || !pipeline.evictor()->needs().external_scores) return evict();
  std::vector<std::vector<float>> scores(static_cast<std::size_t>(cache.layers()));
  const Kept rows = KeptBy(cache);
  const std::size_t heads = rows.size() / scores.size();
  for (std::size_t n = 0; n < rows.size(); ++n) {
    for (const TokenPos position : rows[n]) {  // any order will do that no rule suggests
      scores[n / heads].push_back(static_cast<float>((position * 7919 + n * 104729) % 1009));
    }
  }
  for (int i = 0; i < cache.layers(); ++i) {
    KVS_RETURN_IF_ERROR(cache.SetExternalScores(i, scores[static_cast<std::size_t>(i)]));
  }
  return evict();
}

Status EvictLayers(Cache& cache, const Pipeline& pipeline) {
  return HandScoresIn(cache, pipeline, [&]() -> Status {
    for (int i = 0; i < cache.layers(); ++i) KVS_RETURN_IF_ERROR(cache.Evict(i));
    return Status::Ok();
  });
}

}  // namespace

Kept KeptBy(const Cache& cache) {
  Kept kept;
  for (int i = 0; i < cache.layers(); ++i) {
    for (int head = 0; head < cache.layer(i).kv_heads; ++head) {
      kept.emplace_back(static_cast<std::size_t>(cache.rows(i, head)));
      EXPECT_TRUE(cache.Gather(i, head, kept.back(), {}, {}).ok());
    }
  }
  return kept;
}

PromptLife::PromptLife(const Trace& trace, std::int64_t rows, int layers)
    : trace_(trace), rows_(rows), layers_(layers) {
  const auto prompt = trace.positions().last(static_cast<std::size_t>(rows));
  positions_.assign(prompt.begin(), prompt.end());
  positions_.insert(positions_.end(), trace.eval_positions().begin(), trace.eval_positions().end());
}

Result<Cache> PromptLife::Run(const std::shared_ptr<const Pipeline>& pipeline, std::int64_t chunk,
                              Parallel* parallel, const Check& check) const {
  std::vector<LayerSpec> specs = trace_.LayerSpecs();
  specs.resize(static_cast<std::size_t>(layers_));
  CacheOptions options;
  options.parallel = parallel;
  KVS_ASSIGN_OR_RETURN(Cache cache, Cache::Create(pipeline, specs, options));
  for (std::int64_t first = 0; first < rows_; first += chunk) {
    KVS_RETURN_IF_ERROR(AppendChunk(cache, *pipeline, first, std::min(chunk, rows_ - first)));
    if (pipeline->schedule().kind != Schedule::Kind::kPerChunk) continue;
    KVS_RETURN_IF_ERROR(EvictLayers(cache, *pipeline));
    if (check) check(cache, Positions(0, std::min(first + chunk, rows_)));
  }
  KVS_RETURN_IF_ERROR(HandScoresIn(cache, *pipeline, [&] { return cache.FinishPrefill(); }));
  if (check) check(cache, Positions(0, rows_));
  if (pipeline->schedule().kind == Schedule::Kind::kEvery) {
    KVS_RETURN_IF_ERROR(Decode(cache, *pipeline, check));
  }
  return cache;
}

// The queries of a chunk: those recorded, or, where rows go after each chunk and each must have
// queries of its own, the recorded ones under other positions.
Status PromptLife::AppendChunk(Cache& cache, const Pipeline& pipeline, std::int64_t first,
                               std::int64_t count) const {
  const std::int64_t skipped = trace_.tokens() - rows_;
  const std::int64_t window = trace_.window();
  const bool relabel = pipeline.schedule().kind == Schedule::Kind::kPerChunk;
  const std::int64_t end = first + count;
  const std::int64_t queries =
      relabel ? std::min(count, window)
              : std::clamp(end - (rows_ - window), std::int64_t{0}, std::min(count, window));
  const std::int64_t first_query = window - queries - (relabel ? 0 : rows_ - end);
  for (int i = 0; i < layers_; ++i) {
    const TraceLayer& layer = trace_.layers()[static_cast<std::size_t>(i)];
    KVS_RETURN_IF_ERROR(cache.Append(i, Phase::kPrefill, layer.keys.Slice(skipped + first, count),
                                     layer.values.Slice(skipped + first, count),
                                     Positions(first, count)));
    KVS_RETURN_IF_ERROR(cache.Observe(i, Positions(end - queries, queries),
                                      layer.window_queries.Slice(first_query, queries)));
  }
  return Status::Ok();
}

Status PromptLife::Decode(Cache& cache, const Pipeline& pipeline, const Check& check) const {
  for (std::int64_t step = 0; step < trace_.n_eval(); ++step) {
    const auto position = Positions(rows_ + step, 1);
    for (int i = 0; i < layers_; ++i) {
      const TraceLayer& layer = trace_.layers()[static_cast<std::size_t>(i)];
      KVS_RETURN_IF_ERROR(cache.Append(i, Phase::kDecode, layer.eval_keys.Slice(step, 1),
                                       layer.eval_values.Slice(step, 1), position));
      KVS_RETURN_IF_ERROR(cache.Observe(i, position, layer.eval_queries.Slice(step, 1)));
    }
    KVS_RETURN_IF_ERROR(EvictLayers(cache, pipeline));
    if (check && (step + 1) % pipeline.schedule().tokens == 0) {
      check(cache, Positions(0, rows_ + step + 1));
    }
  }
  return Status::Ok();
}

}  // namespace kvsieve::eval
