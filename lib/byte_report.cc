#include "kvsieve/byte_report.h"

#include <algorithm>

#include "lib/byte_report_fields.h"

namespace kvsieve {
namespace {

// Nothing seen: 1. Something seen, nothing kept: no ratio.
std::optional<double> Ratio(std::int64_t tokens_seen, std::int64_t rows_kept,
                            std::int64_t numerator, std::int64_t denominator) {
  if (tokens_seen == 0) return 1.0;
  if (rows_kept == 0 || denominator == 0) return std::nullopt;
  return static_cast<double>(numerator) / static_cast<double>(denominator);
}

}  // namespace

double ByteReport::occupancy() const {
  if (resident_bytes() == 0) return 0.0;
  return 1.0 - static_cast<double>(reserved_bytes) / static_cast<double>(resident_bytes());
}

double ByteReport::keep_rate() const {
  if (tokens_seen == 0) return 1.0;
  return static_cast<double>(rows_kept) / static_cast<double>(tokens_seen);
}

std::optional<double> ByteReport::eviction_ratio() const {
  return Ratio(tokens_seen, rows_kept, full_bytes(), f16_rows_bytes);
}
std::optional<double> ByteReport::storage_ratio() const {
  return Ratio(tokens_seen, rows_kept, f16_rows_bytes, kept_bytes());
}
std::optional<double> ByteReport::total_ratio() const {
  return Ratio(tokens_seen, rows_kept, full_bytes(), kept_bytes());
}
std::optional<double> ByteReport::resident_ratio() const {
  return Ratio(tokens_seen, rows_kept, full_bytes(), resident_bytes());
}

ByteReport& ByteReport::operator+=(const ByteReport& other) {
  for (const auto field : kByteReportSums) this->*field += other.*field;
  scratch_peak_bytes = std::max(scratch_peak_bytes, other.scratch_peak_bytes);
  return *this;
}

ByteReport ByteReport::operator*(std::int64_t times) const {
  ByteReport product = *this;
  for (const auto field : kByteReportSums) product.*field *= times;
  return product;
}

}  // namespace kvsieve
