// One worker's part of an Attend call: a few query positions over one KV head and a fixed range of
// its blocks, segment by segment and block by block. Keeps its memory from call to call.
#ifndef KVSIEVE_LIB_ATTEND_WORKER_H_
#define KVSIEVE_LIB_ATTEND_WORKER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

#include "kvsieve/types.h"
#include "lib/exact_rows.h"
#include "lib/head_store.h"
#include "lib/softmax.h"
#include "lib/staging.h"
#include "lib/verify_rows.h"
#include "lib/visibility.h"

namespace kvsieve {

// What one Attend call asks of one layer, after the overrides were applied.
struct AttendJob {
  LayerSpec layer;
  RowShape shape;
  HeadsView queries;                          // [query_heads, n, key_dim]
  std::span<const TokenPos> query_positions;  // [n]
  std::span<const float> sink_logits;         // [query_heads] or empty
  std::span<const HeadStore> heads;           // [kv_heads]
  const VerifyRows* verify = nullptr;         // behind the rows of heads, if any
  const Staging* staging = nullptr;           // instead of heads, before the prompt is finished
};

// What the rows seen so far add up to, per lane: a query head that shares the KV head, of one of
// the positions. Not yet divided by the sums; max is -inf and the rest 0 where no row was visible.
struct AttendSums {
  float* max;  // [lanes], the largest logit
  float* sum;  // [lanes], of exp(logit - max); NaN for a query that held NaN or Inf
  float* out;  // [lanes, out_stride], of exp(logit - max) * v
  int out_stride;

  AttendSums From(int lane) const {
    return {max + lane, sum + lane, out + std::int64_t{lane} * out_stride, out_stride};
  }

  // Adds what other rows add up to, of one lane.
  void Merge(int lane, float other_max, float other_sum, const float* other_out,
             int value_dim) const;
};

// Blocks [begin, end) of a head, counted over all of its tiers.
struct BlockRange {
  int begin;
  int end;
};

class AttendWorker {
 public:
  // Blocks of one range: 8192 rows, enough to hide the cost of a merge.
  static constexpr int kRangeBlocks = 128;
  // Positions that are attended together, so that a block is read from memory and decoded once for
  // all: as many as keep the lanes' sums in the first-level cache.
  static int BatchOf(const LayerSpec& layer, std::int64_t queries) {
    const auto batch = static_cast<std::int64_t>(kBatchLanes / layer.group());
    return static_cast<int>(std::clamp<std::int64_t>(queries, 1, std::max<std::int64_t>(1, batch)));
  }

  // Of its own for a job of so many queries, aligned to 64.
  static std::size_t MemoryBytes(const AttendJob& job, std::int64_t queries);
  // Before the tasks of a call.
  void Start(const AttendJob& job, std::uint8_t* memory);
  // Queries [first, first + count), at most BatchOf, over one range of a KV head: lanes [count,
  // group]. The first range has the exact rows too. Valid until the next call.
  const AttendSums& Run(int head, BlockRange range, std::int64_t first, int count);

 private:
  static constexpr int kBatchLanes = 32;

  // All pointers are aligned to 64. As many lanes as a batch has.
  struct Memory {
    float* q;                // [lanes, key_dim], scaled
    float* tile_q;           // [kHeadTile, key_dim], destroyed by PrepareQueries
    float* logits;           // [tiles * kHeadTile, kBlockRows]
    float* bias;             // [lanes], of the prepared queries
    float* no_bias;          // [lanes], 0
    float* poison;           // [lanes]: NaN for a query that holds NaN or Inf, else 0
    float* rows;             // [kBlockRows, larger dim]: rows as f32
    std::uint8_t* prepared;  // [tiles, prepared_bytes]
    std::size_t prepared_bytes;
    AttendSums segment;
    AttendSums total;
  };
  static std::size_t Cut(const AttendJob& job, std::int64_t queries, std::uint8_t* memory,
                         Memory* cut);

  void LoadQueries(int head);
  void StartSegment();
  void FinishSegment();
  SoftmaxState State(int first_lane, int lanes) const;
  SoftmaxState TileState(int first_lane) const;
  float* Logits(int first_lane) const { return memory_.logits + first_lane * kBlockRows; }

  bool LookAt(const TokenPos* positions, std::uint64_t slots);
  void Weigh(int first_lane, int rows, const float* bias, float* logits,
             const SoftmaxState& tile) const;
  template <class Body>
  void ForEachVisibleBlock(const Tier& tier, int begin, int end, Body body);
  template <class Read>
  void AttendRead(int rows, Read read);
  void AttendExact(const ExactRows& exact);
  void AttendVerify(int head);
  void AttendStaging(int head);
  void AttendTier(const Tier& tier, int begin, int end);
  void AttendCodes(const Tier& tier, int begin, int end);
  void PrepareQueries(const Tier& tier);
  std::uint8_t* Prepared(int first_lane) const;

  const Tier* TierBehind(int head, std::size_t tier) const;
  Prefetch Ahead(const Tier& tier, int b, Side side) const;

  const AttendJob* job_ = nullptr;
  int group_ = 0;
  std::int64_t first_ = 0;              // query of lane 0
  int count_ = 0;                       // queries attended
  int lanes_ = 0;                       // count_ * group_
  std::uint64_t visible_[kBatchLanes];  // slots of the block at hand that each query sees
  Memory memory_{};
  bool cold_ = true;                         // no task of this call before
  bool has_total_ = false;                   // a segment was attended
  std::tuple<int, std::int64_t, int> held_;  // KV head and queries in q; head -1: none
  const Tier* prepared_for_ = nullptr;
  const Tier* next_tier_ = nullptr;  // where the blocks go on behind this tier's
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ATTEND_WORKER_H_
