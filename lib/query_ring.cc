#include "lib/query_ring.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kvsieve/float16.h"

namespace kvsieve {
namespace {

// The last `count` queries as f32 [query_heads, count, key_dim].
Result<std::vector<float>> LastQueries(const LayerSpec& layer, const HeadsView& queries,
                                       std::size_t count) {
  const auto dim = static_cast<std::size_t>(layer.key_dim);
  std::vector<float> rows(static_cast<std::size_t>(layer.query_heads) * count * dim);
  float* query = rows.data();
  for (int head = 0; head < layer.query_heads; ++head) {
    for (std::int64_t r = queries.rows - static_cast<std::int64_t>(count); r < queries.rows; ++r) {
      ConvertToF32(queries.row(head, r), queries.type, layer.key_dim, query);
      if (!std::all_of(query, query + dim, [](float x) { return std::isfinite(x); })) {
        return Status(ErrorCode::kNonFinite,
                      StrCat("queries, head ", head, ", row ", r, ": NaN or Inf"));
      }
      query += dim;
    }
  }
  return rows;
}

}  // namespace

Status QueryRing::Observe(Allocator& allocator, const LayerSpec& layer, int capacity,
                          std::span<const TokenPos> positions, const HeadsView& queries) {
  const auto room = static_cast<std::size_t>(capacity);
  const std::span<const TokenPos> fresh = positions.last(std::min(positions.size(), room));
  if (fresh.empty()) return Status::Ok();
  KVS_ASSIGN_OR_RETURN(const std::vector<float> rows, LastQueries(layer, queries, fresh.size()));
  if (positions_.size() < room) return Grow(allocator, layer, room, fresh, rows);

  const std::size_t dim = row_floats(layer);
  positions_.insert(positions_.end(), fresh.begin(), fresh.end());  // all that can fail
  positions_.erase(positions_.begin(), positions_.begin() + std::ssize(fresh));
  const float* from = rows.data();
  for (int head = 0; head < layer.query_heads; ++head) {
    for (std::size_t i = 0; i < fresh.size(); ++i, from += dim) {
      std::copy_n(from, dim, row(layer, head, (oldest_ + i) % room));
    }
  }
  oldest_ = (oldest_ + fresh.size()) % room;
  return Status::Ok();
}

// Before the ring is full its rows lie as close together as they are many.
Status QueryRing::Grow(Allocator& allocator, const LayerSpec& layer, std::size_t room,
                       std::span<const TokenPos> fresh, std::span<const float> rows) {
  const std::size_t dim = row_floats(layer);
  const std::size_t old = std::min(positions_.size(), room - fresh.size());
  const std::size_t total = old + fresh.size();
  KVS_ASSIGN_OR_RETURN(Buffer grown,
                       Buffer::Allocate(allocator, static_cast<std::size_t>(BytesFor(
                                                       layer, static_cast<std::int64_t>(total)))));
  std::vector<TokenPos> held(positions_.end() - static_cast<std::ptrdiff_t>(old), positions_.end());
  held.insert(held.end(), fresh.begin(), fresh.end());
  Straighten(layer);
  float* to = grown.As<float>();
  for (int head = 0; head < layer.query_heads; ++head) {
    if (old > 0) to = std::copy_n(row(layer, head, positions_.size() - old), old * dim, to);
    const std::size_t head_floats = fresh.size() * dim;
    to = std::copy_n(rows.data() + static_cast<std::size_t>(head) * head_floats, head_floats, to);
  }
  positions_ = std::move(held);
  buffer_ = std::move(grown);
  return Status::Ok();
}

void QueryRing::Straighten(const LayerSpec& layer) {
  if (oldest_ == 0) return;
  const std::size_t dim = row_floats(layer);
  for (int head = 0; head < layer.query_heads; ++head) {
    float* begin = row(layer, head, 0);
    std::rotate(begin, begin + oldest_ * dim, begin + positions_.size() * dim);
  }
  oldest_ = 0;
}

Result<QueryRing> QueryRing::Clone(Allocator& allocator) const {
  QueryRing copy;
  copy.positions_ = positions_;
  copy.oldest_ = oldest_;
  KVS_ASSIGN_OR_RETURN(copy.buffer_, buffer_.Clone(allocator));
  return copy;
}

void QueryRing::Trim(const LayerSpec& layer, TokenPos end) {
  const auto kept = static_cast<std::size_t>(
      std::lower_bound(positions_.begin(), positions_.end(), end) - positions_.begin());
  if (kept == positions_.size()) return;
  if (kept == 0) {
    *this = QueryRing();
    return;
  }
  Straighten(layer);
  const std::size_t head_floats = kept * row_floats(layer);
  for (int head = 1; head < layer.query_heads; ++head) {
    std::copy_n(row(layer, head, 0), head_floats,
                buffer_.As<float>() + static_cast<std::size_t>(head) * head_floats);
  }
  positions_.resize(kept);
}

}  // namespace kvsieve
