#include "lib/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// Of the KV head with the most blocks. The last range has what is left, so that blocks that are
// there only because each tier has an open one make no range of their own.
int RangesOf(const AttendJob& job) {
  int most = 0;
  for (const HeadStore& head : job.heads) {
    int blocks = 0;
    int open = -1;
    for (const Tier& tier : head.tiers) {
      blocks += tier.blocks();
      open += tier.blocks() > 0 ? 1 : 0;
    }
    most = std::max(most, blocks - open);
  }
  constexpr int kRange = AttendWorker::kRangeBlocks;
  return std::max(1, (most + kRange - 1) / kRange);
}

BlockRange RangeAt(int range, int ranges) {
  constexpr int kRange = AttendWorker::kRangeBlocks;
  const bool last = range + 1 == ranges;
  return {range * kRange, last ? std::numeric_limits<int>::max() : (range + 1) * kRange};
}

std::size_t PartialFloats(const AttendJob& job) {
  const int stride = AccumulatorStride(job.layer.value_dim);
  return static_cast<std::size_t>(job.layer.group()) * static_cast<std::size_t>(2 + stride);
}

// Of the sums that a head of several ranges leaves.
std::size_t PartialBytes(const AttendJob& job, std::size_t queries, int ranges) {
  if (ranges == 1) return 0;
  const std::size_t partials =
      static_cast<std::size_t>(job.layer.kv_heads) * static_cast<std::size_t>(ranges) * queries;
  return partials * PartialFloats(job) * sizeof(float);
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

// What a query head's rows and sink logit come to: out is the sums' out times `share`.
struct Total {
  float share = 0;
  float lse = 0;
};
Total Finish(float max, float sum, float sink) {
  // A logit above f32: no weights follow from it, and 0 would say that no row is visible.
  if (max == std::numeric_limits<float>::infinity()) {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    return {kNaN, kNaN};
  }
  if (sink > -std::numeric_limits<float>::infinity()) {
    const float top = std::max(max, sink);
    const float keep = std::exp(max - top);
    sum = sum * keep + std::exp(sink - top);
    return {keep / sum, top + std::log(sum)};
  }
  if (sum == 0) return {0, -std::numeric_limits<float>::infinity()};
  return {1.0F / sum, max + std::log(sum)};
}

// The result of one query and KV head.
void Write(const AttendJob& job, int head, std::int64_t i, const AttendSums& sums, float* out,
           float* lse) {
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const int group = job.layer.group();
  const int dim = job.layer.value_dim;
  for (int g = 0; g < group; ++g) {
    const std::int64_t query_head = std::int64_t{head} * group + g;
    const float sink = job.sink_logits.empty()
                           ? -std::numeric_limits<float>::infinity()
                           : job.sink_logits[static_cast<std::size_t>(query_head)];
    const Total total = Finish(sums.max[g], sums.sum[g], sink);
    const std::int64_t at = query_head * n + i;
    const float* from = sums.out + std::int64_t{g} * sums.out_stride;
    float* to = out + at * dim;
    for (int d = 0; d < dim; ++d) to[d] = from[d] * total.share;
    if (lse != nullptr) lse[at] = total.lse;
  }
}

}  // namespace

std::size_t AttendBytes(const AttendJob& job, std::int64_t queries, int workers) {
  return kBlockAlignment - 1 +
         AttendWorker::MemoryBytes(job, queries) * static_cast<std::size_t>(workers) +
         PartialBytes(job, static_cast<std::size_t>(queries), RangesOf(job));
}

Status AttendMemory::Own(std::size_t worker_bytes, std::size_t partial_bytes) {
  Allocator& allocator = DefaultAllocator();
  KVS_RETURN_IF_ERROR(worker_memory_.Grow(allocator, worker_bytes, 0));
  KVS_RETURN_IF_ERROR(partials_.Grow(allocator, partial_bytes, 0));
  worker_data_ = worker_memory_.data();
  sums_ = partials_.As<float>();
  return Status::Ok();
}

// Workers' memory is a multiple of the alignment, so what lies behind it is aligned too.
Status AttendMemory::CutLent(std::size_t worker_bytes, std::size_t partial_bytes) {
  void* at = lent_.data();
  std::size_t left = lent_.size();
  if (std::align(kBlockAlignment, worker_bytes + partial_bytes, at, left) == nullptr) {
    return Status(
        ErrorCode::kOutOfMemory,
        StrCat("attend: the scratch has ", lent_.size(), " bytes, this call takes ",
               worker_bytes + partial_bytes, " and up to ", kBlockAlignment - 1, " for alignment"));
  }
  worker_data_ = static_cast<std::uint8_t*>(at);
  sums_ = reinterpret_cast<float*>(worker_data_ + worker_bytes);
  return Status::Ok();
}

Status AttendMemory::Prepare(const AttendJob& job, int workers, int ranges) {
  const auto count = static_cast<std::size_t>(workers);
  if (workers_.size() < count) workers_.resize(count);
  const std::size_t worker_bytes = AttendWorker::MemoryBytes(job, std::ssize(job.query_positions));
  const std::size_t partial_bytes = PartialBytes(job, job.query_positions.size(), ranges);
  KVS_RETURN_IF_ERROR(is_lent_ ? CutLent(worker_bytes * count, partial_bytes)
                               : Own(worker_bytes * count, partial_bytes));
  for (std::size_t w = 0; w < count; ++w) workers_[w].Start(job, worker_data_ + w * worker_bytes);
  return Status::Ok();
}

AttendSums AttendMemory::Partial(const AttendJob& job, std::int64_t task, std::int64_t query) {
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const int group = job.layer.group();
  float* at = sums_ + static_cast<std::size_t>(task * n + query) * PartialFloats(job);
  return {at, at + group, at + 2 * group, AccumulatorStride(job.layer.value_dim)};
}

Status Attend(const AttendJob& job, Parallel& parallel, AttendMemory& memory, float* out,
              float* lse) {
  const int ranges = RangesOf(job);
  KVS_RETURN_IF_ERROR(memory.Prepare(job, parallel.workers(), ranges));
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const int group = job.layer.group();
  const int batch = AttendWorker::BatchOf(job.layer, n);
  const std::int64_t tasks = std::int64_t{job.layer.kv_heads} * ranges;
  ParallelFor(parallel, tasks, [&](std::int64_t task, int worker) {
    const auto head = static_cast<int>(task / ranges);
    const BlockRange range = RangeAt(static_cast<int>(task % ranges), ranges);
    for (std::int64_t first = 0; first < n; first += batch) {
      const auto count = static_cast<int>(std::min<std::int64_t>(batch, n - first));
      const AttendSums& sums = memory.worker(worker).Run(head, range, first, count);
      for (int b = 0; b < count; ++b) {
        const AttendSums of_query = sums.From(b * group);
        if (ranges == 1) {
          Write(job, head, first + b, of_query, out, lse);
        } else {
          Copy(of_query, group, memory.Partial(job, task, first + b));
        }
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
