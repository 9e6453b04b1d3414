// What evict sees of one layer: each head's rows wherever they lie now, with their positions, and
// the last queries.
#ifndef KVSIEVE_LIB_LAYER_VIEW_H_
#define KVSIEVE_LIB_LAYER_VIEW_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/types.h"
#include "lib/layer_state.h"

namespace kvsieve {

// `layer` outlives the view and does not change meanwhile.
class LayerView {
 public:
  // Before the rows are encoded; of a sliding layer those that the next query sees.
  static LayerView Staged(const LayerState& layer);
  static LayerView Stored(const LayerState& layer);  // afterwards: what is stored is what is scored

  Observation Observe() const;
  std::span<const TokenPos> positions(int head) const { return positions_[head]; }
  // Memory of the view's own: the positions.
  std::int64_t bytes() const;

 private:
  explicit LayerView(const LayerState& layer) : layer_(&layer) {}
  void AddHead(std::unique_ptr<RowSource> keys, std::unique_ptr<RowSource> values,
               std::vector<TokenPos> positions);

  const LayerState* layer_;
  std::vector<std::unique_ptr<RowSource>> rows_;  // per head: keys, then values
  std::vector<std::vector<TokenPos>> positions_;
  std::vector<HeadObservation> heads_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_LAYER_VIEW_H_
