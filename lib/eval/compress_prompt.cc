// A prompt on its way into a cache: in chunks, with its queries and scores, to the end.
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/eval/compare.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/run_notes.h"

namespace kvsieve::eval {
namespace {

using Clock = std::chrono::steady_clock;

// The best round counts: what disturbs a round only makes it longer.
constexpr int kRounds = 3;
constexpr std::int64_t kRoundsTokens = 4096;  // longer prompts are compressed once

// "0, 7, 14, 21, 29", or less of a long list.
std::string NumberList(const std::vector<LayerSpec>& layers) {
  constexpr std::size_t kMaxShown = 12;
  std::string out;
  for (std::size_t i = 0; i < std::min(layers.size(), kMaxShown); ++i) {
    out += StrCat(i == 0 ? "" : ", ", layers[i].layer);
  }
  return layers.size() <= kMaxShown ? out : StrCat(out, ", ... ", layers.back().layer);
}

// Specs count the layers that are stored; a trace may hold only some of the model's.
Status CheckLayers(const Pipeline& pipeline, const std::vector<LayerSpec>& layers) {
  const int count = static_cast<int>(layers.size());
  const Status checked = pipeline.CheckLayers(count);
  if (checked.ok()) return {};
  return {checked.error().code,
          StrCat(checked.message(), "; specs count the stored layers of the trace, of which there ",
                 count == 1 ? "is 1: 0 = model layer "
                            : StrCat("are ", count, ": 0..", count - 1, " = model layers "),
                 NumberList(layers))};
}

class PromptFeed {
 public:
  PromptFeed(const Trace& trace, const Pipeline& pipeline, const PromptOptions& options,
             Cache& cache)
      : trace_(trace), schedule_(pipeline.schedule()), options_(options), cache_(cache) {
    const Evictor* evictor = pipeline.evictor();
    hands_scores_in_ = options.external_scores != nullptr && evictor != nullptr &&
                       evictor->needs().external_scores;
  }

  Status Run() {
    const std::int64_t tokens = trace_.tokens();
    const std::int64_t chunk = options_.chunk_rows > 0 ? options_.chunk_rows : tokens;
    for (std::int64_t first = 0; first < tokens; first += chunk) {
      const std::int64_t count = std::min(chunk, tokens - first);
      for (int i = 0; i < cache_.layers(); ++i) KVS_RETURN_IF_ERROR(Append(i, first, count));
      if (schedule_.kind != Schedule::Kind::kPerChunk) continue;
      KVS_RETURN_IF_ERROR(HandScoresIn());
      for (int i = 0; i < cache_.layers(); ++i) KVS_RETURN_IF_ERROR(cache_.Evict(i));
    }
    KVS_RETURN_IF_ERROR(HandScoresIn());
    return cache_.FinishPrefill();
  }

 private:
  // Rows of a chunk, and the recorded queries among them.
  Status Append(int layer_index, std::int64_t first, std::int64_t count) {
    const TraceLayer& layer = trace_.layers()[layer_index];
    const auto positions = trace_.positions().subspan(first, count);
    KVS_RETURN_IF_ERROR(cache_.Append(layer_index, Phase::kPrefill, layer.keys.Slice(first, count),
                                      layer.values.Slice(first, count), positions));
    const auto window = trace_.window_positions();
    const auto begin = std::lower_bound(window.begin(), window.end(), positions.front());
    const auto end = std::upper_bound(begin, window.end(), positions.back());
    return cache_.Observe(layer_index, window.subspan(begin - window.begin(), end - begin),
                          layer.window_queries.Slice(begin - window.begin(), end - begin));
  }

