#include "lib/prefill_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/byte_budget.h"
#include "lib/layer_view.h"
#include "lib/segments.h"
#include "lib/tier_plan.h"

namespace kvsieve {
namespace {

std::vector<TokenPos> PositionsOf(std::span<const TokenPos> staged,
                                  std::span<const RowIndex> rows) {
  std::vector<TokenPos> positions;
  positions.reserve(rows.size());
  for (const RowIndex r : rows) positions.push_back(staged[r]);
  return positions;
}

// The rows of the first tier and of those that borrow from it.
std::vector<RowIndex> RowsSharing(std::span<const LayerStore> stores, Side side,
                                  std::span<const std::vector<RowIndex>> tiers) {
  std::vector<RowIndex> rows = tiers.front();
  for (std::size_t t = 1; t < tiers.size(); ++t) {
    if (!stores[t].borrows(side)) continue;
    const auto middle = rows.insert(rows.end(), tiers[t].begin(), tiers[t].end());
    std::inplace_merge(rows.begin(), middle, rows.end());
  }
  return rows;
}

void AddNote(std::string_view what, std::string& note) {
  note += StrCat(note.empty() ? "" : "; ", what);
}

}  // namespace

Status PrefillPlan::Decide(std::int64_t scratch_limit_bytes) {
  plans_.resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    plans_[i].heads.resize(static_cast<std::size_t>(layers_[i].spec.kv_heads));
    for (int head = 0; head < layers_[i].spec.kv_heads; ++head) {
      plans_[i].heads[head].staged = layers_[i].staging.Positions(head);
    }
  }
  if (pipeline_.evictor() != nullptr) return Score(scratch_limit_bytes);
  for (std::size_t i = 0; i < layers_.size(); ++i) KeepAll(i);
  return Status::Ok();
}

std::int64_t PrefillPlan::HeadPlan::bytes() const {
  std::size_t positions = staged.capacity();
  std::size_t rows = sinks.capacity() + tail.capacity();
  for (const std::vector<TokenPos>& tier : tier_positions) positions += tier.capacity();
  for (const std::vector<RowIndex>& tier : tiers) rows += tier.capacity();
  return static_cast<std::int64_t>(positions * sizeof(TokenPos) + rows * sizeof(RowIndex));
}

void PrefillPlan::NoteScratch(std::int64_t bytes) {
  for (const LayerPlan& layer : plans_) {
    for (const HeadPlan& head : layer.heads) bytes += head.bytes();
  }
  scratch_peak_bytes_ = std::max(scratch_peak_bytes_, bytes);
}

Status PrefillPlan::Score(std::int64_t scratch_limit_bytes) {
  std::vector<std::size_t> scored;  // layers that have rows, and no window unless all is planned
  std::vector<LayerView> views;
  views.reserve(layers_.size());
  std::vector<Observation> observations;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool ranked = pipeline_.plans_tiers() || !layers_[i].slides();
    if (!ranked) plans_[i].note = "sliding window: rows fall away by age, none are scored";
    if (!ranked || layers_[i].staging.empty()) {
      KeepAll(i);
      continue;
    }
    scored.push_back(i);
    layers_[i].ring.Straighten(layers_[i].spec);
    views.push_back(LayerView::Staged(layers_[i]));
    observations.push_back(views.back().Observe());
  }
  ScoreScratch scratch;
  scratch.limit_bytes = scratch_limit_bytes;
  KVS_ASSIGN_OR_RETURN(const std::vector<LayerDecision> decisions,
                       DecideRanked(scored, observations, scratch));
  std::int64_t view_bytes = 0;
  for (const LayerView& view : views) view_bytes += view.bytes();
  NoteScratch(view_bytes + scratch.peak_bytes);
  for (std::size_t n = 0; n < scored.size(); ++n) {
    KeepDecided(scored[n], decisions[n]);
    if (scratch.recomputed) {
      AddNote("scoring scratch too small: q.k computed twice", plans_[scored[n]].note);
    }
  }
  return Status::Ok();
}

