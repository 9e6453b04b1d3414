#include "lib/head_store.h"

#include <algorithm>
#include <utility>

namespace kvsieve {

std::int64_t HeadStore::rows() const {
  std::int64_t total = sinks.rows() + tail.rows();
  for (const Tier& tier : tiers) total += tier.rows();
  return total;
}

Result<HeadStore> HeadStore::Clone(Allocator& allocator, std::span<const LayerStore> stores) const {
  HeadStore copy;
  KVS_ASSIGN_OR_RETURN(copy.sinks, sinks.Clone(allocator));
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    KVS_ASSIGN_OR_RETURN(Tier tier, tiers[t].Clone(allocator, stores[t]));
    copy.tiers.push_back(std::move(tier));
  }
  KVS_ASSIGN_OR_RETURN(copy.tail, tail.Clone(allocator));
  return copy;
}

void HeadStore::AddBytes(const RowShape& shape, ByteReport& report) const {
  sinks.AddBytes(shape, report);
  for (const Tier& tier : tiers) tier.AddBytes(report);
  tail.AddBytes(shape, report);
  AddRows(shape, rows(), report);
}

namespace {

// A side that has rows of its own.
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

}  // namespace

void ReadStoredRows(const HeadStore& store, const RowShape& shape, Side side, RowIndex first,
                    int count, float* out) {
  if (shape.holder(side) == side) return ReadHeldRows(store, shape, side, first, count, out);
  ReadKeyPrefixes(store, shape, first, count, out);
}

void ReadStoredPositions(const HeadStore& store, TokenPos* out) {
  const auto read = [&](const PositionList& positions) {
    positions.ReadAll(out);
    out += positions.rows();
  };
  read(store.sinks.positions());
  for (const Tier& tier : store.tiers) read(tier.positions());
  read(store.tail.positions());
}

}  // namespace kvsieve