  // The scores of the rows that every head holds now, which an eviction forgets.
  Status HandScoresIn() {
    if (!hands_scores_in_) return {};
    scores_.resize(cache_.layers());
    for (int i = 0; i < cache_.layers(); ++i) {
      const auto all = options_.external_scores->layer(i);
      scores_[i].clear();
      if (all.empty()) continue;  // a sliding layer
      for (int head = 0; head < cache_.layer(i).kv_heads; ++head) {
        std::vector<TokenPos> held(cache_.rows(i, head));
        KVS_RETURN_IF_ERROR(cache_.Gather(i, head, held, {}, {}));
        for (const TokenPos position : held) {
          const auto at =
              std::lower_bound(trace_.positions().begin(), trace_.positions().end(), position);
          scores_[i].push_back(all[head * trace_.tokens() + (at - trace_.positions().begin())]);
        }
      }
      KVS_RETURN_IF_ERROR(cache_.SetExternalScores(i, scores_[i]));
    }
    return {};
  }

  const Trace& trace_;
  const Schedule& schedule_;
  const PromptOptions& options_;
  Cache& cache_;
  bool hands_scores_in_ = false;
  std::vector<std::vector<float>> scores_;  // [layers], alive until the eviction
};

// What the schedule was not given the chance to do.
std::string ScheduleNote(const Schedule& schedule, const PromptOptions& options, const Trace& trace,
                         DecodeRows decode_rows) {
  const bool one_chunk = options.chunk_rows == 0 || options.chunk_rows >= trace.tokens();
  if (schedule.kind == Schedule::Kind::kPerChunk && one_chunk) {
    return "per_chunk: the prompt came as one chunk, which is once (--chunk-rows N)";
  }
  if (schedule.kind == Schedule::Kind::kEvery && decode_rows == DecodeRows::kExact) {
    return StrCat(schedule.Canonical(),
                  ": nothing was evicted during decode, whose rows stay exact "
                  "(compare --decode-rows stored)");
  }
  if (schedule.kind == Schedule::Kind::kEvery && schedule.tokens > trace.n_eval()) {
    return StrCat(schedule.Canonical(), ": nothing was evicted during the ", trace.n_eval(),
                  " tokens of decode");
  }
  return {};
}

void AddNote(const std::string& note, LayerReport& report) {
  if (!note.empty()) report.note += StrCat(report.note.empty() ? "" : "; ", note);
}

}  // namespace

Result<CompressedPrompt> CompressPrompt(const Trace& trace,
                                        std::shared_ptr<const Pipeline> pipeline,
                                        const CacheOptions& options, const PromptOptions& prompt) {
  KVS_RETURN_IF_ERROR(CheckLayers(*pipeline, trace.LayerSpecs()));
  const int rounds = trace.tokens() <= kRoundsTokens ? kRounds : 1;
  auto best = Clock::duration::max();
  std::optional<Cache> filled;
  for (int round = 0; round < rounds; ++round) {
    filled.reset();  // first give back the memory of the round before
    const auto start = Clock::now();
    KVS_ASSIGN_OR_RETURN(filled, Cache::Create(pipeline, trace.LayerSpecs(), options));
    KVS_RETURN_IF_ERROR(PromptFeed(trace, *pipeline, prompt, *filled).Run());
    best = std::min(best, Clock::now() - start);
  }
  Cache cache = *std::move(filled);
  PipelineResult result;
  result.typed = pipeline->Typed();
  result.canonical = pipeline->Canonical();
  result.time.compact_ms = std::chrono::duration<double, std::milli>(best).count();
  result.bytes = cache.Report();
  const std::string note = ScheduleNote(pipeline->schedule(), prompt, trace, options.decode_rows);
  for (int i = 0; i < cache.layers(); ++i) {
    LayerReport& report = result.layers.emplace_back().report;
    report = cache.ReportLayer(i);
    AddNote(note, report);
    KVS_ASSIGN_OR_RETURN(const LayerStore store,
                         BuildStore(pipeline->StoreFor(i, cache.layers(), 0), cache.layer(i)));
    AddNote(KeyAdvice(cache.layer(i), store.key->codec()), report);
  }
  return CompressedPrompt{std::move(cache), std::move(result)};
}

}  // namespace kvsieve::eval
