#include "lib/decode_append.h"

#include <algorithm>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "lib/row_copy.h"
#include "lib/segments.h"

namespace kvsieve {

const std::uint8_t* DecodeAppend::staged(Side side, int head, std::int64_t r) const {
  const auto n = static_cast<std::int64_t>(positions_.size());
  const auto index = static_cast<std::size_t>(head * n + r);
  const bool key = layer_.shape.holder(side) == Side::kKey;
  return (key ? keys_ : values_).data() + index * layer_.shape.stride_bytes(side);
}

// Copies the new rows, so that a row found bad has touched nothing.
Status DecodeAppend::Stage(const HeadsView& keys, const HeadsView& values, NonFinitePolicy policy) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (layer_.shape.holder(side) != side) continue;
    const HeadsView& rows = side == Side::kKey ? keys : values;
    std::vector<std::uint8_t>& copy = side == Side::kKey ? keys_ : values_;
    const std::size_t row_bytes = layer_.shape.row_bytes(side);
    copy.resize(static_cast<std::size_t>(rows.heads * rows.rows) * row_bytes);
    std::uint8_t* to = copy.data();
    for (int head = 0; head < rows.heads; ++head) {
      for (std::int64_t r = 0; r < rows.rows; ++r, to += row_bytes) {
        KVS_RETURN_IF_ERROR(CopyCheckedRow(rows, side, head, r, policy, to, &tally_));
      }
    }
  }
  return Status::Ok();
}

DecodeAppend::Leaving DecodeAppend::PlanHead(const HeadStore& store) const {
  Leaving leaving;
  leaving.held = store.tail.rows();
  const std::int64_t to_tail = static_cast<std::int64_t>(positions_.size()) - to_sinks_;
  leaving.count = SealedRows(leaving.held + to_tail, tail_rows_, layer_.group_rows());
  leaving.positions.resize(static_cast<std::size_t>(leaving.count));
  TokenPos block[kBlockRows];
  for (RowIndex begin = 0; begin < leaving.from_tail(); begin += kBlockRows) {
    const auto count =
        static_cast<int>(std::min(leaving.from_tail() - begin, RowIndex{kBlockRows}));
    store.tail.positions().Read(begin, count, block);
    std::copy_n(block, count, leaving.positions.begin() + begin);
  }
  std::copy_n(positions_.begin() + to_sinks_, leaving.from_new(),
              leaving.positions.begin() + leaving.from_tail());
  return leaving;
}

Status DecodeAppend::ReserveHead(const Leaving& leaving, HeadStore& store) {
  const auto sinks = static_cast<std::size_t>(to_sinks_);
  KVS_RETURN_IF_ERROR(store.tiers[0].Reserve(allocator_, leaving.positions));
  KVS_RETURN_IF_ERROR(store.sinks.Reserve(allocator_, layer_.shape, positions_.first(sinks)));
  return store.tail.Reserve(
      allocator_, layer_.shape,
      positions_.subspan(sinks + static_cast<std::size_t>(leaving.from_new())));
}

// Writes the rows that leave the tail behind tier 0's last row, a group at a time; they are not
// visible yet.
Status DecodeAppend::EncodeHead(int head, HeadStore& store) {
  const Leaving& leaving = leaving_[head];
  const int group = layer_.group_rows();
  std::vector<float> keys(static_cast<std::size_t>(group) * layer_.shape.key_dim);
  std::vector<float> values(static_cast<std::size_t>(group) * layer_.shape.value_dim);
  for (std::int64_t first = 0; first < leaving.count; first += group) {
    for (const Side side : store.tiers[0].store().sides()) {
      float* rows = side == Side::kKey ? keys.data() : values.data();
      ReadLeaving(head, store, first, group, side, rows);
    }
    Status encoded = store.tiers[0].EncodeAhead(first, group, keys.data(), values.data());
    if (!encoded.ok()) {
      const std::string_view rows = group == 1 ? ", position " : ", rows from position ";
      return Status(encoded.error().code,
                    StrCat("head ", head, rows, leaving.positions[first], ": ", encoded.message()));
    }
  }
  return Status::Ok();
}

