// mix: a weighted sum of scorers, mix(0.9*window_attention(pool=none),0.1*key_norm,budget=25%).
//
// Scores have units of their own: attention shares, minus lengths, cosines, ranks. Each term is
// brought to one scale per KV head before it is weighed:
//   normalised = (score - low) / (mean - low),  low and mean over the rows that are ranked
// that is, least 0 and mean 1, so that a weight says how much of an average row's score a term
// makes up, whatever the term's unit and zero. Dividing by the sum or maximum alone would turn
// negative scores around (key_norm), and one outlier as the unit would silence a term; ranks would
// lose how far attention stands out, which is what it has to say. Sinks and the protected window
// stay anyway and their scores dwarf others, so low and mean leave them out. A term that is
// constant says nothing and adds 0. Infinities and NaN stay what they are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "evict/head_pass.h"
#include "evict/presets.h"
#include "evict/waterfill.h"

namespace kvsieve::evict {
namespace {

struct Term {
  double weight = 0;
  std::unique_ptr<const Scorer> scorer;
};

// Rows [begin, end) of a head of `rows` rows that are neither sinks nor of the protected window;
// all rows when there are none.
struct RankedRows {
  std::int64_t sinks = 0;
  std::int64_t window = 0;

  std::span<const float> Of(std::span<const float> scores) const {
    const auto rows = static_cast<std::int64_t>(scores.size());
    const std::int64_t begin = std::min(sinks, rows);
    const std::int64_t end = rows - std::min(window, rows);
    if (begin >= end) return scores;
    return scores.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
};

// Adds weight * normalised score of each row to `sum`; `ranked` is the part of `scores` that sets
// the scale.
void AddNormalised(double weight, std::span<const float> ranked, std::span<const float> scores,
                   std::span<float> sum) {
  double low = std::numeric_limits<double>::infinity();
  double total = 0;
  double count = 0;
  for (const float score : ranked) {
    if (!std::isfinite(score)) continue;
    low = std::min<double>(low, score);
    total += score;
    ++count;
  }
  const double above_low = count > 0 ? total / count - low : 0;
  const double factor = above_low > 0 ? weight / above_low : 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    sum[i] += std::isfinite(scores[i]) ? static_cast<float>((scores[i] - low) * factor) : scores[i];
  }
}

class Mix final : public Scorer {
 public:
  Mix(std::vector<Term> terms, Scope scope, const Selection& selection)
      : terms_(std::move(terms)), scope_(scope) {
    ranked_.sinks = selection.sinks;
    ranked_.window = selection.protect_window ? needs().window() : 0;
  }

  std::string Canonical() const override {
    std::string out = "mix(";
    for (const Term& term : terms_) {
      out += StrCat(RealText(term.weight), "*", term.scorer->Canonical(), ",");
    }
    return StrCat(out, "scope=", ScopeName(scope_), ")");
  }

  ScorerNeeds needs() const override {
    ScorerNeeds all;
    for (const Term& term : terms_) {
      const ScorerNeeds one = term.scorer->needs();
      all.window_queries = std::max(all.window_queries, one.window_queries);
      all.window_keys = std::max(all.window_keys, one.window_keys);
      all.values |= one.values;
      all.external_scores |= one.external_scores;
    }
    return all;
  }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    ResetScores(observation, scores);
    for (const Term& term : terms_) {
      ScoreScratch once;
      if (scratch != nullptr) once.limit_bytes = scratch->limit_bytes;
      Scores one;
      KVS_RETURN_IF_ERROR(term.scorer->Score(observation, parallel, &once, &one));
      Add(term.weight, one, scores);
      if (scratch == nullptr) continue;
      const auto own = static_cast<std::int64_t>(2 * one.raw.size() * sizeof(float));
      scratch->peak_bytes = std::max(scratch->peak_bytes, once.peak_bytes + own);
      scratch->recomputed |= once.recomputed;
    }
    return Status::Ok();
  }

