// The last post-RoPE queries of one layer, kept for the scorer until the prompt is finished.
#ifndef KVSIEVE_LIB_QUERY_RING_H_
#define KVSIEVE_LIB_QUERY_RING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"

namespace kvsieve {

// Holds f32 [query_heads, rows, key_dim] for the highest positions seen, at most `capacity` rows.
class QueryRing {
 public:
  // Adds queries [query_heads, n, key_dim] at increasing positions past those held. The result is
  // the same however the prompt was cut. Fails without change when there is no memory, or when an
  // element is NaN or Inf.
  Status Observe(Allocator& allocator, const LayerSpec& layer, int capacity,
                 std::span<const TokenPos> positions, const HeadsView& queries);

  const float* queries() const { return buffer_.As<float>(); }
  std::span<const TokenPos> positions() const { return positions_; }
  std::int64_t resident_bytes() const { return static_cast<std::int64_t>(buffer_.bytes()); }

 private:
  Buffer buffer_;
  std::vector<TokenPos> positions_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_QUERY_RING_H_