// Rows [first, first + count) of those that leave.
void DecodeAppend::ReadLeaving(int head, const HeadStore& store, std::int64_t first, int count,
                               Side side, float* out) const {
  const RowShape& shape = layer_.shape;
  const std::int64_t held = leaving_[head].held;
  for (std::int64_t i = first; i < first + count; ++i, out += shape.dim(side)) {
    const std::uint8_t* row =
        i < held ? store.tail.row(shape, side, i) : staged(side, head, to_sinks_ + i - held);
    ConvertToF32(row, shape.type(side), shape.dim(side), out);
  }
}

void DecodeAppend::CommitHead(int head, HeadStore& store) {
  const RowShape& shape = layer_.shape;
  const auto n = static_cast<std::int64_t>(positions_.size());
  const Leaving& leaving = leaving_[head];
  for (std::int64_t r = 0; r < to_sinks_; ++r) {
    store.sinks.Append(shape, staged(Side::kKey, head, r), staged(Side::kValue, head, r),
                       positions_[r]);
  }
  store.tiers[0].Show(leaving.positions);
  for (std::int64_t r = to_sinks_ + leaving.from_new(); r < n; ++r) {
    store.tail.Append(shape, staged(Side::kKey, head, r), staged(Side::kValue, head, r),
                      positions_[r]);
  }
  store.tail.DropFront(shape, leaving.from_tail());
}

// On a sliding layer, gives back what no later query sees: whole blocks, and exact rows. The first
// new row's own query is still to come, so its whole window stays.
void DecodeAppend::DropOutOfWindow() {
  const std::int64_t oldest = std::int64_t{positions_.front()} + 1 - layer_.spec.sliding_window;
  if (oldest <= 0) return;
  TokenPos dropped = -1;
  for (HeadStore& store : layer_.heads) {
    for (ExactRows* exact : {&store.sinks, &store.tail}) {
      while (exact->rows() > 0 && exact->positions().first() < oldest) {
        dropped = std::max(dropped, exact->positions().first());
        exact->DropFront(layer_.shape, 1);
      }
    }
    for (Tier& tier : store.tiers) {
      dropped = std::max(dropped, tier.DropBefore(static_cast<TokenPos>(oldest)));
    }
  }
  if (dropped >= 0) layer_.NoteOutOfWindow(dropped);
}

Status DecodeAppend::Prepare(const HeadsView& keys, const HeadsView& values,
                             std::span<const TokenPos> positions, NonFinitePolicy policy) {
  positions_ = positions;
  const auto n = static_cast<std::int64_t>(positions.size());
  to_sinks_ = std::clamp<std::int64_t>(exact_sinks_ - layer_.tokens(), 0, n);
  layer_.seen.Reserve(positions);
  KVS_RETURN_IF_ERROR(Stage(keys, values, policy));
  for (HeadStore& store : layer_.heads) {
    leaving_.push_back(PlanHead(store));
    KVS_RETURN_IF_ERROR(ReserveHead(leaving_.back(), store));
  }
  for (int head = 0; head < layer_.spec.kv_heads; ++head) {
    KVS_RETURN_IF_ERROR(EncodeHead(head, layer_.heads[head]));
  }
  return Status::Ok();
}

void DecodeAppend::Commit() {
  for (int head = 0; head < layer_.spec.kv_heads; ++head) CommitHead(head, layer_.heads[head]);
  layer_.zeroed += tally_.zeroed;
  layer_.CountTokens(positions_, exact_sinks_);
  layer_.since_eviction += std::ssize(positions_);
  if (layer_.slides()) DropOutOfWindow();
}

}  // namespace kvsieve
