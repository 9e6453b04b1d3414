#include "lib/tier_plan.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/planned_head.h"

namespace kvsieve {
namespace {

constexpr std::uint32_t kFreeBits = 0;  // of the price 0
constexpr std::uint32_t kDearestBits = std::bit_cast<std::uint32_t>(kForcedStep);

// Non-negative floats are ordered as their bits are.
float PriceOf(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// A step that may be taken, of one row.
struct Step {
  float price;
  std::uint32_t head;
  RowIndex row;
  std::uint8_t rung;

  bool operator<(const Step& other) const {
    if (price != other.price) return price > other.price;
    if (head != other.head) return head < other.head;
    if (row != other.row) return row < other.row;
    return rung < other.rung;
  }
  // Steps of one row at one price stand for one that passes rungs above the hull.
  bool SameMove(const Step& other) const {
    return price == other.price && head == other.head && row == other.row;
  }
};

std::int64_t SumOf(std::span<const PlannedHead> heads, std::int64_t (PlannedHead::*bytes)() const) {
  return std::accumulate(
      heads.begin(), heads.end(), std::int64_t{0},
      [&](std::int64_t sum, const PlannedHead& head) { return sum + (head.*bytes)(); });
}

// Some heads that share a budget.
class GroupPlan {
 public:
  GroupPlan(std::span<PlannedHead> heads, std::int64_t limit_bytes, Parallel& parallel)
      : heads_(heads), limit_bytes_(limit_bytes), parallel_(parallel) {}

  // Raises rows of the heads; the note, if there is something to say.
  std::string Run() {
    if (BytesAt(kFreeBits, &PlannedHead::BytesOf) <= limit_bytes_) {
      RaiseTo(kFreeBits);
      return StrCat("budget not reached: ", KeptBytes(), " of ", limit_bytes_, " bytes");
    }
    const std::uint32_t surely_fits = CheapestFitting(kFreeBits, &PlannedHead::MostBytesOf);
    // All steps at this price do not fit; some of them may.
    const std::uint32_t surely_not = CheapestFitting(kFreeBits, &PlannedHead::LeastBytesOf) - 1;
    RaiseTo(surely_fits);
    if (Bytes() <= limit_bytes_) {
      TakeSteps(surely_not, surely_fits);
      return {};
    }
    const std::int64_t least = KeptBytes();
    if (least <= limit_bytes_) return {};
    return StrCat("budget allows ", limit_bytes_, " bytes, ", least, " must stay");
  }

 private:
  using Size = std::int64_t (PlannedHead::*)(const PlannedHead::RungRows&) const;

  // Bytes of all rows at a price.
  std::int64_t BytesAt(std::uint32_t price_bits, Size size) const {
    std::vector<std::int64_t> bytes(heads_.size());
    ParallelFor(parallel_, std::ssize(heads_), [&](std::int64_t h, int) {
      bytes[h] = (heads_[h].*size)(heads_[h].RowsAt(PriceOf(price_bits)));
    });
    return std::reduce(bytes.begin(), bytes.end());
  }

  // The lowest price at which the rows fit by that size; the dearest if they fit at none.
  std::uint32_t CheapestFitting(std::uint32_t too_low, Size size) const {
    std::uint32_t fits = kDearestBits;
    while (fits - too_low > 1) {
      const std::uint32_t middle = too_low + (fits - too_low) / 2;
      (BytesAt(middle, size) <= limit_bytes_ ? fits : too_low) = middle;
    }
    return fits;
  }

  void RaiseTo(std::uint32_t price_bits) {
    ParallelFor(parallel_, std::ssize(heads_),
                [&](std::int64_t h, int) { heads_[h].RaiseTo(PriceOf(price_bits)); });
  }

  std::int64_t Bytes() const { return SumOf(heads_, &PlannedHead::bytes); }

  // What is really kept, for the notes.
  std::int64_t KeptBytes() const { return SumOf(heads_, &PlannedHead::KeptBytes); }

  // Steps with a price in [least, below), best first, until one does not fit.
  void TakeSteps(std::uint32_t least, std::uint32_t below) {
    std::vector<Step> steps;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      heads_[h].ForEachStep(
          PriceOf(least), PriceOf(below), [&](float price, RowIndex row, int rung) {
            steps.push_back(
                {price, static_cast<std::uint32_t>(h), row, static_cast<std::uint8_t>(rung)});
          });
    }
    std::sort(steps.begin(), steps.end());
    std::int64_t bytes = Bytes();
    for (std::size_t i = 0; i < steps.size();) {
      const Step& step = steps[i];
      std::size_t end = i + 1;
      while (end < steps.size() && steps[end].SameMove(step)) ++end;
      PlannedHead& head = heads_[step.head];
      const std::int64_t before = head.bytes();
      const int from = head.rung(step.row);
      head.Move(step.row, steps[end - 1].rung);
      bytes += head.bytes() - before;
      if (bytes > limit_bytes_) {
        head.Move(step.row, from);
        return;
      }
      i = end;
    }
  }

  std::span<PlannedHead> heads_;
  const std::int64_t limit_bytes_;
  Parallel& parallel_;
};

class TierPlan {
 public:
  TierPlan(const ByteBudgetCall& call, Parallel& parallel)
      : call_(call), estimator_(*call.evictor.loss_estimator()), parallel_(parallel) {}