 private:
  void Add(double weight, const Scores& one, Scores* sum) const {
    for (std::size_t head = 0; head + 1 < one.head_begin.size(); ++head) {
      const auto begin = static_cast<std::size_t>(one.head_begin[head]);
      const auto rows = static_cast<std::size_t>(one.head_begin[head + 1]) - begin;
      const auto add = [&](const std::vector<float>& from, std::vector<float>& to) {
        const std::span<const float> scores = std::span(from).subspan(begin, rows);
        AddNormalised(weight, ranked_.Of(scores), scores, std::span(to).subspan(begin, rows));
      };
      add(one.raw, sum->raw);
      add(one.smoothed, sum->smoothed);
    }
  }

  std::vector<Term> terms_;
  Scope scope_;
  RankedRows ranked_;
};

constexpr std::size_t kMaxTerms = 16;
constexpr double kLeastWeight = 1e-9;
constexpr double kLargestWeight = 1e9;

// "0.9*window_attention" of `arg` -> 0.9 and the call window_attention(...).
bool ReadWeight(ArgReader& args, const SpecArg& arg, double* weight, SpecCall* call) {
  const std::size_t star = arg.value.find('*');
  if (star == std::string::npos) {
    args.Fail(arg.value_column,
              StrCat("'", arg.value, "' is not a term of mix: write 1*", arg.value));
    return false;
  }
  const std::string text = arg.value.substr(0, star);
  const Result<double> parsed = ParseReal(text);
  if (!parsed.ok() || *parsed < kLeastWeight || *parsed > kLargestWeight) {
    args.Fail(arg.value_column, StrCat("weight '", text, "' is not a number in [", kLeastWeight,
                                       ", ", kLargestWeight, "]"));
    return false;
  }
  *weight = *parsed;
  if (!arg.call.empty()) *call = arg.call.front();
  call->name = arg.value.substr(star + 1);
  call->column = arg.value_column + static_cast<int>(star) + 1;
  return true;
}

// A term's scorer; null when there is a mistake, which goes to `args`.
std::unique_ptr<const Scorer> MakeTerm(ArgReader& args, const SpecCall& call,
                                       const Selection& selection, bool* additive) {
  if (call.name == "mix") {
    args.Fail(call.column, "a mix cannot be a term of a mix: write its terms out");
    return nullptr;
  }
  if (call.name == kWaterfill) {
    args.Fail(call.column, "waterfill scores no rows, and cannot be a term of a mix");
    return nullptr;
  }
  if (StageOf(call.name) != call.name) {
    args.Fail(call.column, StrCat("the preset ", call.name, " cannot be a term of a mix: it is a ",
                                  "scorer with a selection; ", StageOf(call.name), " can"));
    return nullptr;
  }
  Result<ScorerFactory> make = FindScorer(call);
  if (!make.ok()) {
    args.Fail(make.TakeStatus());
    return nullptr;
  }
  ArgReader inner(call);
  ScorerParts parts = (*make)(inner, selection);
  args.Fail(inner.Finish());
  if (parts.scope != Scope::kKvHead) {
    args.Fail(call.column, "option scope stands after the terms of mix, once for all of them");
  }
  *additive = *additive && parts.additive;
  return std::move(parts.scorer);
}

}  // namespace

ScorerParts MakeMix(ArgReader& args, const Selection& selection) {
  std::vector<Term> terms;
  bool additive = true;
  for (const SpecArg* arg : args.Words()) {
    Term term;
    SpecCall call;
    if (!ReadWeight(args, *arg, &term.weight, &call)) continue;
    if (terms.size() == kMaxTerms) {
      args.Fail(arg->value_column, StrCat("mix has more than ", kMaxTerms, " terms"));
      break;
    }
    term.scorer = MakeTerm(args, call, selection, &additive);
    if (term.scorer != nullptr) terms.push_back(std::move(term));
  }
  Scope scope = Scope::kKvHead;
  ReadScope(args, &scope);
  if (terms.empty()) {
    args.Fail(args.column(), "mix needs terms, such as mix(0.9*window_attention,0.1*key_norm,...)");
  }
  return {std::make_unique<Mix>(std::move(terms), scope, selection), scope, additive};
}

}  // namespace kvsieve::evict
