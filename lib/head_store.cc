#include "lib/head_store.h"

#include <algorithm>

namespace kvsieve {
namespace {

void AddExactBytes(const ExactRows& exact, const RowShape& shape, ByteReport& report) {
  const auto key_bytes = exact.rows() * static_cast<std::int64_t>(shape.row_bytes(Side::kKey));
  const auto value_bytes = exact.rows() * static_cast<std::int64_t>(shape.row_bytes(Side::kValue));
  const std::int64_t positions = exact.positions().live_bytes();
  report.payload_bytes += key_bytes + value_bytes;
  report.metadata_bytes += positions;
  report.key_kept_bytes += key_bytes + positions;
  report.value_kept_bytes += value_bytes;
  report.reserved_bytes += exact.resident_bytes() - key_bytes - value_bytes - positions;
}

void ReadPositions(const PositionList& positions, TokenPos* out) {
  for (RowIndex begin = 0; begin < positions.rows(); begin += kBlockRows) {
    const auto left = std::min<std::int64_t>(kBlockRows, positions.rows() - begin);
    positions.Read(begin, static_cast<int>(left), out + begin);
  }
}

}  // namespace

std::int64_t HeadStore::rows() const {
  std::int64_t total = sinks.rows() + tail.rows();
  for (const Tier& tier : tiers) total += tier.rows();
  return total;
}

void HeadStore::AddBytes(const RowShape& shape, ByteReport& report) const {
  AddExactBytes(sinks, shape, report);
  for (const Tier& tier : tiers) tier.AddBytes(report);
  AddExactBytes(tail, shape, report);
  report.rows_kept += rows();
  report.f16_rows_bytes += rows() * 2 * (shape.key_dim + shape.value_dim);
}

void ReadStoredRows(const HeadStore& store, const RowShape& shape, Side side, RowIndex first,
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

void ReadStoredPositions(const HeadStore& store, TokenPos* out) {
  const auto read = [&](const PositionList& positions) {
    ReadPositions(positions, out);
    out += positions.rows();
  };
  read(store.sinks.positions());
  for (const Tier& tier : store.tiers) read(tier.positions());
  read(store.tail.positions());
}

}  // namespace kvsieve
