// An independent copy of a cache.
#include <utility>

#include "kvsieve/cache.h"
#include "lib/cache_impl.h"

namespace kvsieve {
namespace {

Result<LayerState> CloneLayer(Allocator& allocator, const LayerState& layer) {
  LayerState copy;
  static_cast<LayerProgress&>(copy) = layer;
  copy.spec = layer.spec;
  copy.stores = layer.stores;
  copy.shape = layer.shape;
  KVS_ASSIGN_OR_RETURN(copy.staging, layer.staging.Clone(allocator));
  KVS_ASSIGN_OR_RETURN(copy.ring, layer.ring.Clone(allocator));
  for (const HeadStore& head : layer.heads) {
    KVS_ASSIGN_OR_RETURN(HeadStore rows, head.Clone(allocator, copy.stores));
    copy.heads.push_back(std::move(rows));
  }
  return copy;
}

}  // namespace

Result<Cache> Cache::Clone() const {
  return NoThrow([&]() -> Result<Cache> {
    auto copy = std::make_unique<Impl>();
    copy->pipeline = impl_->pipeline;
    copy->allocator = impl_->allocator;
    copy->parallel = impl_->parallel;
    copy->decode_rows = impl_->decode_rows;
    copy->finished = impl_->finished;
    copy->scratch_peak_bytes = impl_->scratch_peak_bytes;
    copy->layers.reserve(impl_->layers.size());
    for (const LayerState& layer : impl_->layers) {
      KVS_ASSIGN_OR_RETURN(LayerState layer_copy, CloneLayer(*impl_->allocator, layer));
      copy->layers.push_back(std::move(layer_copy));
    }
    return Cache(std::move(copy));
  });
}

}  // namespace kvsieve
