// output_perturbation: how far the output of the last prompt queries moves when a row is dropped.
// Without row j the weights become p_i / (1 - p_j), so o' - o = p_j / (1 - p_j) * (o - v_j): exact,
// not an approximation. Where p_j is kMaxWeight or more f32 resolves neither 1 - p_j nor o - v_j,
// and |v_j| is what goes.
#include "evict/scorers.h"
#include "evict/window_scores.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

class OutputPerturbation final : public Scorer {
 public:
  explicit OutputPerturbation(const WindowOptions& options) : options_(options) {}

  std::string Canonical() const override {
    return StrCat("output_perturbation(", options_.Canonical(), ")");
  }
  ScorerNeeds needs() const override { return {.window_queries = options_.window, .values = true}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    return ScoreWindow(options_, RowWeight::kOutputPerturbation, observation, parallel, scratch,
                       scores);
  }

 private:
  WindowOptions options_;
};

}  // namespace

ScorerParts MakeOutputPerturbation(ArgReader& args, const Selection& selection) {
  const WindowOptions options = ReadWindowOptions(args, selection);
  return {std::make_unique<OutputPerturbation>(options), options.scope, true};
}

}  // namespace kvsieve::evict
