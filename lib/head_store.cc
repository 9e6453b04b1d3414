#include "lib/head_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvsieve {

std::int64_t HeadStore::rows() const {
  std::int64_t total = sinks.rows() + tail.rows();
  for (const Tier& tier : tiers) total += tier.rows();
  return total;
}

Result<HeadStore> HeadStore::Fork(Allocator& allocator, std::span<const LayerStore> stores) const {
  HeadStore fork;
  KVS_ASSIGN_OR_RETURN(fork.sinks, sinks.Clone(allocator));
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    KVS_ASSIGN_OR_RETURN(Tier tier, tiers[t].Fork(allocator, stores[t]));
    fork.tiers.push_back(std::move(tier));
  }
  fork.ShareStats();
  KVS_ASSIGN_OR_RETURN(fork.tail, tail.Clone(allocator));
  return fork;
}

std::vector<ByteReport> HeadStore::BytesByStore(const RowShape& shape) const {
  std::vector<ByteReport> stores(1 + tiers.size());
  sinks.AddBytes(shape, stores[0]);
  tail.AddBytes(shape, stores[0]);
  AddRows(shape, sinks.rows() + tail.rows(), stores[0]);
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    tiers[t].AddBytes(stores[1 + t]);
    AddRows(shape, tiers[t].rows(), stores[1 + t]);
  }
  return stores;
}

namespace {

// A side that has rows of its own: rows [first, first + count) counted through sinks, tiers and
// tail in that order.
void ReadHeldRows(const HeadStore& store, const RowShape& shape, Side side, RowIndex first,
                  int count, float* out) {
  // The overlap of [first, first + count) with a segment of `rows` rows that starts at `begin`.
  RowIndex begin = 0;
  const auto read = [&](std::int64_t rows, auto&& read_rows) {
    const RowIndex from = std::max(first, begin);
    const RowIndex to = std::min(first + count, begin + rows);
    if (from < to) {
      read_rows(from - begin, static_cast<int>(to - from), out + (from - first) * shape.dim(side));
    }
    begin += rows;
  };
  read(store.sinks.rows(),
       [&](RowIndex r, int n, float* to) { store.sinks.ReadRows(shape, side, r, n, to); });
  for (const Tier& tier : store.tiers) {
    read(tier.rows(), [&](RowIndex r, int n, float* to) { tier.ReadRows(side, r, n, to); });
  }
  read(store.tail.rows(),
       [&](RowIndex r, int n, float* to) { store.tail.ReadRows(shape, side, r, n, to); });
}

// V from rows of K, a few at a time.
void ReadKeyPrefixes(const HeadStore& store, const RowShape& shape, RowIndex first, int count,
                     float* out) {
  alignas(64) float keys[kMaxDim];
  const int step = kMaxDim / shape.key_dim;
  for (int done = 0; done < count; done += step) {
    const int run = std::min(step, count - done);
    ReadHeldRows(store, shape, Side::kKey, first + done, run, keys);
    for (int r = 0; r < run; ++r, out += shape.value_dim) {
      std::copy_n(keys + r * shape.key_dim, shape.value_dim, out);
    }
  }
}

void ReadInPlaceOrder(const HeadStore& store, const RowShape& shape, Side side, RowIndex first,
                      int count, float* out) {
  if (shape.holder(side) == side) return ReadHeldRows(store, shape, side, first, count, out);
  ReadKeyPrefixes(store, shape, first, count, out);
}

void PositionsInPlaceOrder(const HeadStore& store, TokenPos* out) {
  const auto read = [&](const PositionList& positions) {
    positions.ReadAll(out);
    out += positions.rows();
  };
  read(store.sinks.positions());
  for (const Tier& tier : store.tiers) read(tier.positions());
  read(store.tail.positions());
}

}  // namespace

// Sinks come before all rows of the tiers and the tail behind them, so that only tiers interleave.
StoredOrder::StoredOrder(const HeadStore& store) : store_(store) {
  const auto holds_rows = [](const Tier& tier) { return tier.rows() > 0; };
  if (std::count_if(store.tiers.begin(), store.tiers.end(), holds_rows) < 2) return;
  std::vector<TokenPos> positions(static_cast<std::size_t>(store.rows()));
  PositionsInPlaceOrder(store, positions.data());
  places_.resize(positions.size());
  std::iota(places_.begin(), places_.end(), RowIndex{0});
  const auto begin = places_.begin() + store.sinks.rows();
  auto end = begin;
  for (const Tier& tier : store.tiers) {
    const auto middle = end;
    end += tier.rows();
    std::inplace_merge(begin, middle, end,
                       [&](RowIndex a, RowIndex b) { return positions[a] < positions[b]; });
  }
}

void StoredOrder::ReadPositions(TokenPos* out) const {
  if (places_.empty()) return PositionsInPlaceOrder(store_, out);
  std::vector<TokenPos> positions(places_.size());
  PositionsInPlaceOrder(store_, positions.data());
  for (const RowIndex place : places_) *out++ = positions[place];
}

void StoredOrder::ReadTiers(std::int32_t exact, std::int32_t* out) const {
  std::vector<std::int32_t> tiers(static_cast<std::size_t>(store_.sinks.rows()), exact);
  for (std::size_t t = 0; t < store_.tiers.size(); ++t) {
    tiers.insert(tiers.end(), static_cast<std::size_t>(store_.tiers[t].rows()),
                 static_cast<std::int32_t>(t));
  }
  tiers.resize(static_cast<std::size_t>(store_.rows()), exact);
  for (std::size_t r = 0; r < tiers.size(); ++r) out[r] = tiers[places_.empty() ? r : places_[r]];
}

void StoredOrder::ReadRows(const RowShape& shape, Side side, RowIndex first, int count,
                           float* out) const {
  if (places_.empty()) return ReadInPlaceOrder(store_, shape, side, first, count, out);
  for (int done = 0; done < count;) {
    const RowIndex* place = places_.data() + first + done;
    int run = 1;
    while (done + run < count && place[run] == *place + run) ++run;
    ReadInPlaceOrder(store_, shape, side, *place, run, out + std::int64_t{done} * shape.dim(side));
    done += run;
  }
}

}  // namespace kvsieve
