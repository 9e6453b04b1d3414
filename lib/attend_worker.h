// One worker's part of an Attend call: a query position over one KV head and a fixed range of its
// blocks, segment by segment and block by block. Keeps its memory from call to call.
#ifndef KVSIEVE_LIB_ATTEND_WORKER_H_
#define KVSIEVE_LIB_ATTEND_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

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

// What the rows seen so far add up to, per query head that shares the KV head. Not yet divided by
// the sums; max is -inf and the rest 0 where no row was visible.
struct AttendSums {
  float* max;  // [group], the largest logit
  float* sum;  // [group], of exp(logit - max); NaN for a query that held NaN or Inf
  float* out;  // [group, out_stride], of exp(logit - max) * v
  int out_stride;

  // Adds what other rows add up to, of one query head.
  void Merge(int g, float other_max, float other_sum, const float* other_out, int value_dim) const;
};

class AttendWorker {
 public:
  // Blocks of one range: 8192 rows, enough to hide the cost of a merge.
  static constexpr int kRangeBlocks = 128;

  // Of its own for the job, aligned to 64.
  static std::size_t MemoryBytes(const AttendJob& job);
  // Before the tasks of a call.
  void Start(const AttendJob& job, std::uint8_t* memory);
  // Query i over one range of a KV head. The first range has the exact rows too. Valid until the
  // next call.
  const AttendSums& Run(int head, int range, std::int64_t i);

 private:
  // All pointers are aligned to 64.
  struct Memory {
    float* q;                // [group, key_dim], scaled
    float* tile_q;           // [kHeadTile, key_dim], destroyed by PrepareQueries
    float* logits;           // [tiles * kHeadTile, kBlockRows]
    float* bias;             // [group], of the prepared queries
    float* no_bias;          // [group], 0
    float* poison;           // [group]: NaN for a query that holds NaN or Inf, else 0
    float* rows;             // [kBlockRows, larger dim]: rows as f32
    std::uint8_t* prepared;  // [tiles, prepared_bytes]
    std::size_t prepared_bytes;
    AttendSums segment;
    AttendSums total;
  };
  static std::size_t Cut(const AttendJob& job, std::uint8_t* memory, Memory* cut);

  void LoadQueries(int head, std::int64_t i);
  void StartSegment();
  void FinishSegment();
  SoftmaxState TileState(int first_head) const;
  float* Logits(int first_head) const { return memory_.logits + first_head * kBlockRows; }

  template <class Read>
  void AttendRead(int rows, std::uint64_t visible, Read read);
  void AttendExact(const ExactRows& exact, const Visibility& visibility);
  void AttendVerify(int head, const Visibility& visibility);
  void AttendStaging(int head, const Visibility& visibility);
  void AttendTier(const Tier& tier, int begin, int end, const Visibility& visibility);
  void AttendCodes(const Tier& tier, int begin, int end, const Visibility& visibility);
  void PrepareQueries(const Tier& tier);
  std::uint8_t* Prepared(int first_head) const;

  const Tier* TierBehind(int head, std::size_t tier) const;
  Prefetch Ahead(const Tier& tier, int b, Side side) const;

  const AttendJob* job_ = nullptr;
  int group_ = 0;
  Memory memory_{};
  bool cold_ = true;                   // no task of this call before
  bool has_total_ = false;             // a segment was attended
  std::pair<int, std::int64_t> held_;  // KV head and query in q; head -1: none
  const Tier* prepared_for_ = nullptr;
  const Tier* next_tier_ = nullptr;  // where the blocks go on behind this tier's
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ATTEND_WORKER_H_
