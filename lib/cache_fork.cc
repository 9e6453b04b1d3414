// A sequence that goes on in two ways.
#include <utility>

#include "kvsieve/cache.h"
#include "lib/cache_impl.h"

namespace kvsieve {
namespace {

Result<LayerState> ForkLayer(Allocator& allocator, const LayerState& layer) {
  LayerState fork;
  static_cast<LayerProgress&>(fork) = layer;
  fork.spec = layer.spec;
  fork.stores = layer.stores;
  fork.demotes = layer.demotes;
  fork.shape = layer.shape;
  KVS_ASSIGN_OR_RETURN(fork.staging, layer.staging.Fork(allocator));
  KVS_ASSIGN_OR_RETURN(fork.ring, layer.ring.Clone(allocator));
  for (const HeadStore& head : layer.heads) {
    KVS_ASSIGN_OR_RETURN(HeadStore rows, head.Fork(allocator, fork.stores));
    fork.heads.push_back(std::move(rows));
  }
  KVS_ASSIGN_OR_RETURN(fork.verify, layer.verify.Clone(allocator));
  return fork;
}

}  // namespace

Result<Cache> Cache::Fork() const {
  return NoThrow([&]() -> Result<Cache> {
    auto fork = std::make_unique<Impl>();
    fork->pipeline = impl_->pipeline;
    fork->allocator = impl_->allocator;
    fork->parallel = impl_->parallel;
    fork->decode_rows = impl_->decode_rows;
    fork->finished = impl_->finished;
    fork->speculative = impl_->speculative;
    fork->scratch_peak_bytes = impl_->scratch_peak_bytes;
    fork->layers.reserve(impl_->layers.size());
    for (const LayerState& layer : impl_->layers) {
      KVS_ASSIGN_OR_RETURN(LayerState layer_fork, ForkLayer(*impl_->allocator, layer));
      fork->layers.push_back(std::move(layer_fork));
    }
    return Cache(std::move(fork));
  });
}

}  // namespace kvsieve