Result<std::vector<LayerDecision>> PrefillPlan::DecideRanked(
    std::span<const std::size_t> ranked, std::span<const Observation> observations,
    ScoreScratch& scratch) {
  const Evictor& evictor = *pipeline_.evictor();
  if (evictor.byte_budget() == nullptr) {
    return evictor.Decide(observations, pipeline_.tier_rule(), parallel_, &scratch);
  }
  std::vector<const LayerState*> layers;
  for (const std::size_t i : ranked) layers.push_back(&layers_[i]);
  ByteBudgetCall call{evictor, pipeline_.tier_rule(), 0, 0, pipeline_.tail(), layers, observations};
  std::int64_t full_bytes = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    full_bytes += FullBytes(layers_[i]);
    if (std::find(ranked.begin(), ranked.end(), i) != ranked.end()) continue;
    for (const HeadPlan& head : plans_[i].heads) {
      const std::span<const TokenPos> kept(head.staged);
      call.fixed_bytes +=
          KeptBytes(layers_[i], pipeline_.tail(), kept.subspan(layers_[i].FirstSeen(kept)), {});
    }
  }
  call.limit_bytes = evictor.byte_budget()->LimitOf(full_bytes);
  if (ranked.empty() && call.fixed_bytes > call.limit_bytes) {
    for (LayerPlan& plan : plans_) AddNote(MustStayNote(call, call.fixed_bytes), plan.note);
  }
  if (pipeline_.plans_tiers()) return PlanTiers(call, parallel_, &scratch);
  return DecideBytes(call, parallel_, &scratch);
}

// Every row; on a sliding layer those that the next query still sees.
void PrefillPlan::KeepAll(std::size_t layer_index) {
  const LayerState& layer = layers_[layer_index];
  for (int head = 0; head < layer.spec.kv_heads; ++head) {
    HeadPlan& plan = plans_[layer_index].heads[head];
    const std::size_t first = layer.FirstSeen(plan.staged);
    std::vector<RowIndex> rows(plan.staged.size() - first);
    std::iota(rows.begin(), rows.end(), static_cast<RowIndex>(first));
    SplitRows(layer, rows, {}, plan);
  }
}

void PrefillPlan::KeepDecided(std::size_t layer_index, const LayerDecision& decision) {
  const LayerState& layer = layers_[layer_index];
  LayerPlan& plan = plans_[layer_index];
  plan.note = decision.note;
  for (int head = 0; head < layer.spec.kv_heads; ++head) {
    const std::vector<TokenPos>& staged = plan.heads[head].staged;
    const std::span<const TokenPos> kept = decision.keep.positions(head);
    plan.evicted = plan.evicted || kept.size() < staged.size() - layer.FirstSeen(staged);
    std::vector<RowIndex> rows;
    rows.reserve(kept.size());
    RowIndex r = 0;
    for (const TokenPos position : kept) {  // both increase
      while (staged[r] < position) ++r;
      rows.push_back(r);
    }
    SplitRows(layer, rows, layer.TiersOf(decision.keep, head), plan.heads[head]);
  }
}

// First rows of the sequence to the sinks, last kept rows to the tail, the others to their tier.
void PrefillPlan::SplitRows(const LayerState& layer, std::span<const RowIndex> rows,
                            std::span<const std::uint8_t> tiers, HeadPlan& head) const {
  head.sinks.clear();
  head.tail.clear();
  head.tiers.assign(layer.stores.size(), {});
  const SegmentCuts cuts = CutSegments(PositionsOf(head.staged, rows), layer.sinks_end,
                                       pipeline_.tail(), layer.prompt_group_rows());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(rows.size()); ++i) {
    if (i < cuts.sinks) {
      head.sinks.push_back(rows[i]);
    } else if (i >= cuts.tail_begin) {
      head.tail.push_back(rows[i]);
    } else {
      head.tiers[tiers.empty() ? 0 : tiers[i]].push_back(rows[i]);
    }
  }
}

Status PrefillPlan::LearnHead(const LayerState& layer, int head, const HeadPlan& plan,
                              HeadStore& store) const {
  for (const Side side : layer.stores.front().sides()) {
    const StagedRows staged(layer.staging, layer.shape, side, head);
    const std::vector<RowIndex> first = RowsSharing(layer.stores, side, plan.tiers);
    for (std::size_t t = 0; t < store.tiers.size(); ++t) {
      const std::vector<RowIndex>& rows = plan.tiers[t];
      if (!layer.stores[t].learns(std::ssize(rows))) continue;
      Status learnt = store.tiers[t].Learn(side, ChosenRows(staged, rows),
                                           ChosenRows(staged, t == 0 ? first : rows));
      if (learnt.ok()) continue;
      return Status(learnt.error().code,
                    StrCat("layer ", layer.spec.layer, ", head ", head, ": ", learnt.message()));
    }
  }
  return Status::Ok();
}

