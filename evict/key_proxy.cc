// key_proxy: window_attention for callers that have no queries. The last `window` keys of each KV
// head stand in for them (as VeloxQuant-MLX's SnapKV does, there without a causal mask and without
// smoothing): a key resembles the queries of its own neighbourhood, no more.
#include "evict/scorers.h"
#include "evict/window_scores.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

class KeyProxy final : public Scorer {
 public:
  explicit KeyProxy(const WindowOptions& options) : options_(options) {}

  std::string Canonical() const override { return StrCat("key_proxy(", options_.Canonical(), ")"); }
  ScorerNeeds needs() const override { return {.window_keys = options_.window}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    return ScoreWindow(options_, RowWeight::kAttention, observation, parallel, scratch, scores);
  }

 private:
  WindowOptions options_;
};

}  // namespace

ScorerParts MakeKeyProxy(ArgReader& args, const Selection& selection) {
  const WindowOptions options = ReadWindowOptions(args, selection, QuerySource::kKeys);
  return {std::make_unique<KeyProxy>(options), options.scope, true};
}

}  // namespace kvsieve::evict
