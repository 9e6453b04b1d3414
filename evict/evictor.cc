#include "evict/evictor.h"

#include <algorithm>
#include <utility>

#include "evict/protection.h"
#include "evict/top_k.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

Status CheckHead(const Observation& observation, int head, bool needs_values) {
  const HeadObservation& rows = observation.heads[head];
  const LayerSpec& layer = observation.layer;
  const auto bad = [&](const auto&... what) {
    return Status::Invalid(StrCat("layer ", layer.layer, " head ", head, ": ", what...));
  };
  const auto tokens = static_cast<std::int64_t>(rows.positions.size());
  if (rows.keys == nullptr) return bad("no keys");
  if (rows.keys->rows() != tokens || rows.keys->dim() != layer.key_dim) {
    return bad("keys are ", rows.keys->rows(), " x ", rows.keys->dim(), ", expected ", tokens,
               " x ", layer.key_dim);
  }
  if (needs_values && rows.values == nullptr) return bad("no values");
  if (needs_values && (rows.values->rows() != tokens || rows.values->dim() != layer.value_dim)) {
    return bad("values are ", rows.values->rows(), " x ", rows.values->dim(), ", expected ", tokens,
               " x ", layer.value_dim);
  }
  const bool shared = head > 0 && rows.positions.data() == observation.heads[0].positions.data();
  for (std::int64_t i = 0; !shared && i < tokens; ++i) {
    if (rows.positions[i] < 0 || (i > 0 && rows.positions[i] <= rows.positions[i - 1])) {
      return bad("position ", rows.positions[i], " is negative or not greater than the one before");
    }
  }
  return Status::Ok();
}

Status CheckObservation(const Observation& observation, bool needs_values) {
  const LayerSpec& layer = observation.layer;
  KVS_RETURN_IF_ERROR(layer.Validate());
  if (observation.heads.size() != static_cast<std::size_t>(layer.kv_heads)) {
    return Status::Invalid(StrCat("layer ", layer.layer, ": ", observation.heads.size(),
                                  " heads observed, expected ", layer.kv_heads));
  }
  for (int head = 0; head < layer.kv_heads; ++head) {
    KVS_RETURN_IF_ERROR(CheckHead(observation, head, needs_values));
  }
  return Status::Ok();
}

bool IsSliding(const Observation& observation) { return observation.layer.sliding_window > 0; }

// Whole leading blocks of a sliding-window layer fall away by themselves.
HeadPlan PlanOf(const Selection& selection, int window, const Observation& observation, int head) {
  const std::span<const TokenPos> positions = observation.heads[head].positions;
  if (!IsSliding(observation)) return PlanHead(selection, window, positions);
  HeadPlan plan;
  const auto tokens = static_cast<RowIndex>(positions.size());
  if (tokens > 0) plan.kept = {{0, tokens}};
  plan.note = "sliding-window layers are not scored";
  return plan;
}

// One note for the layer; names the head when the heads do not agree.
std::string LayerNote(std::span<const HeadPlan> plans) {
  const auto first = std::find_if(plans.begin(), plans.end(),
                                  [](const HeadPlan& plan) { return !plan.note.empty(); });
  if (first == plans.end()) return {};
  const bool all = std::all_of(plans.begin(), plans.end(),
                               [&](const HeadPlan& plan) { return plan.note == first->note; });
  return all ? first->note : StrCat("head ", first - plans.begin(), ": ", first->note);
}

HeadScores ScoresOf(const Scores& scores, int head) {
  if (scores.head_begin.empty()) return {};
  const auto begin = static_cast<std::size_t>(scores.head_begin[head]);
  const auto size = static_cast<std::size_t>(scores.head_begin[head + 1]) - begin;
  return {std::span(scores.smoothed).subspan(begin, size),
          std::span(scores.raw).subspan(begin, size)};
}

std::int64_t RowsOf(const HeadPlan& plan) {
  std::int64_t rows = plan.best;
  for (const RowRange& range : plan.kept) rows += range.rows();
  return rows;
}

