// Attention as its definition says: plain double loops over exactly the visible rows. Shares no
// code with what it judges, only the vocabulary of kvsieve/types.h.
#ifndef KVSIEVE_TESTS_ORACLE_ATTENTION_ORACLE_H_
#define KVSIEVE_TESTS_ORACLE_ATTENTION_ORACLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/types.h"

namespace kvsieve::oracle {

// Rows of one KV head: keys [n, key_dim], values [n, value_dim].
struct HeadRows {
  std::vector<TokenPos> positions;
  std::vector<float> keys;
  std::vector<float> values;

  std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
};

struct Attention {
  std::vector<double> out;  // [query_heads, n, value_dim]
  std::vector<double> lse;  // [query_heads, n], -inf where no row is visible
  std::vector<double> top;  // [query_heads, n]: the largest softmax weight, 0 where none is visible
};

// queries f32 [query_heads, n, key_dim] at `positions` [n]; heads [kv_heads]. Scale, softcap and
// sliding window are the layer's. sinks [query_heads] or empty: one more logit of a head's softmax,
// whose value is 0.
Attention Attend(const LayerSpec& layer, std::span<const HeadRows> heads,
                 std::span<const float> queries, std::span<const TokenPos> positions,
                 std::span<const float> sinks = {});

}  // namespace kvsieve::oracle

#endif  // KVSIEVE_TESTS_ORACLE_ATTENTION_ORACLE_H_
