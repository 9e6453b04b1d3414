// Attention of a layer's queries over one head's stored rows, segment by segment, block by block:
// score, online softmax, accumulate, without decoding what has a fused kernel.
//
// Work is cut into tasks of one KV head and a fixed range of blocks, so that the result does not
// depend on how many workers share it. Each task leaves (max, sum, out) per query head; Merge
// joins them.
#ifndef KVSIEVE_LIB_ATTENTION_H_
#define KVSIEVE_LIB_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/parallel.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"
#include "lib/head_store.h"
#include "lib/staging.h"

namespace kvsieve {

// What one Attend call asks of one layer, after the overrides were applied.
struct AttendJob {
  LayerSpec layer;
  RowShape shape;
  HeadsView queries;                          // [query_heads, n, key_dim]
  std::span<const TokenPos> query_positions;  // [n]
  std::span<const HeadStore> heads;           // [kv_heads]
  const Staging* staging = nullptr;           // instead of heads, before the prompt is finished
};

// Temporary memory of one Attend call.
class AttendMemory {
 public:
  Status Prepare(const AttendJob& job, int workers);
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(worker_.bytes() + partials_.bytes());
  }

 private:
  friend class Attention;
  Buffer worker_;    // per worker: see WorkerScratch
  Buffer partials_;  // [kv_heads][ranges][group][2 + value_dim]
  std::size_t worker_bytes_ = 0;
  int ranges_ = 1;
};

// out f32 [query_heads, n, value_dim], lse f32 [query_heads, n] or null.
Status Attend(const AttendJob& job, Parallel& parallel, AttendMemory& memory, float* out,
              float* lse);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ATTENTION_H_