// Rows that stay in each head. Tasks find all their memory reserved: they must not fail.
std::vector<std::vector<RowIndex>> SelectHeads(std::span<const HeadPlan> plans,
                                               const Scores& scores, Ties ties,
                                               Parallel& parallel) {
  std::vector<std::vector<RowIndex>> rows(plans.size());
  std::size_t most = 0;
  for (std::size_t head = 0; head < plans.size(); ++head) {
    rows[head].reserve(static_cast<std::size_t>(RowsOf(plans[head])));
    most = std::max(most, ScoresOf(scores, static_cast<int>(head)).smoothed.size());
  }
  std::vector<TopKScratch> scratch(static_cast<std::size_t>(parallel.workers()));
  for (TopKScratch& worker : scratch) {
    worker.keys.reserve(most);
    worker.survivors.reserve(most + 1);
    worker.contested.reserve(most);
  }
  ParallelFor(parallel, static_cast<std::int64_t>(plans.size()),
              [&](std::int64_t head, int worker) {
                SelectRows(ScoresOf(scores, static_cast<int>(head)), plans[head].kept,
                           plans[head].best, ties, &scratch[worker], &rows[head]);
              });
  return rows;
}

// rows: per head, or one list for all heads.
Result<KeepSet> ToKeepSet(const Observation& observation,
                          std::span<const std::vector<RowIndex>> rows) {
  std::vector<std::int64_t> head_begin = {0};
  std::vector<TokenPos> positions;
  for (std::size_t head = 0; head < observation.heads.size(); ++head) {
    for (const RowIndex row : rows[rows.size() == 1 ? 0 : head]) {
      positions.push_back(observation.heads[head].positions[row]);
    }
    head_begin.push_back(static_cast<std::int64_t>(positions.size()));
  }
  return KeepSet::Create(std::move(head_begin), std::move(positions), {});
}

// The mean over many heads, in f64 and in head order.
class MeanScores {
 public:
  void Add(const Scores& scores) {
    const std::size_t heads = scores.head_begin.size() - 1;
    const std::size_t rows = scores.raw.size() / heads;
    raw_.resize(rows);
    smoothed_.resize(rows);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t begin = head * rows;
      for (std::size_t i = 0; i < rows; ++i) {
        raw_[i] += scores.raw[begin + i];
        smoothed_[i] += scores.smoothed[begin + i];
      }
    }
    heads_ += static_cast<double>(heads);
  }
  Scores Take() const {
    Scores mean;
    mean.head_begin = {0, static_cast<std::int64_t>(raw_.size())};
    for (const double sum : raw_) mean.raw.push_back(static_cast<float>(sum / heads_));
    for (const double sum : smoothed_) mean.smoothed.push_back(static_cast<float>(sum / heads_));
    return mean;
  }

 private:
  std::vector<double> raw_;
  std::vector<double> smoothed_;
  double heads_ = 0;
};

std::int64_t BytesOf(const Scores& scores) {
  return static_cast<std::int64_t>((scores.raw.size() + scores.smoothed.size()) * sizeof(float));
}

class ScoringEvictor final : public Evictor {
 public:
  ScoringEvictor(ScorerParts parts, Selection selection)
      : scorer_(std::move(parts.scorer)), scope_(parts.scope), selection_(std::move(selection)) {}

  std::string Canonical() const override {
    std::string out = scorer_->Canonical();
    const bool has_keys = out.back() == ')';
    if (has_keys) out.pop_back();
    return StrCat(out, has_keys ? "," : "(", selection_.Canonical(), ")");
  }

  ScorerNeeds needs() const override { return scorer_->needs(); }

  Result<std::vector<LayerDecision>> Decide(std::span<const Observation> layers, Parallel& parallel,
                                            ScoreScratch* scratch) const override {
    ScoreScratch own;
    Call call{parallel, scratch != nullptr ? *scratch : own};
    call.scratch.peak_bytes = 0;
    call.scratch.recomputed = false;
    for (const Observation& layer : layers) {
      KVS_RETURN_IF_ERROR(CheckObservation(layer, needs().values));
    }
    if (scope_ == Scope::kModel) return DecideShared(layers, call);
    std::vector<LayerDecision> decisions;
    for (const Observation& layer : layers) {
      if (scope_ == Scope::kLayer) {
        KVS_ASSIGN_OR_RETURN(std::vector<LayerDecision> one, DecideShared({&layer, 1}, call));
        decisions.push_back(std::move(one.front()));
      } else {
        KVS_ASSIGN_OR_RETURN(LayerDecision one, DecideHeads(layer, call));
        decisions.push_back(std::move(one));
      }
    }
    return decisions;
  }

