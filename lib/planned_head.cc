#include "lib/planned_head.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/byte_budget.h"
#include "lib/refused_rows.h"
#include "lib/staging.h"

namespace kvsieve {
namespace {

// Codes of a window row have as many bits an element, or more.
constexpr std::int64_t kWindowBits = 4;

// A row's bytes in full groups.
std::int64_t RowBytesIn(const LayerStore& store) {
  std::int64_t bytes = 0;
  for (const Side side : store.sides()) {
    const RowBytes row = store.chain(side).codec().row_bytes();
    bytes += row.codes + row.scales;
  }
  return bytes;
}

bool HasWindowBits(const LayerStore& store) {
  const auto sides = store.sides();
  return std::all_of(sides.begin(), sides.end(), [&](Side side) {
    const Chain& chain = store.chain(side);
    return chain.codec().row_bytes().codes * 8 >= kWindowBits * chain.dim();
  });
}

std::int64_t BytesWithoutRows(const LayerStore& store) {
  return Tier::BytesOf(store, 0, {}).kept_bytes();
}

std::int64_t ExactBytes(const RowShape& shape, const PositionSpan& rows) {
  return ExactRows::BytesOf(shape, rows.rows, PositionList::BytesFor(rows)).kept_bytes();
}

}  // namespace

PlannedHead::PlannedHead(const LayerState& layer, const HeadObservation& head,
                         const PlanLimits& limits)
    : layer_(layer), head_(head), limits_(limits) {
  const std::span<const TokenPos> positions = head.positions;
  const auto rows = std::ssize(positions);
  begin_ = static_cast<RowIndex>(
      std::lower_bound(positions.begin(), positions.end(), layer.sinks_end) - positions.begin());
  end_ = static_cast<RowIndex>(std::max<std::int64_t>(begin_, rows - limits.tail));
  tail_bytes_ = ExactBytes(layer.shape, SpanOf(end_, rows));
}

PositionSpan PlannedHead::SpanOf(RowIndex first, RowIndex end) const {
  if (first == end) return {};
  return {end - first, head_.positions[first], head_.positions[end - 1]};
}

// Of a store that can hold some of the planned rows.
Result<TierErrors> PlannedHead::MeasureHeld(const LayerStore& store,
                                            std::span<const RowIndex> refused) const {
  if (refused.empty()) return MeasureErrors(store, head_, begin_, end_);
  std::vector<RowIndex> held;
  for (RowIndex row = begin_; row < end_; ++row) {
    if (!std::binary_search(refused.begin(), refused.end(), row)) held.push_back(row);
  }
  const ChosenRows keys(*head_.keys, held);
  const ChosenRows values(*head_.values, held);
  return MeasureErrors(store, {&keys, &values, {}}, 0, std::ssize(held));
}

// Tiers by their bytes. Of those that take as many the one that holds the most rows, or the first:
// another is never better for all rows. One that holds none is left out.
Status PlannedHead::BuildLadder() {
  std::vector<int> tiers(layer_.stores.size());
  std::iota(tiers.begin(), tiers.end(), 0);
  std::stable_sort(tiers.begin(), tiers.end(), [&](int a, int b) {
    return RowBytesIn(layer_.stores[a]) < RowBytesIn(layer_.stores[b]);
  });
  KVS_DCHECK(tiers.size() <= kMaxRungs);
  tier_of_ = {-1};
  refused_ = {{}};
  for (const int tier : tiers) {
    const LayerStore& store = layer_.stores[tier];
    const auto bytes = static_cast<float>(RowBytesIn(store));
    const bool alike = bytes == ladder_.bytes[ladder_.rungs];
    if (alike && refused_.back().empty()) continue;
    std::vector<RowIndex> refused = RefusedRows(store, head_, begin_, end_);
    if (begin_ < end_ && std::ssize(refused) == end_ - begin_) continue;
    if (alike && refused.size() >= refused_.back().size()) continue;
    KVS_ASSIGN_OR_RETURN(const TierErrors errors, MeasureHeld(store, refused));
    if (alike) {
      --ladder_.rungs;
      tier_of_.pop_back();
      refused_.pop_back();
    }
    const int rung = ++ladder_.rungs;
    tier_of_.push_back(tier);
    refused_.push_back(std::move(refused));
    ladder_.bytes[rung] = bytes;
    ladder_.key_errors[rung] = errors.key;
    ladder_.value_errors[rung] = errors.value;
  }
  return Status::Ok();
}

Status PlannedHead::Prepare(const RowLossSpans& losses) {
  KVS_RETURN_IF_ERROR(BuildLadder());
  const auto planned = static_cast<std::size_t>(end_ - begin_);
  const auto of_planned = [&](std::span<const float> loss) {
    return loss.subspan(begin_, planned);
  };
  steps_.resize(static_cast<std::size_t>(ladder_.rungs) * planned);
  FindSteps(ladder_, {of_planned(losses.key), of_planned(losses.value), of_planned(losses.drop)},
            steps_.data());
  ForceSteps();
  KVS_RETURN_IF_ERROR(SkipRefused());
  FindBounds();
  rungs_.resize(planned);
  RaiseTo(kForcedStep);
  return Status::Ok();
}

void PlannedHead::FindBounds() {
  fixed_bytes_ = ExactBytes(layer_.shape, SpanOf(0, begin_)) + tail_bytes_;
  variable_bytes_ = 0;
  for (const LayerStore& store : layer_.stores) {
    fixed_bytes_ += BytesWithoutRows(store);
    variable_bytes_ += Tier::StatsBytes(store) - BytesWithoutRows(store);
    for (const Side side : store.sides()) {  // a group that is begun has all its scales
      const Codec& codec = store.chain(side).codec();
      variable_bytes_ += (codec.group_rows() - 1) * codec.row_bytes().scales;
    }
  }
  for (int rung = 1; rung <= ladder_.rungs; ++rung) {
    empty_bytes_[rung] = BytesWithoutRows(layer_.stores[tier_of_[rung]]);
  }
  if (begin_ == end_) return;
  const PositionSpan planned = SpanOf(begin_, end_);
  variable_bytes_ +=
      ladder_.rungs * PositionList::MostBytesFor(planned.rows, planned.length()).live;
  if (const int group = layer_.prompt_group_rows(); group > 1) {
    const auto rows = static_cast<RowIndex>(head_.positions.size());
    PositionSpan exact = SpanOf(begin_, rows);
    exact.rows = std::min<std::int64_t>(exact.rows, group - 1 + (rows - end_));
    variable_bytes_ += ExactBytes(layer_.shape, exact) - tail_bytes_;
  }
}

// The lowest rung that is fine enough for the window.
int PlannedHead::FineRung() const {
  for (int rung = 1; rung <= ladder_.rungs; ++rung) {
    if (HasWindowBits(layer_.stores[tier_of_[rung]])) return rung;
  }
  return ladder_.rungs;
}

void PlannedHead::ForceSteps() {
  const auto planned = static_cast<std::size_t>(end_ - begin_);
  const auto force = [&](RowIndex first, RowIndex last, int rungs) {
    for (int rung = 1; rung <= rungs; ++rung) {
      float* steps = steps_.data() + static_cast<std::size_t>(rung - 1) * planned;
      std::fill(steps + (std::max(first, begin_) - begin_),
                steps + (std::max(last, begin_) - begin_), kForcedStep);
    }
  };
  const auto rows = static_cast<std::int64_t>(head_.positions.size());
  const auto within = [&](std::int64_t row) {
    return static_cast<RowIndex>(std::clamp<std::int64_t>(row, begin_, end_));
  };
  // Where a sliding window let tokens go, the first ones are not here.
  const std::int64_t gone = std::max<std::int64_t>(0, layer_.tokens() - rows);
  force(within(0), within(limits_.sinks - gone), ladder_.rungs);
  force(within(rows - limits_.window), end_, FineRung());
}

// A rung that cannot hold a row has the step of the next one that can. Rows that must be on it are
// on that one, or, where none is finer, on the finest that can hold them.
Status PlannedHead::SkipRefused() {
  const int rungs = ladder_.rungs;
  for (int rung = 1; rung < rungs; ++rung) {
    for (const RowIndex row : refused_[rung]) {
      if (StepOf(row, rung) == kForcedStep) StepOf(row, rung + 1) = kForcedStep;
    }
  }
  for (int rung = rungs; rung > 0; --rung) {
    for (const RowIndex row : refused_[rung]) {
      StepOf(row, rung) = rung < rungs ? StepOf(row, rung + 1) : kNoStep;
    }
  }
  for (RowIndex row = begin_; row < end_; ++row) {
    if (rungs > 0 && StepOf(row, 1) > kNoStep) continue;
    return Status::Invalid(StrCat("position ", head_.positions[row],
                                  ": no tier can hold so long a row; name one with wider scales or "
                                  "elements, kv=int8 or kv=bf16"));
  }
  return Status::Ok();
}

std::span<const float> PlannedHead::StepsTo(int rung) const {
  const auto planned = static_cast<std::size_t>(end_ - begin_);
  return std::span(steps_).subspan(static_cast<std::size_t>(rung - 1) * planned, planned);
}

PlannedHead::RungRows PlannedHead::RowsAt(float price) const {
  RungRows rows = {};
  std::int64_t below = end_ - begin_;  // rows on this rung or higher
  for (int rung = 1; rung <= ladder_.rungs; ++rung) {
    const std::int64_t here = CountAtLeast(StepsTo(rung), price);
    rows[rung - 1] = below - here;
    below = here;
  }
  rows[ladder_.rungs] = below;
  return rows;
}

std::int64_t PlannedHead::LeastBytesOf(const RungRows& rows) const {
  std::int64_t bytes = fixed_bytes_;
  for (int rung = 1; rung <= ladder_.rungs; ++rung) {
    bytes += rows[rung] * static_cast<std::int64_t>(ladder_.bytes[rung]);
  }
  return bytes;
}

std::int64_t PlannedHead::MostBytesOf(const RungRows& rows) const {
  return LeastBytesOf(rows) + variable_bytes_;
}

// With one tier, rows that do not fill a group of its codecs are exact (CutSegments), in one list
// with the tail.
std::int64_t PlannedHead::BytesOn(int rung, std::int64_t rows) const {
  if (rung == 0) return 0;
  std::int64_t bytes = 0;
  const std::int64_t unsealed = rows % layer_.prompt_group_rows();
  if (unsealed > 0) {
    PositionSpan exact = SpanOf(begin_, static_cast<RowIndex>(head_.positions.size()));
    exact.rows += unsealed - (end_ - begin_);
    bytes += ExactBytes(layer_.shape, exact) - tail_bytes_;
  }
  const std::int64_t sealed = rows - unsealed;
  PositionSpan held = SpanOf(begin_, sealed > 0 ? end_ : begin_);
  held.rows = sealed;
  const PositionBytes positions = PositionList::BytesFor(held);
  const LayerStore& store = layer_.stores[tier_of_[rung]];
  return bytes + Tier::BytesOf(store, sealed, positions).kept_bytes() - empty_bytes_[rung];
}

std::int64_t PlannedHead::BytesOf(const RungRows& rows) const {
  std::int64_t bytes = fixed_bytes_;
  for (int rung = 1; rung <= ladder_.rungs; ++rung) bytes += BytesOn(rung, rows[rung]);
  return bytes;
}

void PlannedHead::RaiseTo(float price) {
  std::fill(rungs_.begin(), rungs_.end(), std::uint8_t{0});
  for (int rung = 1; rung <= ladder_.rungs; ++rung) {
    const std::span<const float> steps = StepsTo(rung);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] >= price) rungs_[i] = static_cast<std::uint8_t>(rung);
    }
  }
  on_rungs_ = RowsAt(price);
  bytes_ = fixed_bytes_;
  for (int rung = 1; rung <= ladder_.rungs; ++rung) {
    bytes_on_[rung] = BytesOn(rung, on_rungs_[rung]);
    bytes_ += bytes_on_[rung];
  }
}

