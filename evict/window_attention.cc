// window_attention: the attention that the last prompt queries pay to each row (SnapKV, Li et al.
// 2024, with true queries, causal inside the window, and a choice at every reduction).
#include "evict/scorers.h"
#include "evict/window_scores.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

class WindowAttention final : public Scorer {
 public:
  explicit WindowAttention(const WindowOptions& options) : options_(options) {}

  std::string Canonical() const override {
    return StrCat("window_attention(", options_.Canonical(), ")");
  }
  ScorerNeeds needs() const override { return {.window_queries = options_.window}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    return ScoreWindow(options_, RowWeight::kAttention, observation, parallel, scratch, scores);
  }

 private:
  WindowOptions options_;
};

}  // namespace

ScorerParts MakeWindowAttention(ArgReader& args, const Selection& selection) {
  const WindowOptions options = ReadWindowOptions(args, selection);
  return {std::make_unique<WindowAttention>(options), options.scope, true};
}

}  // namespace kvsieve::evict