  Status AddLayer(std::size_t layer, ScoreScratch* scratch) {
    const Observation& observation = call_.observations[layer];
    RowLosses losses;
    KVS_RETURN_IF_ERROR(estimator_.Estimate(observation, parallel_, scratch, &losses));
    const std::size_t first = heads_.size();
    for (const HeadObservation& head : observation.heads) {
      heads_.emplace_back(*call_.layers[layer], head,
                          PlanLimits{estimator_.sinks(), estimator_.window(), call_.tail});
    }
    std::vector<Status> measured(observation.heads.size());
    ParallelFor(parallel_, std::ssize(measured), [&](std::int64_t h, int) {
      const auto begin = static_cast<std::size_t>(losses.head_begin[h]);
      const auto count = observation.heads[h].positions.size();
      const auto of_head = [&](const std::vector<float>& loss) {
        return std::span(loss).subspan(begin, count);
      };
      measured[h] = NoThrow([&] {
        return heads_[first + h].Prepare(
            {of_head(losses.key), of_head(losses.value), of_head(losses.drop)});
      });
    });
    for (std::size_t h = 0; h < measured.size(); ++h) {
      if (measured[h].ok()) continue;
      return Status(measured[h].error().code, StrCat("layer ", observation.layer.layer, ", head ",
                                                     h, ": ", measured[h].message()));
    }
    return Status::Ok();
  }

  // The notes, one per layer.
  std::vector<std::string> Share() {
    std::vector<std::string> notes(call_.layers.size());
    const std::int64_t limit = std::max<std::int64_t>(0, call_.limit_bytes - call_.fixed_bytes);
    std::int64_t all_full = 0;
    for (const LayerState* layer : call_.layers) all_full += FullBytes(*layer);
    std::int64_t full = 0;  // of the layers and heads before
    std::size_t first = 0;
    const auto run = [&](std::size_t count, std::int64_t full_bytes, std::string* note) {
      // Shares of running sums add up to the limit.
      const std::int64_t share =
          ShareOf(limit, full + full_bytes, all_full) - ShareOf(limit, full, all_full);
      std::string said = GroupPlan(std::span(heads_).subspan(first, count), share, parallel_).Run();
      if (note->empty()) *note = std::move(said);
      first += count;
      full += full_bytes;
    };
    if (estimator_.scope() == Scope::kModel) {
      run(heads_.size(), all_full, &notes.front());
      std::fill(notes.begin() + 1, notes.end(), notes.front());
      return notes;
    }
    for (std::size_t layer = 0; layer < call_.layers.size(); ++layer) {
      const auto heads = call_.observations[layer].heads.size();
      const std::int64_t full_bytes = FullBytes(*call_.layers[layer]);
      if (estimator_.scope() == Scope::kLayer) {
        run(heads, full_bytes, &notes[layer]);
        continue;
      }
      for (std::size_t h = 0; h < heads; ++h) {
        run(1, full_bytes / static_cast<std::int64_t>(heads), &notes[layer]);
      }
    }
    return notes;
  }

  Result<LayerDecision> Decide(std::size_t layer, std::string note) const {
    std::size_t first = 0;
    for (std::size_t i = 0; i < layer; ++i) first += call_.observations[i].heads.size();
    std::vector<std::int64_t> head_begin = {0};
    std::vector<TokenPos> positions;
    std::vector<std::uint8_t> tiers;
    for (std::size_t h = 0; h < call_.observations[layer].heads.size(); ++h) {
      heads_[first + h].AppendKept(&positions, &tiers);
      head_begin.push_back(std::ssize(positions));
    }
    LayerDecision decision;
    KVS_ASSIGN_OR_RETURN(decision.keep, KeepSet::Create(std::move(head_begin), std::move(positions),
                                                        std::move(tiers)));
    decision.scored = true;
    decision.note = std::move(note);
    return decision;
  }

  std::int64_t bytes() const { return SumOf(heads_, &PlannedHead::memory_bytes); }

 private:
  // floor(limit * part / whole), of numbers whose product may pass 64 bits.
  static std::int64_t ShareOf(std::int64_t limit, std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<std::int64_t>(static_cast<__int128>(limit) * part / whole);
  }

  const ByteBudgetCall& call_;
  const LossEstimator& estimator_;
  Parallel& parallel_;
  std::vector<PlannedHead> heads_;
};

}  // namespace

Result<std::vector<LayerDecision>> PlanTiers(const ByteBudgetCall& call, Parallel& parallel,
                                             ScoreScratch* scratch) {
  std::vector<LayerDecision> decisions;
  if (call.layers.empty()) return decisions;
  TierPlan plan(call, parallel);
  std::int64_t peak_bytes = 0;
  bool recomputed = false;
  for (std::size_t layer = 0; layer < call.layers.size(); ++layer) {
    KVS_RETURN_IF_ERROR(plan.AddLayer(layer, scratch));
    peak_bytes = std::max(peak_bytes, scratch->peak_bytes + plan.bytes());
    recomputed = recomputed || scratch->recomputed;
  }
  scratch->peak_bytes = peak_bytes;
  scratch->recomputed = recomputed;
  std::vector<std::string> notes = plan.Share();
  for (std::size_t layer = 0; layer < call.layers.size(); ++layer) {
    KVS_ASSIGN_OR_RETURN(LayerDecision decision, plan.Decide(layer, std::move(notes[layer])));
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

}  // namespace kvsieve
