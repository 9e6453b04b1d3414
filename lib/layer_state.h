// One layer of a cache: its shape and stores, and its rows before and after the prompt ended.
#ifndef KVSIEVE_LIB_LAYER_STATE_H_
#define KVSIEVE_LIB_LAYER_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/types.h"
#include "lib/head_store.h"
#include "lib/query_ring.h"
#include "lib/staging.h"

namespace kvsieve {

struct LayerState {
  LayerSpec spec;
  std::vector<LayerStore> stores;  // one per tier; addresses stay put
  RowShape shape;                  // dims of the layer, element types of its first rows
  bool typed = false;              // rows came, so the types are known

  Staging staging;  // until the prompt is finished
  QueryRing ring;
  std::span<const float> external_scores;  // the caller's, for the next eviction
  std::vector<HeadStore> heads;            // afterwards

  std::int64_t tokens = 0;     // seen in this layer
  TokenPos next_position = 0;  // one past the last seen
  TokenPos sinks_end = 0;      // one past the last of the first exact_sinks tokens
  std::int64_t since_eviction = 0;  // decode tokens since rows were last dropped
  std::int64_t zeroed = 0;     // NaN and Inf cleared under nonfinite=zero
  bool evicted = false;        // rows were dropped by the evictor
  std::string note;

  bool slides() const { return spec.sliding_window > 0; }
  // Rows that a plain engine would hold per head.
  std::int64_t full_rows() const {
    return slides() && tokens > spec.sliding_window ? spec.sliding_window : tokens;
  }
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_LAYER_STATE_H_
