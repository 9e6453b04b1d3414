// Attention of a layer's queries over its stored rows: score, online softmax, accumulate, without
// decoding what has a fused kernel.
//
// Work is cut into tasks of one KV head and a fixed range of its blocks, so that the result does
// not depend on how many workers share it. A head of several ranges leaves the sums of each, which
// are merged in their order.
#ifndef KVSIEVE_LIB_ATTENTION_H_
#define KVSIEVE_LIB_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/parallel.h"
#include "kvsieve/result.h"
#include "lib/attend_worker.h"
#include "lib/buffer.h"

namespace kvsieve {

// Temporary memory of Attend calls. Grows, and is neither given back nor cleared between calls.
class AttendMemory {
 public:
  AttendMemory() = default;
  // These bytes alone, which outlive it; a job that takes more is an error.
  explicit AttendMemory(std::span<std::byte> lent) : lent_(lent), is_lent_(true) {}

  // ranges: of each KV head.
  Status Prepare(const AttendJob& job, int workers, int ranges);
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(worker_memory_.bytes() + partials_.bytes() + lent_.size());
  }
  AttendWorker& worker(int w) { return workers_[static_cast<std::size_t>(w)]; }
  // Where the sums of one range are left, when there are several.
  AttendSums Partial(const AttendJob& job, std::int64_t task, std::int64_t query);

 private:
  Status Own(std::size_t worker_bytes, std::size_t partial_bytes);
  Status CutLent(std::size_t worker_bytes, std::size_t partial_bytes);

  std::vector<AttendWorker> workers_;
  Buffer worker_memory_;
  Buffer partials_;
  std::span<std::byte> lent_;
  bool is_lent_ = false;
  // In the buffers or the lent bytes, of this call.
  std::uint8_t* worker_data_ = nullptr;
  float* sums_ = nullptr;  // [kv_heads][ranges][n]: max[group], sum[group], out[group, out_stride]
};

// What an Attend call takes of lent memory, wherever that begins. The queries of the job are not
// looked at.
std::size_t AttendBytes(const AttendJob& job, std::int64_t queries, int workers);

// out f32 [query_heads, n, value_dim], lse f32 [query_heads, n] or null.
Status Attend(const AttendJob& job, Parallel& parallel, AttendMemory& memory, float* out,
              float* lse);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ATTENTION_H_
