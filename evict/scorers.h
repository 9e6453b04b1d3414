// The scorers of this version. Each lives in its own file and has one line in registry.cc.
#ifndef KVSIEVE_EVICT_SCORERS_H_
#define KVSIEVE_EVICT_SCORERS_H_

#include <cstdint>
#include <memory>

#include "evict/selection.h"
#include "kvsieve/evict.h"
#include "kvsieve/spec_args.h"

namespace kvsieve::evict {

struct ScorerParts {
  std::unique_ptr<const Scorer> scorer;
  Scope scope = Scope::kKvHead;
  // Scores are shares of one whole, so that a sum of them means something (select=top_p).
  bool additive = false;
};

// Reads the scorer's own keys through `args`, where mistakes go. `selection` is read already.
using ScorerFactory = ScorerParts (*)(ArgReader& args, const Selection& selection);

ScorerParts MakeWindowAttention(ArgReader& args, const Selection& selection);
ScorerParts MakeOutputPerturbation(ArgReader& args, const Selection& selection);
ScorerParts MakeRecency(ArgReader& args, const Selection& selection);
ScorerParts MakeRandom(ArgReader& args, const Selection& selection);
ScorerParts MakeKeyProxy(ArgReader& args, const Selection& selection);
ScorerParts MakeKeyNorm(ArgReader& args, const Selection& selection);
ScorerParts MakeKeyDiff(ArgReader& args, const Selection& selection);
ScorerParts MakeLag(ArgReader& args, const Selection& selection);
ScorerParts MakeExpectedAttention(ArgReader& args, const Selection& selection);
ScorerParts MakeExternal(ArgReader& args, const Selection& selection);
ScorerParts MakeMix(ArgReader& args, const Selection& selection);

// The factory of the scorer that `call` names. Errors point at its column.
Result<ScorerFactory> FindScorer(const SpecCall& call);

// Sizes `scores` for the heads of `observation`; every value is 0.
void ResetScores(const Observation& observation, Scores* scores);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SCORERS_H_
