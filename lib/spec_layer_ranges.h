// The layer ranges of layers(a..b,...), read and checked against each other.
#ifndef KVSIEVE_LIB_SPEC_LAYER_RANGES_H_
#define KVSIEVE_LIB_SPEC_LAYER_RANGES_H_

#include <vector>

#include "kvsieve/pipeline.h"
#include "lib/spec_cursor.h"

namespace kvsieve {

// "a..b". The range must not run backwards, nor surely share a layer with one of `taken`, to which
// it is added: ranges that count from different ends are left to Pipeline::CheckLayers.
Result<LayerRange> TakeLayerRange(SpecCursor& cursor, std::vector<LayerRange>& taken);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SPEC_LAYER_RANGES_H_
