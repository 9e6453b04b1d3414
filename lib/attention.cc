#include "lib/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsieve {
namespace {

// Of the KV head with the most blocks.
int RangesOf(const AttendJob& job) {
  int most = 0;
  for (const HeadStore& head : job.heads) {
    int blocks = 0;
    for (const Tier& tier : head.tiers) blocks += tier.blocks();
    most = std::max(most, blocks);
  }
  constexpr int kRange = AttendWorker::kRangeBlocks;
  return std::max(1, (most + kRange - 1) / kRange);
}

std::size_t PartialFloats(const AttendJob& job) {
  const int stride = AccumulatorStride(job.layer.value_dim);
  return static_cast<std::size_t>(job.layer.group()) * static_cast<std::size_t>(2 + stride);
}

void Copy(const AttendSums& from, int group, const AttendSums& to) {
  std::copy_n(from.max, group, to.max);
  std::copy_n(from.sum, group, to.sum);
  std::copy_n(from.out, group * from.out_stride, to.out);
}

// Into the sums of the first range, task `first`.
AttendSums MergeRanges(const AttendJob& job, AttendMemory& memory, std::int64_t first, int ranges,
                       std::int64_t i) {
  const AttendSums total = memory.Partial(job, first, i);
  for (int range = 1; range < ranges; ++range) {
    const AttendSums part = memory.Partial(job, first + range, i);
    for (int g = 0; g < job.layer.group(); ++g) {
      total.Merge(g, part.max[g], part.sum[g], part.out + g * part.out_stride, job.layer.value_dim);
    }
  }
  return total;
}

// The result of one query and KV head.
void Write(const AttendJob& job, int head, std::int64_t i, const AttendSums& sums, float* out,
           float* lse) {
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const int group = job.layer.group();
  const int dim = job.layer.value_dim;
  for (int g = 0; g < group; ++g) {
    const float sum = sums.sum[g];
    const float inverse = sum != 0 ? 1.0F / sum : 0.0F;
    const std::int64_t at = (std::int64_t{head} * group + g) * n + i;
    const float* from = sums.out + std::int64_t{g} * sums.out_stride;
    float* to = out + at * dim;
    for (int d = 0; d < dim; ++d) to[d] = from[d] * inverse;
    if (lse == nullptr) continue;
    lse[at] = sum != 0 ? sums.max[g] + std::log(sum) : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

Status AttendMemory::Prepare(const AttendJob& job, int workers, int ranges) {
  const auto count = static_cast<std::size_t>(workers);
  if (workers_.size() < count) workers_.resize(count);
  Allocator& allocator = DefaultAllocator();
  const std::size_t worker_bytes = AttendWorker::MemoryBytes(job);
  KVS_RETURN_IF_ERROR(worker_memory_.Grow(allocator, worker_bytes * count, 0));
  for (std::size_t w = 0; w < count; ++w) {
    workers_[w].Start(job, worker_memory_.data() + w * worker_bytes);
  }
  if (ranges == 1) return Status::Ok();
  const std::size_t partials = static_cast<std::size_t>(job.layer.kv_heads) *
                               static_cast<std::size_t>(ranges) * job.query_positions.size();
  return partials_.Grow(allocator, partials * PartialFloats(job) * sizeof(float), 0);
}

AttendSums AttendMemory::Partial(const AttendJob& job, std::int64_t task, std::int64_t query) {
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const int group = job.layer.group();
  float* at =
      partials_.As<float>() + static_cast<std::size_t>(task * n + query) * PartialFloats(job);
  return {at, at + group, at + 2 * group, AccumulatorStride(job.layer.value_dim)};
}

Status Attend(const AttendJob& job, Parallel& parallel, AttendMemory& memory, float* out,
              float* lse) {
  const int ranges = RangesOf(job);
  KVS_RETURN_IF_ERROR(memory.Prepare(job, parallel.workers(), ranges));
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const std::int64_t tasks = std::int64_t{job.layer.kv_heads} * ranges;
  ParallelFor(parallel, tasks, [&](std::int64_t task, int worker) {
    const auto head = static_cast<int>(task / ranges);
    const auto range = static_cast<int>(task % ranges);
    for (std::int64_t i = 0; i < n; ++i) {
      const AttendSums& sums = memory.worker(worker).Run(head, range, i);
      if (ranges == 1) {
        Write(job, head, i, sums, out, lse);
      } else {
        Copy(sums, job.layer.group(), memory.Partial(job, task, i));
      }
    }
  });
  for (int head = 0; ranges > 1 && head < job.layer.kv_heads; ++head) {
    for (std::int64_t i = 0; i < n; ++i) {
      Write(job, head, i, MergeRanges(job, memory, std::int64_t{head} * ranges, ranges, i), out,
            lse);
    }
  }
  return Status::Ok();
}

}  // namespace kvsieve
