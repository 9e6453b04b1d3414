// The store of one tier of a layer, built for its dims, and what to say where it cannot be.
#ifndef KVSIEVE_LIB_TIER_STORE_H_
#define KVSIEVE_LIB_TIER_STORE_H_

#include <string>
#include <utility>
#include <vector>

#include "kvsieve/pipeline.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {

// "center+turbo(bits=5)"
inline std::string ChainText(const std::vector<SpecCall>& chain) {
  std::string text;
  for (const SpecCall& call : chain) text += StrCat(text.empty() ? "" : "+", call.ToString());
  return text;
}

// Of layer number `layer_index` of `layer_count`. Errors name the tier of a plan: whoever wrote
// best(8x) did not write its stores.
inline Result<LayerStore> BuildTierStore(const Pipeline& pipeline, int layer_index, int layer_count,
                                         int tier, const LayerSpec& layer) {
  const StoreSpec& spec = pipeline.StoreFor(layer_index, layer_count, tier);
  Result<LayerStore> store = BuildStore(spec, layer);
  if (store.ok() || !pipeline.plans_tiers()) return store;
  return Status(store.error().code,
                StrCat(store.error().message, "; this is tier ", tier + 1, " of ", pipeline.tiers(),
                       ", k=", ChainText(spec.key), ", v=", ChainText(spec.value),
                       ": name stores that fit, waterfill(budget=...) | tiers=[...]"));
}

// The stores of all tiers of the layer, and what they are to the first.
inline Result<std::vector<LayerStore>> BuildTierStores(const Pipeline& pipeline, int layer_index,
                                                       int layer_count, const LayerSpec& layer) {
  std::vector<LayerStore> stores;
  for (int tier = 0; tier < pipeline.TiersOf(layer_index, layer_count); ++tier) {
    KVS_ASSIGN_OR_RETURN(LayerStore store,
                         BuildTierStore(pipeline, layer_index, layer_count, tier, layer));
    if (tier > 0) {
      store.grows = pipeline.demotes();
      for (const Side side : store.sides()) {
        store.borrows_first[static_cast<std::size_t>(side)] =
            store.chain(side).BeginsAs(stores.front().chain(side));
      }
    }
    stores.push_back(std::move(store));
  }
  return stores;
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_TIER_STORE_H_
