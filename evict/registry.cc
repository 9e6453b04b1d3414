// Names of evict stages -> what builds them.
#include <algorithm>
#include <iterator>
#include <vector>

#include "evict/evictor.h"
#include "evict/presets.h"
#include "evict/scorers.h"
#include "evict/waterfill.h"
#include "kvsieve/evict.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace evict {
namespace {

#define KVS_EVICT_WINDOW_OPTIONS                                             \
  "window=32 queries=mean|sum|max group=mean|max|sum pool=max:7|avg:k|none " \
  "pool_pad=exclude|zero scope=kv_head|layer|model causal=true|false " KVS_EVICT_SELECTION_OPTIONS

#define KVS_EVICT_KEY_WINDOW_OPTIONS                      \
  "window=32 queries=mean|sum|max pool=max:7|avg:k|none " \
  "pool_pad=exclude|zero scope=kv_head|layer|model causal=true|false " KVS_EVICT_SELECTION_OPTIONS

#define KVS_EVICT_ROW_OPTIONS                    \
  "pool=none|max:k|avg:k pool_pad=exclude|zero " \
  "scope=kv_head|layer|model " KVS_EVICT_SELECTION_OPTIONS

constexpr StageInfo kInfos[] = {
    {"window_attention", "Keeps the rows that the last prompt queries attend to, per KV head.",
     "score = pool(mean over group and window of softmax(scale q.k)) (SnapKV, arXiv:2404.14469)",
     KVS_EVICT_WINDOW_OPTIONS,
     "later queries are taken to attend as the last `window` ones do; dropped rows are gone"},
    {"snapkv", "window_attention under its usual name.", "see window_attention",
     KVS_EVICT_WINDOW_OPTIONS, "see window_attention"},
    {"output_perturbation",
     "Keeps the rows whose loss would move the output of the last prompt queries most.",
     "score = pool(mean over group and window of p/(1-p) |o - v|), p the softmax weight (DropKV); "
     "|v| where p is 1",
     KVS_EVICT_WINDOW_OPTIONS,
     "exact for dropping one row, summed for many; later queries are taken to be like the last "
     "ones"},
    {"key_proxy",
     "Keeps the rows that the last prompt keys attend to: window_attention without queries.",
     "score = pool(mean over the window of softmax(scale k_w.k)), k_w the head's own last keys "
     "(VeloxQuant-MLX)",
     KVS_EVICT_KEY_WINDOW_OPTIONS,
     "keys stand in for the queries; later queries are taken to be like the last keys"},
    {"key_norm", "Keeps the rows with the shortest keys.",
     "score = pool(-|k|) (Devoto et al., arXiv:2406.11430)", KVS_EVICT_ROW_OPTIONS,
     "short keys are taken to be much attended, whatever the queries"},
    {"key_diff", "Keeps the rows whose keys point elsewhere than most.",
     "score = pool(-cos(k, mean of k/|k|)) (KeyDiff, arXiv:2504.15364)", KVS_EVICT_ROW_OPTIONS,
     "distinct keys are taken to be needed, whatever the queries"},
    {"lag", "Keeps the rows that stand out from the rows that follow them.",
     "score = rank in its partition of the mean over K and V of softmax(std of (x - min) / (max - "
     "min)), min and max over the next partition (LagKV, arXiv:2504.04704)",
     "lag=128 across=rank|score scope=kv_head|layer|model " KVS_EVICT_SELECTION_OPTIONS,
     "what the next rows do not predict is taken to be needed, whatever the queries"},
    {"expected_attention",
     "Keeps the rows that queries still to come are expected to attend to, weighed by their "
     "values.",
     "score = pool(mean over group of softmax(scale mu.k + scale^2 k'Cov k / 2) |v|), mu and Cov "
     "of "
     "the window queries (Expected Attention, arXiv:2510.00636, there before RoPE)",
     "window=32 group=mean|max|sum " KVS_EVICT_ROW_OPTIONS,
     "queries are taken to be Gaussian, and those to come rotated as the last ones are"},
    {"external", "Keeps the rows that rank first in scores handed in.",
     "score = pool(the score handed in): Cache::SetExternalScores, --scores FILE",
     KVS_EVICT_ROW_OPTIONS, "whatever the method behind the scores does"},
    {"mix", "Keeps the rows that rank first in a weighted sum of scorers: 0.9*snapkv,0.1*key_norm.",
     "score = sum of w (s - low) / (mean - low) over terms w*s, low and mean per KV head over the "
     "rows between the sinks and the protected window",
     "w*scorer(...) scope=kv_head|layer|model " KVS_EVICT_SELECTION_OPTIONS,
     "what its terms approximate; their scores are taken to be comparable after scaling"},
    {"recency", "Keeps the first and the newest rows.",
     "score = row (StreamingLLM, arXiv:2309.17453)", KVS_EVICT_SELECTION_OPTIONS,
     "rows between the sinks and the newest are taken not to matter"},
    {"random", "Keeps rows at random: the baseline.",
     "score = uniform hash of seed, layer, head, position", "seed=0 " KVS_EVICT_SELECTION_OPTIONS,
     "all rows are taken to matter alike"},
};

constexpr StageInfo kPlanners[] = {
    {kWaterfill, "Gives each row the tier of tiers=[...], or none, that loses least for its bytes.",
     "least sum over rows of loss + lambda bytes; loss = key e_k + value e_v of a tier, drop of "
     "none; e = measured |x - x'|^2 / |x|^2 of a tier, of keys from their mean (docs/tiers.md)",
     "budget=<size>|<factor>x scope=model|layer|kv_head power=0.5 pool=max:15|avg:k|none "
     "pool_pad=exclude|zero drop_weight=4 window=32 sinks=4 level=0 floor=0 follow=0|n "
     "follow_weight=0.1",
     "later queries are taken to need what the last ones do, after pool and power flattened it; "
     "errors of rows are taken to add up"},
};

// In the order of kInfos.
constexpr ScorerFactory kFactories[] = {
    MakeWindowAttention,
    MakeWindowAttention,
    MakeOutputPerturbation,
    MakeKeyProxy,
    MakeKeyNorm,
    MakeKeyDiff,
    MakeLag,
    MakeExpectedAttention,
    MakeExternal,
    MakeMix,
    MakeRecency,
    MakeRandom,
};
static_assert(std::size(kInfos) == std::size(kFactories));

// Whether split and select mean something for the scorer.
Status CheckParts(const SpecCall& call, const Selection& selection, const ScorerParts& parts) {
  const auto fail = [&](std::string_view key, std::string_view why) {
    const auto arg = std::find_if(call.args.begin(), call.args.end(),
                                  [&](const SpecArg& given) { return given.key == key; });
    return SpecError(arg == call.args.end() ? call.column : arg->value_column,
                     StrCat("option ", key, ": ", why));
  };
  if (selection.split.kind == SplitKind::kAdaptive && parts.scope != Scope::kKvHead) {
    return fail("split",
                "adaptive gives each head its own rows, but scope has one set for several");
  }
  if (selection.split.kind == SplitKind::kPyramid && parts.scope == Scope::kModel) {
    return fail("split",
                "pyramid gives each layer its own rows, but scope=model has one set for all");
  }
  if (selection.select.kind == SelectKind::kTopP && !parts.additive) {
    return fail("select", StrCat("top_p adds scores up, but those of ", call.name,
                                 " are no shares of a whole; use threshold:x or top_k"));
  }
  return Status::Ok();
}

}  // namespace

