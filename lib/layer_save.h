// One layer's section of a saved cache.
#ifndef KVSIEVE_LIB_LAYER_SAVE_H_
#define KVSIEVE_LIB_LAYER_SAVE_H_

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "lib/layer_state.h"
#include "lib/state_stream.h"

namespace kvsieve {

// finished: whether the layer's rows are in its heads, or still in its staging.
void SaveLayer(const LayerState& layer, bool finished, StateWriter& out);

// What a layer of the shape and stores of `like` held when it was saved. query_rows: how many the
// pipeline's scorer needs. Errors name the place in the layer.
Result<LayerState> LoadLayer(Allocator& allocator, const LayerState& like, bool finished,
                             int query_rows, StateReader& in);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_LAYER_SAVE_H_
