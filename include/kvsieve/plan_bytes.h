// What a cache will take, told before there is one, in the terms of its byte report and from the
// same functions: how many rows go where, what a block of them takes, what positions take.
//
//   auto plan = PlanBytes(*pipeline, layers, {.prompt_tokens = 131072});
//   plan->kept.most;
//
// A figure is exact (least == most) unless the data decides it. That is so for
//   - positions of rows that were chosen by score: how far apart they lie;
//   - exact sinks and tail of an evictor that does not protect them;
//   - rows of each head under split=adaptive, and of all under select=threshold, top_p;
//   - rows of a budget in bytes, which kept bytes come near to from below;
//   - room for rows to come, once there were decode tokens: buffers grow by half.
// Of waterfill only the most is told (least is 0): its budget, or what must stay where that is
// more.
// Not told: scratch_peak_bytes, which depends on workers and on how lists grew.
#ifndef KVSIEVE_PLAN_BYTES_H_
#define KVSIEVE_PLAN_BYTES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/byte_report.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

struct PlanRequest {
  std::int64_t prompt_tokens = 0;            // at positions 0, 1, ...
  std::int64_t decode_tokens = 0;            // after them, one at a time
  std::int64_t chunk_tokens = 0;             // of the prompt, appended together; 0: all of it
  ElementType key_type = ElementType::kF16;  // of the engine's rows
  ElementType value_type = ElementType::kF16;
};

struct ByteRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool exact() const { return least == most; }
};

// Field by field: each lies between that of `least` and that of `most`.
struct ByteBounds {
  ByteReport least;
  ByteReport most;
};

struct LayerBytePlan {
  int layer = 0;  // the model's number
  ByteBounds bytes;
};

struct BytePlan {
  ByteBounds bytes;  // of all layers, after the last token
  std::vector<LayerBytePlan> layers;
  ByteRange kept;      // kept_bytes; of a budget in bytes closer than the fields are
  ByteRange resident;  // resident_bytes
  // Asked of the allocator while FinishPrefill encodes: the prompt as it came, the queries, and all
  // that stays.
  ByteRange prefill_peak;
};

// Errors: as Cache::Create; negative numbers; what is not planned, by name: decode tokens under
// schedule=every(n) or of waterfill, and cold tiers together with schedule=per_chunk, a budget in
// bytes, the codec channel, or heads that keep as many rows as scores say.
Result<BytePlan> PlanBytes(const Pipeline& pipeline, std::span<const LayerSpec> layers,
                           const PlanRequest& request);

}  // namespace kvsieve

#endif  // KVSIEVE_PLAN_BYTES_H_
