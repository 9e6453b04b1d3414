// Tokens taken back from all layers at once.
#include <algorithm>
#include <utility>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"
#include "lib/trim.h"

namespace kvsieve {

TokenPos Cache::oldest_exact_position() const {
  TokenPos oldest = 0;
  for (const LayerState& layer : impl_->layers) oldest = std::max(oldest, layer.exact_from);
  return oldest;
}

Result<std::int64_t> Cache::TrimToPosition(TokenPos position, Trim trim) {
  return NoThrow([&]() -> Result<std::int64_t> {
    const TokenPos end = std::max<TokenPos>(position, 0);
    // A layer may be one step ahead of the others, and its queries ahead of its rows.
    std::vector<LayerState*> layers;
    for (LayerState& layer : impl_->layers) {
      if (layer.end_position() > end || layer.ring.end() > end) layers.push_back(&layer);
    }
    if (layers.empty()) return std::int64_t{0};
    const TokenPos exact = oldest_exact_position();
    if (end < exact && trim == Trim::kExact) {
      return Status(
          ErrorCode::kNotExact,
          StrCat("trim to position ", position, ": rows before it were evicted; positions from ",
                 exact, " on are exact (one that allows inexact goes further back)"));
    }
    std::vector<LayerTrim> trims;
    for (const LayerState* layer : layers) {
      KVS_ASSIGN_OR_RETURN(LayerTrim prepared, LayerTrim::Prepare(*impl_->allocator, *layer, end));
      trims.push_back(std::move(prepared));
    }
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < trims.size(); ++i) {
      tokens = std::max(tokens, trims[i].tokens());
      trims[i].Commit(*layers[i]);
    }
    return tokens;
  });
}

}  // namespace kvsieve
