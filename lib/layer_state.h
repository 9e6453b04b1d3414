// One layer of a cache: its shape and stores, and its rows before and after the prompt ended.
#ifndef KVSIEVE_LIB_LAYER_STATE_H_
#define KVSIEVE_LIB_LAYER_STATE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/types.h"
#include "lib/head_store.h"
#include "lib/query_ring.h"
#include "lib/seen_positions.h"
#include "lib/staging.h"
#include "lib/verify_rows.h"

namespace kvsieve {

// How far a layer has come: all of its state that is not rows or queries.
struct LayerProgress {
  bool typed = false;  // rows came, so the element types are known
  SeenPositions seen;
  TokenPos next_position = 0;              // one past the last seen, or where the last trim ended
  TokenPos sinks_end = 0;                  // one past the last of the first exact_sinks tokens
  TokenPos exact_from = 0;                 // trims to here or further bring back what was
  std::int64_t since_eviction = 0;         // decode tokens since rows were last dropped
  std::int64_t lifetime_tokens = 0;        // ever appended; a trim takes none back
  std::int64_t zeroed = 0;                 // NaN and Inf cleared under nonfinite=zero
  std::span<const float> external_scores;  // the caller's, for the next eviction
  bool evicted = false;                    // rows were dropped by the evictor
  std::int64_t demoted_rows = 0;           // moved to a colder tier, over all heads
  std::string note;

  std::int64_t tokens() const { return seen.tokens(); }
  // Counts rows that came, and remembers where the first `exact_sinks` tokens end; their positions
  // were reserved in `seen`.
  void CountTokens(std::span<const TokenPos> positions, std::int64_t exact_sinks) {
    const std::int64_t before = tokens();
    seen.Append(positions);
    lifetime_tokens += std::ssize(positions);
    next_position = positions.back() + 1;
    const std::int64_t sinks = std::min(exact_sinks, tokens());
    if (sinks > before) sinks_end = positions[static_cast<std::size_t>(sinks - before - 1)] + 1;
    typed = true;
  }
};

// "k=int8, v=int4(group=32,asym)", with what depends on the dims.
inline std::string StoreText(const LayerStore& store) {
  if (store.value == nullptr) return StrCat("kv=", store.key->Canonical());
  return StrCat("k=", store.key->Canonical(), ", v=", store.value->Canonical());
}

// Rows of a head that a plain engine would hold after `tokens` tokens.
inline std::int64_t FullRows(const LayerSpec& layer, std::int64_t tokens) {
  return layer.sliding_window > 0 && tokens > layer.sliding_window ? layer.sliding_window : tokens;
}

// Counts `tokens` tokens of `heads` KV heads, and what a plain engine would hold of them.
inline void AddSeen(const LayerSpec& layer, std::int64_t tokens, std::int64_t heads,
                    ByteReport& report) {
  const std::int64_t rows = FullRows(layer, tokens) * heads;
  report.key_full_bytes += rows * layer.key_dim * 2;
  if (!layer.value_is_key_prefix) report.value_full_bytes += rows * layer.value_dim * 2;
  report.tokens_seen += tokens * heads;
}

struct LayerState : LayerProgress {
  LayerSpec spec;
  std::vector<LayerStore> stores;  // one per tier; addresses stay put
  bool demotes = false;            // rows may move to colder tiers
  RowShape shape;                  // dims of the layer, element types of its first rows

  Staging staging;  // until the prompt is finished
  QueryRing ring;
  std::vector<HeadStore> heads;  // afterwards
  VerifyRows verify;             // not among the tokens seen until they are accepted

  // One past the last position, verify rows included.
  TokenPos end_position() const {
    return verify.rows() > 0 ? verify.positions().back() + 1 : next_position;
  }
  // Rows that leave the exact tail together: a group of tier 0, where they go.
  int group_rows() const { return stores.front().group_rows(); }
  // The same when the prompt is stored. In which of several tiers a row is depends on its rank, so
  // that groups are cut short there wherever the rows end.
  int prompt_group_rows() const { return stores.size() == 1 ? group_rows() : 1; }
  // Of the rows that a head keeps; empty when all are in tier 0.
  std::span<const std::uint8_t> TiersOf(const KeepSet& keep, int head) const {
    return stores.size() == 1 ? std::span<const std::uint8_t>() : keep.tiers(head);
  }
  bool slides() const { return spec.sliding_window > 0; }
  // The first row that the next query still sees, of rows at increasing positions.
  std::size_t FirstSeen(std::span<const TokenPos> positions) const {
    if (!slides()) return 0;
    const std::int64_t oldest = std::int64_t{next_position} - spec.sliding_window;
    return static_cast<std::size_t>(std::lower_bound(positions.begin(), positions.end(), oldest) -
                                    positions.begin());
  }
  // Rows up to `position` fell out of the window. The first query that sees none of them comes
  // sliding_window later: the cache can be taken back to it.
  void NoteOutOfWindow(TokenPos position) {
    exact_from = std::max(exact_from, position + spec.sliding_window);
  }
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_LAYER_STATE_H_
