// external: scores that someone else computed, for methods that need the model in the loop or
// trained parts (KVzip, KVzap, TriAttention, DapQ, ...). Observation::external_scores, one per KV
// head and row; higher stays. NaN is the lowest, as in every score.
#include "evict/head_pass.h"

namespace kvsieve::evict {
namespace {

class External final : public Scorer {
 public:
  explicit External(const RowOptions& options) : options_(options) {}

  std::string Canonical() const override { return StrCat("external(", options_.Canonical(), ")"); }
  ScorerNeeds needs() const override { return {.external_scores = true}; }

  Status Score(const Observation& observation, Parallel&, ScoreScratch*,
               Scores* scores) const override {
    ResetScores(observation, scores);
    const std::span<const float> given = observation.external_scores;
    if (given.size() != scores->raw.size()) {
      const int layer = observation.layer.layer;
      if (given.empty()) {
        return Status::Invalid(
            StrCat("layer ", layer, ": no external scores were handed in (scorer external)"));
      }
      return Status::Invalid(StrCat("layer ", layer, ": ", given.size(),
                                    " external scores were handed in, its KV heads have ",
                                    scores->raw.size(), " rows (scorer external)"));
    }
    std::copy(given.begin(), given.end(), scores->raw.begin());
    for (int head = 0; head < observation.layer.kv_heads; ++head) {
      const auto begin = static_cast<std::size_t>(scores->head_begin[head]);
      const auto rows = static_cast<std::size_t>(scores->head_begin[head + 1]) - begin;
      SmoothRows(options_.pool, 0, std::span(scores->raw).subspan(begin, rows),
                 std::span(scores->smoothed).subspan(begin, rows));
    }
    return Status::Ok();
  }

 private:
  RowOptions options_;
};

}  // namespace

ScorerParts MakeExternal(ArgReader& args, const Selection&) {
  const RowOptions options = ReadRowOptions(args);
  return {std::make_unique<External>(options), options.scope};
}

}  // namespace kvsieve::evict
