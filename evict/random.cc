// random: rows drawn uniformly per KV head; the baseline that a scorer has to beat.
#include "evict/scorers.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): one step from state `x`.
constexpr std::uint64_t SplitMix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

class Random final : public Scorer {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

  std::string Canonical() const override { return StrCat("random(seed=", seed_, ")"); }
  ScorerNeeds needs() const override { return {}; }

  // score in [0, 1) from seed, layer, head and position alone, whatever else was observed.
  Status Score(const Observation& observation, Parallel&, ScoreScratch*,
               Scores* scores) const override {
    ResetScores(observation, scores);
    const std::uint64_t layer_seed =
        SplitMix64(seed_ ^ SplitMix64(static_cast<std::uint64_t>(observation.layer.layer)));
    for (int head = 0; head < observation.layer.kv_heads; ++head) {
      const std::uint64_t head_seed = SplitMix64(layer_seed ^ static_cast<std::uint64_t>(head));
      float* raw = scores->raw.data() + scores->head_begin[head];
      for (const TokenPos position : observation.heads[head].positions) {
        const std::uint64_t bits = SplitMix64(head_seed ^ static_cast<std::uint64_t>(position));
        *raw++ = static_cast<float>(bits >> 40) * 0x1p-24F;
      }
    }
    scores->smoothed = scores->raw;
    return Status::Ok();
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

ScorerParts MakeRandom(ArgReader& args, const Selection&) {
  std::uint64_t seed = 0;
  args.UInt64("seed", &seed);
  return {.scorer = std::make_unique<Random>(seed)};
}

}  // namespace kvsieve::evict
