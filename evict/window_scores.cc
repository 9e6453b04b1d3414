#include "evict/window_scores.h"

#include <span>
#include <string_view>
#include <vector>

#include "evict/head_pass.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr std::string_view kReduceNames[] = {"mean", "sum", "max"};

}  // namespace

void ReadReduce(ArgReader& args, std::string_view key, Reduce* reduce) {
  int index = static_cast<int>(*reduce);
  args.Choice(key, kReduceNames, &index);
  *reduce = static_cast<Reduce>(index);
}

std::string_view ReduceName(Reduce reduce) { return kReduceNames[static_cast<int>(reduce)]; }

std::string WindowOptions::Canonical() const {
  std::string out = StrCat("window=", window, ",queries=", ReduceName(queries));
  if (!keys_as_queries) out += StrCat(",group=", ReduceName(group));
  return StrCat(out, ",", pool.Canonical(), ",scope=", ScopeName(scope),
                ",causal=", causal ? "true" : "false");
}

WindowOptions ReadWindowOptions(ArgReader& args, const Selection& selection, QuerySource source) {
  WindowOptions options;
  options.keys_as_queries = source == QuerySource::kKeys;
  args.Int("window", &options.window, 1, kMaxWindow);
  ReadReduce(args, "queries", &options.queries);
  if (source == QuerySource::kObserved) ReadReduce(args, "group", &options.group);
  ReadPool(args, &options.pool);
  ReadScope(args, &options.scope);
  args.Bool("causal", &options.causal);
  options.pool_window = !selection.protect_window;
  return options;
}

Status ScoreWindow(const WindowOptions& options, RowWeight weight, const Observation& observation,
                   Parallel& parallel, ScoreScratch* scratch, Scores* scores) {
  ResetScores(observation, scores);
  const WindowPass pass{.observation = observation,
                        .weight = weight,
                        .window = options.window,
                        .keys_as_queries = options.keys_as_queries,
                        .causal = options.causal,
                        .queries = options.queries,
                        .group = options.group,
                        .head_begin = scores->head_begin,
                        .figures = {scores->raw.data()}};
  KVS_ASSIGN_OR_RETURN(const std::vector<WindowSums> sums, RunWindow(pass, parallel, scratch));
  ParallelFor(parallel, observation.layer.kv_heads, [&](std::int64_t head, int) {
    float divisor = 1.0F;
    if (options.queries == Reduce::kMean) divisor *= static_cast<float>(sums[head].queries);
    if (options.group == Reduce::kMean) divisor *= static_cast<float>(sums[head].group);
    const auto begin = static_cast<std::size_t>(scores->head_begin[head]);
    const auto count = static_cast<std::size_t>(scores->head_begin[head + 1]) - begin;
    const std::span<float> raw = std::span(scores->raw).subspan(begin, count);
    for (float& score : raw) score /= divisor;
    SmoothRows(options.pool, options.pool_window ? 0 : options.window, raw,
               std::span(scores->smoothed).subspan(begin, count));
  });
  return Status::Ok();
}

}  // namespace kvsieve::evict