 private:
  struct Call {
    Parallel& parallel;
    ScoreScratch& scratch;
  };

  Result<Scores> Score(const Observation& layer, Call& call) const {
    ScoreScratch once{.limit_bytes = call.scratch.limit_bytes};
    Scores scores;
    KVS_RETURN_IF_ERROR(scorer_->Score(layer, call.parallel, &once, &scores));
    call.scratch.peak_bytes = std::max(call.scratch.peak_bytes, once.peak_bytes + BytesOf(scores));
    call.scratch.recomputed |= once.recomputed;
    return scores;
  }

  // Each head has its own set.
  Result<LayerDecision> DecideHeads(const Observation& layer, Call& call) const {
    std::vector<HeadPlan> plans;
    LayerDecision decision;
    for (int head = 0; head < layer.layer.kv_heads; ++head) {
      plans.push_back(PlanOf(selection_, needs().window(), layer, head));
      decision.scored |= plans.back().best > 0;
    }
    decision.note = LayerNote(plans);
    Scores scores;
    if (decision.scored) {
      KVS_ASSIGN_OR_RETURN(scores, Score(layer, call));
    }
    KVS_ASSIGN_OR_RETURN(decision.keep, ToKeepSet(layer, SelectHeads(plans, scores, selection_.ties,
                                                                     call.parallel)));
    return decision;
  }

  // All heads of all layers keep one set of positions.
  Result<std::vector<LayerDecision>> DecideShared(std::span<const Observation> layers,
                                                  Call& call) const {
    const Observation* first = nullptr;
    for (const Observation& layer : layers) {
      if (IsSliding(layer)) continue;
      if (first == nullptr) first = &layer;
      KVS_RETURN_IF_ERROR(CheckSamePositions(*first, layer));
    }
    HeadPlan plan;
    if (first != nullptr) plan = PlanOf(selection_, needs().window(), *first, 0);
    Scores mean;
    if (plan.best > 0) {
      MeanScores sum;
      for (const Observation& layer : layers) {
        if (IsSliding(layer)) continue;
        KVS_ASSIGN_OR_RETURN(const Scores scores, Score(layer, call));
        sum.Add(scores);
      }
      mean = sum.Take();
    }
    const auto rows = SelectHeads({&plan, 1}, mean, selection_.ties, call.parallel);
    std::vector<LayerDecision> decisions;
    for (const Observation& layer : layers) {
      if (IsSliding(layer)) {
        KVS_ASSIGN_OR_RETURN(LayerDecision all, DecideHeads(layer, call));
        decisions.push_back(std::move(all));
        continue;
      }
      KVS_ASSIGN_OR_RETURN(KeepSet keep, ToKeepSet(layer, rows));
      decisions.push_back({std::move(keep), plan.best > 0, plan.note});
    }
    return decisions;
  }

  Status CheckSamePositions(const Observation& first, const Observation& layer) const {
    const std::span<const TokenPos> expected = first.heads[0].positions;
    for (int head = 0; head < layer.layer.kv_heads; ++head) {
      const std::span<const TokenPos> positions = layer.heads[head].positions;
      if (positions.data() == expected.data() && positions.size() == expected.size()) continue;
      if (!std::equal(positions.begin(), positions.end(), expected.begin(), expected.end())) {
        return Status::Invalid(StrCat("layer ", layer.layer.layer, " head ", head,
                                      ": its rows differ from layer ", first.layer.layer,
                                      " head 0; one set for both needs the same rows (option "
                                      "scope)"));
      }
    }
    return Status::Ok();
  }

  std::unique_ptr<const Scorer> scorer_;
  Scope scope_;
  Selection selection_;
};

}  // namespace

void ResetScores(const Observation& observation, Scores* scores) {
  scores->head_begin.assign(1, 0);
  for (const HeadObservation& head : observation.heads) {
    scores->head_begin.push_back(scores->head_begin.back() +
                                 static_cast<std::int64_t>(head.positions.size()));
  }
  const auto total = static_cast<std::size_t>(scores->head_begin.back());
  scores->raw.assign(total, 0.0F);
  scores->smoothed.assign(total, 0.0F);
}

std::shared_ptr<const Evictor> ComposeEvictor(ScorerParts parts, Selection selection) {
  return std::make_shared<ScoringEvictor>(std::move(parts), std::move(selection));
}

}  // namespace kvsieve::evict
