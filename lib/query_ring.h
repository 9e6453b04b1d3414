// The last post-RoPE queries of one layer, kept for the scorer until the prompt is finished.
#ifndef KVSIEVE_LIB_QUERY_RING_H_
#define KVSIEVE_LIB_QUERY_RING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"

namespace kvsieve {

class StateReader;
class StateWriter;

// Holds f32 [query_heads, rows, key_dim] for the highest positions seen, at most `capacity` rows.
class QueryRing {
 public:
  // Adds queries [query_heads, n, key_dim] at increasing positions past those held. The result is
  // the same however the prompt was cut. Fails without change when there is no memory, or when an
  // element is NaN or Inf. A full ring takes no memory and moves no row that it holds.
  Status Observe(Allocator& allocator, const LayerSpec& layer, int capacity,
                 std::span<const TokenPos> positions, const HeadsView& queries);

  Result<QueryRing> Clone(Allocator& allocator) const;
  // lib/rows_save.cc.
  void Save(const LayerSpec& layer, StateWriter& out) const;
  static Result<QueryRing> Load(Allocator& allocator, const LayerSpec& layer, int capacity,
                                StateReader& in);
  // Forgets the queries at `end` and behind it.
  void Trim(const LayerSpec& layer, TokenPos end);

  // Puts the rows into order of position, in place.
  void Straighten(const LayerSpec& layer);
  // Precondition: straightened since the last Observe.
  const float* queries() const {
    KVS_DCHECK(oldest_ == 0);
    return buffer_.As<float>();
  }
  std::span<const TokenPos> positions() const { return positions_; }
  // One past the last position held.
  TokenPos end() const { return positions_.empty() ? 0 : positions_.back() + 1; }
  // resident_bytes() with so many queries observed.
  static std::int64_t BytesFor(const LayerSpec& layer, std::int64_t queries) {
    return layer.query_heads * queries *
           static_cast<std::int64_t>(row_floats(layer) * sizeof(float));
  }
  std::int64_t resident_bytes() const { return static_cast<std::int64_t>(buffer_.bytes()); }

 private:
  static std::size_t row_floats(const LayerSpec& layer) {
    return static_cast<std::size_t>(layer.key_dim);
  }
  float* row(const LayerSpec& layer, int head, std::size_t slot) {
    const std::size_t rows_before = static_cast<std::size_t>(head) * positions_.size() + slot;
    return buffer_.As<float>() + rows_before * row_floats(layer);
  }
  Status Grow(Allocator& allocator, const LayerSpec& layer, std::size_t room,
              std::span<const TokenPos> fresh, std::span<const float> rows);

  Buffer buffer_;
  std::vector<TokenPos> positions_;  // increasing
  std::size_t oldest_ = 0;           // slot of the first of them; the others follow, around the end
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_QUERY_RING_H_