Result<ScorerFactory> FindScorer(const SpecCall& call) {
  const std::string_view stage = StageOf(call.name);
  for (std::size_t i = 0; i < std::size(kInfos); ++i) {
    if (kInfos[i].name == stage) return kFactories[i];
  }
  std::vector<std::string_view> names;
  for (const auto infos : {EvictorInfos(), PlannerInfos(), Presets()}) {
    for (const StageInfo& info : infos) names.push_back(info.name);
  }
  return SpecError(call.column,
                   StrCat("unknown evict stage '", call.name, "'", Suggest(call.name, names)));
}

}  // namespace evict

Result<std::shared_ptr<const Evictor>> MakeEvictor(const SpecCall& typed) {
  return NoThrow([&]() -> Result<std::shared_ptr<const Evictor>> {
    if (typed.name == evict::kWaterfill) return evict::MakeWaterfill(typed);
    KVS_ASSIGN_OR_RETURN(const evict::ScorerFactory make, evict::FindScorer(typed));
    KVS_ASSIGN_OR_RETURN(const SpecCall call, evict::CompletePreset(typed));
    ArgReader args(call);
    evict::Selection selection;
    evict::ReadSelection(args, &selection);
    evict::ScorerParts parts = make(args, selection);
    KVS_RETURN_IF_ERROR(args.Finish());
    KVS_RETURN_IF_ERROR(evict::CheckBudget(call, selection, parts.scorer->needs().window()));
    KVS_RETURN_IF_ERROR(evict::CheckParts(call, selection, parts));
    return evict::ComposeEvictor(std::move(parts), std::move(selection),
                                 evict::PresetName(typed.name));
  });
}

std::span<const StageInfo> EvictorInfos() { return evict::kInfos; }
std::span<const StageInfo> PlannerInfos() { return evict::kPlanners; }
std::span<const StageInfo> PresetInfos() { return evict::Presets(); }

}  // namespace kvsieve