void PlannedHead::Move(RowIndex row, int rung) {
  std::uint8_t& at = rungs_[row - begin_];
  const auto add = [&](int to, int rows) {
    on_rungs_[to] += rows;
    bytes_ -= bytes_on_[to];
    bytes_on_[to] = BytesOn(to, on_rungs_[to]);
    bytes_ += bytes_on_[to];
  };
  add(at, -1);
  at = static_cast<std::uint8_t>(rung);
  add(at, 1);
}

void PlannedHead::AppendKept(std::vector<TokenPos>* positions,
                             std::vector<std::uint8_t>* tiers) const {
  const auto rows = static_cast<RowIndex>(head_.positions.size());
  for (RowIndex row = 0; row < rows; ++row) {
    const bool exact = row < begin_ || row >= end_;
    if (!exact && rung(row) == 0) continue;
    positions->push_back(head_.positions[row]);
    tiers->push_back(exact ? std::uint8_t{0} : static_cast<std::uint8_t>(tier_of_[rung(row)]));
  }
}

std::int64_t PlannedHead::KeptBytes() const {
  std::vector<TokenPos> positions;
  std::vector<std::uint8_t> tiers;
  AppendKept(&positions, &tiers);
  return kvsieve::KeptBytes(layer_, limits_.tail, positions, tiers);
}

}  // namespace kvsieve
