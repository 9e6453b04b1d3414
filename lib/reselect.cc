#include "lib/reselect.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/compaction.h"
#include "lib/layer_view.h"

namespace kvsieve {
namespace {

Result<LayerDecision> Decide(const ReselectContext& context, const LayerView& view,
                             const TierRule& tiers, std::int64_t* scratch_bytes) {
  const Observation observation = view.Observe();
  ScoreScratch scratch;
  KVS_ASSIGN_OR_RETURN(
      std::vector<LayerDecision> decisions,
      context.evictor.Decide({&observation, 1}, tiers, context.parallel, &scratch));
  *scratch_bytes = view.bytes() + scratch.peak_bytes;
  return std::move(decisions.front());
}

// Whether any head loses rows.
bool Drops(const LayerView& view, const KeepSet& keep) {
  for (int head = 0; head < keep.kv_heads(); ++head) {
    if (keep.rows(head) < static_cast<std::int64_t>(view.positions(head).size())) return true;
  }
  return false;
}

// Over all heads.
std::int64_t DemotedRows(const LayerState& layer, const KeepSet& keep) {
  std::int64_t demoted = 0;
  for (int head = 0; head < keep.kv_heads(); ++head) {
    demoted +=
        Compaction::Demoted(layer.heads[head], keep.positions(head), layer.TiersOf(keep, head));
  }
  return demoted;
}

void Finish(LayerState& layer, LayerDecision decision) {
  layer.exact_from = layer.next_position;
  layer.note = std::move(decision.note);
}

}  // namespace

Result<std::int64_t> ReselectStaged(const ReselectContext& context, LayerState& layer) {
  std::int64_t scratch_bytes = 0;
  layer.ring.Straighten(layer.spec);
  const LayerView view = LayerView::Staged(layer);
  KVS_ASSIGN_OR_RETURN(LayerDecision decision, Decide(context, view, TierRule(), &scratch_bytes));
  if (!Drops(view, decision.keep)) return scratch_bytes;
  KVS_ASSIGN_OR_RETURN(std::vector<ExactRows> kept,
                       layer.staging.Keep(context.allocator, layer.shape, decision.keep));
  layer.staging.Replace(std::move(kept));
  layer.evicted = true;
  Finish(layer, std::move(decision));
  return scratch_bytes;
}

Result<std::int64_t> ReselectStored(const ReselectContext& context, LayerState& layer) {
  std::int64_t scratch_bytes = 0;
  layer.ring.Straighten(layer.spec);
  const LayerView view = LayerView::Stored(layer);
  KVS_ASSIGN_OR_RETURN(LayerDecision decision,
                       Decide(context, view, context.tiers, &scratch_bytes));
  const bool drops = Drops(view, decision.keep);
  const std::int64_t demoted = DemotedRows(layer, decision.keep);
  if (!drops && demoted == 0) return scratch_bytes;
  std::vector<Compaction> compactions;
  for (int head = 0; head < layer.spec.kv_heads; ++head) {
    KVS_ASSIGN_OR_RETURN(
        Compaction compaction,
        Compaction::Prepare(context.allocator, layer.shape, layer.heads[head],
                            decision.keep.positions(head), layer.TiersOf(decision.keep, head)));
    compactions.push_back(std::move(compaction));
  }
  for (std::size_t head = 0; head < layer.heads.size(); ++head) {
    compactions[head].Commit(layer.heads[head]);
  }
  layer.evicted = layer.evicted || drops;
  layer.demoted_rows += demoted;
  Finish(layer, std::move(decision));
  return scratch_bytes;
}

}  // namespace kvsieve
