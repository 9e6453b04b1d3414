#include "lib/layer_view.h"

#include <utility>

#include "lib/compaction.h"

namespace kvsieve {

void LayerView::AddHead(std::unique_ptr<RowSource> keys, std::unique_ptr<RowSource> values,
                        std::vector<TokenPos> positions) {
  positions_.push_back(std::move(positions));
  heads_.push_back({keys.get(), values.get(), positions_.back()});
  rows_.push_back(std::move(keys));
  rows_.push_back(std::move(values));
}

LayerView LayerView::Staged(const LayerState& layer) {
  LayerView view(layer);
  for (int head = 0; head < layer.spec.kv_heads; ++head) {
    std::vector<TokenPos> positions = layer.staging.Positions(head);
    const std::size_t begin = layer.FirstSeen(positions);
    positions.erase(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(begin));
    const auto side = [&](Side s) {
      return std::make_unique<StagedRows>(layer.staging, layer.shape, s, head,
                                          static_cast<RowIndex>(begin));
    };
    view.AddHead(side(Side::kKey), side(Side::kValue), std::move(positions));
  }
  return view;
}

LayerView LayerView::Stored(const LayerState& layer) {
  LayerView view(layer);
  for (const HeadStore& head : layer.heads) {
    const auto order = std::make_shared<const StoredOrder>(head);
    const auto side = [&](Side s) { return std::make_unique<StoredRows>(order, layer.shape, s); };
    std::vector<TokenPos> positions(static_cast<std::size_t>(head.rows()));
    order->ReadPositions(positions.data());
    view.AddHead(side(Side::kKey), side(Side::kValue), std::move(positions));
  }
  return view;
}

std::int64_t LayerView::bytes() const {
  std::size_t positions = 0;
  for (const std::vector<TokenPos>& head : positions_) positions += head.capacity();
  return static_cast<std::int64_t>(positions * sizeof(TokenPos));
}

Observation LayerView::Observe() const {
  Observation observation;
  observation.layer = layer_->spec;
  observation.heads = heads_;
  observation.window_queries = layer_->ring.queries();
  observation.window_positions = layer_->ring.positions();
  observation.external_scores = layer_->external_scores;
  observation.tokens_seen = layer_->tokens();
  observation.exact_before = layer_->sinks_end;
  return observation;
}

}  // namespace kvsieve
