#include "lib/byte_budget.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/segments.h"

namespace kvsieve {
namespace {

// First and last of some positions, as PositionList sizes itself.
PositionSpan SpanOf(std::span<const TokenPos> positions) {
  if (positions.empty()) return {};
  return {static_cast<std::int64_t>(positions.size()), positions.front(), positions.back()};
}

// What one tier holds of `positions`.
PositionSpan SpanOf(std::span<const TokenPos> positions, std::span<const std::uint8_t> tiers,
                    std::size_t tier) {
  if (tiers.empty()) return tier == 0 ? SpanOf(positions) : PositionSpan();
  PositionSpan span;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (tiers[i] != tier) continue;
    if (span.rows++ == 0) span.first = positions[i];
    span.last = positions[i];
  }
  return span;
}

// A decision that fits the limit or not.
struct Candidate {
  std::vector<LayerDecision> decisions;
  std::int64_t bytes = 0;
};

class ByteSearch {
 public:
  ByteSearch(const ByteBudgetCall& call, Parallel& parallel) : call_(call), parallel_(parallel) {}

  Result<Candidate> KeepAll() const {
    Candidate all;
    for (const Observation& layer : call_.observations) {
      std::vector<std::int64_t> head_begin = {0};
      std::vector<TokenPos> positions;
      for (const HeadObservation& head : layer.heads) {
        positions.insert(positions.end(), head.positions.begin(), head.positions.end());
        head_begin.push_back(static_cast<std::int64_t>(positions.size()));
      }
      KVS_ASSIGN_OR_RETURN(KeepSet keep,
                           KeepSet::Create(std::move(head_begin), std::move(positions), {}));
      all.decisions.push_back({std::move(keep), false, {}});
    }
    all.bytes = BytesOf(all.decisions);
    return all;
  }

  Result<Candidate> Select(const Ranking& ranking, std::int64_t total) const {
    Candidate candidate;
    KVS_ASSIGN_OR_RETURN(candidate.decisions, ranking.Select(total, parallel_));
    candidate.bytes = BytesOf(candidate.decisions);
    return candidate;
  }

  bool Fits(const Candidate& candidate) const { return candidate.bytes <= call_.limit_bytes; }

  // The largest total in [fits, fits_not) that fits, by bisection.
  Result<Candidate> Bisect(const Ranking& ranking, std::int64_t fits, Candidate fitting,
                           std::int64_t fits_not) const {
    while (fits_not - fits > 1) {
      const std::int64_t middle = fits + (fits_not - fits) / 2;
      KVS_ASSIGN_OR_RETURN(Candidate candidate, Select(ranking, middle));
      if (!Fits(candidate)) {
        fits_not = middle;
        continue;
      }
      fits = middle;
      fitting = std::move(candidate);
    }
    return fitting;
  }

 private:
  std::int64_t BytesOf(std::span<const LayerDecision> decisions) const {
    std::int64_t bytes = call_.fixed_bytes;
    for (std::size_t i = 0; i < decisions.size(); ++i) {
      const KeepSet& keep = decisions[i].keep;
      for (int head = 0; head < keep.kv_heads(); ++head) {
        bytes += KeptBytes(*call_.layers[i], call_.tail, keep.positions(head),
                           call_.layers[i]->TiersOf(keep, head));
      }
    }
    return bytes;
  }

  const ByteBudgetCall& call_;
  Parallel& parallel_;
};

std::vector<LayerDecision> OverBudget(Candidate candidate, const ByteBudgetCall& call) {
  for (LayerDecision& decision : candidate.decisions) {
    decision.note = StrCat(MustStayNote(call, candidate.bytes), decision.note.empty() ? "" : ": ",
                           decision.note);
  }
  return std::move(candidate.decisions);
}

std::vector<LayerDecision> NotReached(Candidate candidate, std::int64_t limit_bytes) {
  for (LayerDecision& decision : candidate.decisions) {
    decision.note = StrCat("budget not reached: ", candidate.bytes, " of ", limit_bytes, " bytes");
  }
  return std::move(candidate.decisions);
}

}  // namespace

std::string MustStayNote(const ByteBudgetCall& call, std::int64_t bytes) {
  return StrCat("budget ", call.evictor.byte_budget()->ToString(), " allows ", call.limit_bytes,
                " bytes, ", bytes, " must stay");
}

std::int64_t KeptBytes(const LayerState& layer, std::int64_t tail, std::span<const TokenPos> kept,
                       std::span<const std::uint8_t> tiers) {
  const SegmentCuts cuts = CutSegments(kept, layer.sinks_end, tail, layer.prompt_group_rows());
  const auto sinks = static_cast<std::size_t>(cuts.sinks);
  const auto tail_begin = static_cast<std::size_t>(cuts.tail_begin);
  std::int64_t bytes = 0;
  for (const PositionSpan& exact : {SpanOf(kept.first(sinks)), SpanOf(kept.subspan(tail_begin))}) {
    bytes +=
        ExactRows::BytesOf(layer.shape, exact.rows, PositionList::BytesFor(exact)).kept_bytes();
  }
  const std::span<const TokenPos> middle = kept.subspan(sinks, tail_begin - sinks);
  if (!tiers.empty()) tiers = tiers.subspan(sinks, tail_begin - sinks);
  for (std::size_t tier = 0; tier < layer.stores.size(); ++tier) {
    const PositionSpan held = SpanOf(middle, tiers, tier);
    bytes +=
        Tier::BytesOf(layer.stores[tier], held.rows, PositionList::BytesFor(held)).kept_bytes();
  }
  return bytes;
}

std::int64_t FullBytes(const LayerState& layer) {
  ByteReport seen;
  AddSeen(layer.spec, layer.tokens(), layer.spec.kv_heads, seen);
  return seen.full_bytes();
}

Result<std::vector<LayerDecision>> DecideBytes(const ByteBudgetCall& call, Parallel& parallel,
                                               ScoreScratch* scratch) {
  const ByteSearch search(call, parallel);
  if (!call.evictor.budget_is_cap() && call.tiers.cold.empty()) {
    KVS_ASSIGN_OR_RETURN(Candidate all, search.KeepAll());
    if (search.Fits(all)) return NotReached(std::move(all), call.limit_bytes);
  }
  KVS_ASSIGN_OR_RETURN(const std::unique_ptr<const Ranking> ranking,
                       call.evictor.Rank(call.observations, call.tiers, parallel, scratch));
  const std::int64_t least = ranking->heads();  // one row of each
  const std::int64_t most = ranking->heads() * ranking->most_rows();
  KVS_ASSIGN_OR_RETURN(Candidate smallest, search.Select(*ranking, least));
  if (!search.Fits(smallest)) return OverBudget(std::move(smallest), call);
  // A threshold or a share of the scores may keep less than the budget.
  KVS_ASSIGN_OR_RETURN(Candidate largest, search.Select(*ranking, most));
  if (search.Fits(largest)) return NotReached(std::move(largest), call.limit_bytes);
  KVS_ASSIGN_OR_RETURN(Candidate found, search.Bisect(*ranking, least, std::move(smallest), most));
  return std::move(found.decisions);
}

}  // namespace kvsieve
