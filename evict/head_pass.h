// What scorers that look at rows one by one share: their two options, and the pass over KV heads.
#ifndef KVSIEVE_EVICT_HEAD_PASS_H_
#define KVSIEVE_EVICT_HEAD_PASS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "evict/scorers.h"
#include "evict/smoothing.h"
#include "kvsieve/evict.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {

void ReadScope(ArgReader& args, Scope* scope);
std::string_view ScopeName(Scope scope);

struct RowOptions {
  Pool pool{.kind = PoolKind::kNone};
  Scope scope = Scope::kKvHead;

  std::string Canonical() const;  // "pool=none,scope=kv_head"
};

RowOptions ReadRowOptions(ArgReader& args);

// smoothed of one head from raw; the last `window` rows, which stay anyway, neither lend nor
// borrow: smoothed = raw there.
void SmoothRows(const Pool& pool, std::int64_t window, std::span<const float> raw,
                std::span<float> smoothed);

// One KV head's share of a pass: its rows, where its scores go, and its worker's memory.
struct HeadPass {
  int head;
  const HeadObservation& rows;
  std::span<float> raw;
  std::span<float> smoothed;
  float* space;  // [space_floats]
};

// Sizes `scores`, then calls body(HeadPass) for every head that has rows, in parallel. Every worker
// lends `space_floats` f32.
template <class Body>
Status ForEachHead(const Observation& observation, Parallel& parallel, std::int64_t space_floats,
                   ScoreScratch* scratch, Scores* scores, Body&& body) {
  ResetScores(observation, scores);
  const int heads = observation.layer.kv_heads;
  const std::int64_t workers = std::min(parallel.workers(), heads);
  const std::unique_ptr<float[]> space(
      new (std::nothrow) float[static_cast<std::size_t>(parallel.workers() * space_floats)]);
  if (space == nullptr) {
    return Status(ErrorCode::kOutOfMemory,
                  StrCat("no memory for ", parallel.workers() * space_floats, " floats to score"));
  }
  if (scratch != nullptr) {
    scratch->peak_bytes = workers * space_floats * static_cast<std::int64_t>(sizeof(float));
  }
  ParallelFor(parallel, heads, [&](std::int64_t head, int worker) {
    const auto begin = static_cast<std::size_t>(scores->head_begin[head]);
    const auto count = static_cast<std::size_t>(scores->head_begin[head + 1]) - begin;
    if (count == 0) return;
    body(HeadPass{static_cast<int>(head), observation.heads[head],
                  std::span(scores->raw).subspan(begin, count),
                  std::span(scores->smoothed).subspan(begin, count),
                  space.get() + worker * space_floats});
  });
  return Status::Ok();
}

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_HEAD_PASS_H_
