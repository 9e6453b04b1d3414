#include "lib/trim.h"

#include <algorithm>
#include <utility>

namespace kvsieve {

Result<LayerTrim> LayerTrim::Prepare(Allocator& allocator, const LayerState& layer, TokenPos end) {
  LayerTrim trim;
  trim.end_ = end;
  trim.tokens_ = layer.tokens() - layer.seen.TokensBefore(end);
  trim.verify_gone_ = layer.verify.rows() - layer.verify.RowsBefore(end);
  KVS_ASSIGN_OR_RETURN(trim.staged_, layer.staging.PrepareTrim(allocator, end));
  for (const HeadStore& head : layer.heads) {
    HeadCut& cut = trim.stored_.emplace_back();
    KVS_ASSIGN_OR_RETURN(cut.sinks, head.sinks.positions().PrepareTrim(allocator, end));
    for (const Tier& tier : head.tiers) {
      KVS_ASSIGN_OR_RETURN(PositionList::Cut rows, tier.positions().PrepareTrim(allocator, end));
      cut.tiers.push_back(std::move(rows));
    }
    KVS_ASSIGN_OR_RETURN(cut.tail, head.tail.positions().PrepareTrim(allocator, end));
  }
  return trim;
}

void LayerTrim::Commit(LayerState& layer) {
  layer.staging.Trim(end_, std::move(staged_));
  for (std::size_t h = 0; h < stored_.size(); ++h) {
    HeadStore& head = layer.heads[h];
    head.sinks.Trim(std::move(stored_[h].sinks));
    for (std::size_t t = 0; t < head.tiers.size(); ++t) {
      head.tiers[t].Trim(std::move(stored_[h].tiers[t]));
    }
    head.tail.Trim(std::move(stored_[h].tail));
  }
  layer.verify.Truncate(layer.verify.rows() - verify_gone_);
  layer.ring.Trim(layer.spec, end_);
  layer.seen.TrimTo(end_);
  layer.next_position = std::min(layer.next_position, end_);
  layer.sinks_end = std::min(layer.sinks_end, end_);
  layer.exact_from = std::min(layer.exact_from, end_);
  layer.since_eviction = std::max<std::int64_t>(0, layer.since_eviction - tokens_);
  if (tokens_ > 0) layer.external_scores = {};  // they were of other rows
  if (layer.tokens() == 0) layer.typed = false;
}

}  // namespace kvsieve
