#include "lib/query_ring.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kvsieve/float16.h"

namespace kvsieve {

Status QueryRing::Observe(Allocator& allocator, const LayerSpec& layer, int capacity,
                          std::span<const TokenPos> positions, const HeadsView& queries) {
  const auto room = static_cast<std::size_t>(capacity);
  const std::size_t fresh = std::min(positions.size(), room);
  const std::size_t old = std::min(positions_.size(), room - fresh);
  const std::size_t total = old + fresh;
  if (fresh == 0) return Status::Ok();

  const auto dim = static_cast<std::size_t>(layer.key_dim);
  KVS_ASSIGN_OR_RETURN(
      Buffer next, Buffer::Allocate(allocator, static_cast<std::size_t>(layer.query_heads) * total *
                                                   dim * sizeof(float)));
  for (int head = 0; head < layer.query_heads; ++head) {
    float* to = next.As<float>() + static_cast<std::size_t>(head) * total * dim;
    if (old > 0) {
      const float* from =
          buffer_.As<float>() +
          (static_cast<std::size_t>(head) * positions_.size() + (positions_.size() - old)) * dim;
      std::memcpy(to, from, old * dim * sizeof(float));
    }
    for (std::size_t i = 0; i < fresh; ++i) {
      const auto row = static_cast<std::int64_t>(positions.size() - fresh + i);
      float* query = to + (old + i) * dim;
      ConvertToF32(queries.row(head, row), queries.type, layer.key_dim, query);
      if (!std::all_of(query, query + dim, [](float x) { return std::isfinite(x); })) {
        return Status(ErrorCode::kNonFinite,
                      StrCat("queries, head ", head, ", row ", row, ": NaN or Inf"));
      }
    }
  }
  std::vector<TokenPos> held(positions_.end() - static_cast<std::ptrdiff_t>(old), positions_.end());
  held.insert(held.end(), positions.end() - static_cast<std::ptrdiff_t>(fresh), positions.end());
  positions_ = std::move(held);
  buffer_ = std::move(next);
  return Status::Ok();
}

}  // namespace kvsieve
