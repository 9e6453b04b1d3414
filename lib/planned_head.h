// One KV head in a plan in bytes: which tier each of its rows is in so far, and what that takes.
#ifndef KVSIEVE_LIB_PLANNED_HEAD_H_
#define KVSIEVE_LIB_PLANNED_HEAD_H_

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/result.h"
#include "lib/layer_state.h"
#include "lib/tier_errors.h"
#include "lib/tier_steps.h"

namespace kvsieve {

// The step of rows to a rung that they are on whatever the price, or never.
inline constexpr float kForcedStep = std::numeric_limits<float>::infinity();
inline constexpr float kNoStep = -std::numeric_limits<float>::infinity();

// Rows that a plan must keep.
struct PlanLimits {
  std::int64_t sinks = 0;   // first tokens: exact, or else in the finest tier
  std::int64_t window = 0;  // last rows: in a tier that is fine enough
  std::int64_t tail = 0;    // last rows: exact
};

// Rows are told by their number among those of the observation. All but the exact ones are on a
// rung of the head's ladder (lib/tier_steps.h): 0 is gone, the others are tiers.
class PlannedHead {
 public:
  using PerRung = std::array<std::int64_t, kMaxRungs + 1>;
  using RungRows = PerRung;  // rows on each rung

  // `layer` and `head` outlive this.
  PlannedHead(const LayerState& layer, const HeadObservation& head, const PlanLimits& limits);

  // Measures the tiers' errors and finds the steps of the rows; all are on rung 0, or where they
  // must be, then. losses: [rows]. Fails where no tier can hold a row, and names its position.
  Status Prepare(const RowLossSpans& losses);

  // How many rows are on each rung at a price.
  RungRows RowsAt(float price) const;

  // Bytes of the head with so many rows on each rung: the exact ones included, and positions as if
  // each tier reached from the first planned row to the last.
  std::int64_t BytesOf(const RungRows& rows) const;
  // Bounds that grow with every step, as BytesOf does not: lists of positions change their form,
  // groups of a codec are begun and filled, and a tier's first row brings its statistics.
  std::int64_t LeastBytesOf(const RungRows& rows) const;
  std::int64_t MostBytesOf(const RungRows& rows) const;

  void RaiseTo(float price);
  // BytesOf the head as its rows stand, and what they will really take: tiers reach less far than
  // that counts. The second looks at every row.
  std::int64_t bytes() const { return bytes_; }
  std::int64_t KeptBytes() const;
  int rung(RowIndex row) const { return rungs_[row - begin_]; }
  void Move(RowIndex row, int rung);

  // Calls body(price, row, rung) for each step with least <= price < below.
  template <class Body>
  void ForEachStep(float least, float below, Body&& body) const {
    const auto planned = static_cast<std::size_t>(end_ - begin_);
    for (int rung = 1; rung <= ladder_.rungs; ++rung) {
      const float* steps = steps_.data() + static_cast<std::size_t>(rung - 1) * planned;
      for (std::size_t i = 0; i < planned; ++i) {
        if (steps[i] >= least && steps[i] < below) {
          body(steps[i], begin_ + static_cast<RowIndex>(i), rung);
        }
      }
    }
  }

  // The rows that stay, in order, and the tier of each.
  void AppendKept(std::vector<TokenPos>* positions, std::vector<std::uint8_t>* tiers) const;

  std::int64_t memory_bytes() const {
    return static_cast<std::int64_t>(steps_.capacity() * sizeof(float) + rungs_.capacity());
  }

 private:
  Status BuildLadder();
  Result<TierErrors> MeasureHeld(const LayerStore& store, std::span<const RowIndex> refused) const;
  Status SkipRefused();
  void FindBounds();
  // What `rows` rows of a rung take beside fixed_bytes_.
  std::int64_t BytesOn(int rung, std::int64_t rows) const;
  PositionSpan SpanOf(RowIndex first, RowIndex end) const;
  void ForceSteps();
  int FineRung() const;
  std::span<const float> StepsTo(int rung) const;
  float& StepOf(RowIndex row, int rung) {
    return steps_[static_cast<std::size_t>((rung - 1) * (end_ - begin_) + (row - begin_))];
  }

  const LayerState& layer_;
  const HeadObservation& head_;
  const PlanLimits limits_;
  RowIndex begin_ = 0;  // planned are rows [begin_, end_); those before and behind are exact
  RowIndex end_ = 0;
  Ladder ladder_;
  std::vector<int> tier_of_;                    // of rungs 1, 2, ...; [0] is not used
  std::vector<std::vector<RowIndex>> refused_;  // by the tiers of the rungs; mostly none
  std::int64_t tail_bytes_ = 0;
  // Of exact rows and of tiers without rows, also of those off the ladder.
  std::int64_t fixed_bytes_ = 0;
  PerRung empty_bytes_ = {};         // of the rungs' tiers without rows
  std::int64_t variable_bytes_ = 0;  // MostBytesOf - LeastBytesOf
  std::vector<float> steps_;         // [rungs, planned]
  std::vector<std::uint8_t> rungs_;  // [planned]
  RungRows on_rungs_ = {};
  PerRung bytes_on_ = {};   // BytesOn of each
  std::int64_t bytes_ = 0;  // fixed_bytes_ and these
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_PLANNED_HEAD_H_
