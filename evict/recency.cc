// recency: the newest rows stay. With sinks this is StreamingLLM's rule (Xiao et al. 2023).
#include "evict/scorers.h"

namespace kvsieve::evict {
namespace {

class Recency final : public Scorer {
 public:
  std::string Canonical() const override { return "recency"; }
  ScorerNeeds needs() const override { return {}; }

  // score = row, exact up to 2^24 rows.
  Status Score(const Observation& observation, Parallel&, ScoreScratch*,
               Scores* scores) const override {
    ResetScores(observation, scores);
    for (int head = 0; head < observation.layer.kv_heads; ++head) {
      const std::int64_t begin = scores->head_begin[head];
      const std::int64_t end = scores->head_begin[head + 1];
      for (std::int64_t i = begin; i < end; ++i) scores->raw[i] = static_cast<float>(i - begin);
    }
    scores->smoothed = scores->raw;
    return Status::Ok();
  }
};

}  // namespace

ScorerParts MakeRecency(ArgReader&, const Selection&) {
  return {.scorer = std::make_unique<Recency>()};
}

}  // namespace kvsieve::evict