Status PrefillPlan::ReserveLayer(const LayerState& layer, LayerPlan& plan) {
  const auto kv_heads = static_cast<std::size_t>(layer.spec.kv_heads);
  plan.stores.resize(kv_heads);
  // The allocator is called from one thread only; learning, the larger part, runs on all.
  for (std::size_t head = 0; head < kv_heads; ++head) {
    HeadStore& store = plan.stores[head];
    store.tiers.reserve(layer.stores.size());
    for (std::size_t t = 0; t < layer.stores.size(); ++t) {
      Tier& tier = store.tiers.emplace_back(layer.stores[t]);
      if (!layer.stores[t].learns(std::ssize(plan.heads[head].tiers[t]))) continue;
      KVS_RETURN_IF_ERROR(tier.ReserveStats(allocator_));
    }
    store.ShareStats();
  }
  std::vector<Status> learnt(kv_heads);
  ParallelFor(parallel_, layer.spec.kv_heads, [&](std::int64_t head, int) {
    learnt[head] = NoThrow([&] {
      return LearnHead(layer, static_cast<int>(head), plan.heads[head], plan.stores[head]);
    });
  });
  for (std::size_t head = 0; head < kv_heads; ++head) {
    KVS_RETURN_IF_ERROR(std::move(learnt[head]));
    HeadPlan& rows = plan.heads[head];
    HeadStore& store = plan.stores[head];
    KVS_RETURN_IF_ERROR(
        store.sinks.Reserve(allocator_, layer.shape, PositionsOf(rows.staged, rows.sinks)));
    KVS_RETURN_IF_ERROR(
        store.tail.Reserve(allocator_, layer.shape, PositionsOf(rows.staged, rows.tail)));
    for (std::size_t t = 0; t < store.tiers.size(); ++t) {
      rows.tier_positions.push_back(PositionsOf(rows.staged, rows.tiers[t]));
      KVS_RETURN_IF_ERROR(store.tiers[t].Reserve(allocator_, rows.tier_positions[t]));
    }
  }
  return Status::Ok();
}

Status PrefillPlan::Reserve() {
  int dim = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    KVS_RETURN_IF_ERROR(ReserveLayer(layers_[i], plans_[i]));
    dim = std::max({dim, layers_[i].spec.key_dim, layers_[i].spec.value_dim});
  }
  scratch_floats_ = static_cast<std::size_t>(kBlockRows) * static_cast<std::size_t>(dim);
  scratch_.resize(scratch_floats_ * static_cast<std::size_t>(parallel_.workers()));
  NoteScratch(static_cast<std::int64_t>(scratch_.size() * sizeof(float)));
  return Status::Ok();
}

void PrefillPlan::CommitHead(const LayerState& layer, int head, const HeadPlan& plan,
                             HeadStore& store, float* scratch) const {
  const RowShape& shape = layer.shape;
  for (const auto& [rows, exact] :
       {std::pair{&plan.sinks, &store.sinks}, std::pair{&plan.tail, &store.tail}}) {
    for (const RowIndex r : *rows) {
      exact->Append(shape, layer.staging.row(shape, Side::kKey, head, r),
                    layer.staging.row(shape, Side::kValue, head, r), plan.staged[r]);
    }
  }
  const StagedRows keys(layer.staging, shape, Side::kKey, head);
  const StagedRows values(layer.staging, shape, Side::kValue, head);
  for (std::size_t t = 0; t < store.tiers.size(); ++t) {
    store.tiers[t].Fill(ChosenRows(keys, plan.tiers[t]), ChosenRows(values, plan.tiers[t]),
                        plan.tier_positions[t], scratch);
  }
}

// Allocates nothing: everything was reserved.
void PrefillPlan::Commit() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    LayerState& layer = layers_[i];
    LayerPlan& plan = plans_[i];
    ParallelFor(parallel_, layer.spec.kv_heads, [&](std::int64_t head, int worker) {
      CommitHead(layer, static_cast<int>(head), plan.heads[head], plan.stores[head],
                 scratch_.data() + scratch_floats_ * static_cast<std::size_t>(worker));
    });
    const std::span<const TokenPos> staged = plan.heads.front().staged;
    if (const std::size_t first = layer.FirstSeen(staged); first > 0) {
      layer.NoteOutOfWindow(staged[first - 1]);
    }
    layer.heads = std::move(plan.stores);
    // Rows that went chunk by chunk are why the budget leaves nothing to drop now.
    if (plan.evicted || !layer.evicted) layer.note = std::move(plan.note);
    layer.evicted = layer.evicted || plan.evicted;
    if (plan.evicted) layer.exact_from = layer.next_position;
    layer.staging = Staging();
    // Decode goes on scoring only under every(n).
    if (pipeline_.schedule().kind != Schedule::Kind::kEvery) layer.ring = QueryRing();
    layer.external_scores = {};
  }
}

}  // namespace kvsieve
