// Byte accounting: a meter read from live buffers, not an estimate. Ratios are derived, never
// stored. The sum of reports is associative, so layers, heads and caches add up.
#ifndef KVSIEVE_BYTE_REPORT_H_
#define KVSIEVE_BYTE_REPORT_H_

#include <cstdint>
#include <optional>

namespace kvsieve {

// All in bytes.
struct ByteReport {
  // f16 K and V that a plain engine would hold: every token seen, at most `sliding_window` of
  // them on a sliding layer, MLA rows once.
  std::int64_t key_full_bytes = 0;
  std::int64_t value_full_bytes = 0;
  // f16 K and V of the rows kept.
  std::int64_t f16_rows_bytes = 0;

  std::int64_t payload_bytes = 0;  // codes of live rows (exact rows in their own width)
  std::int64_t scale_bytes = 0;    // scales, zero points, group parameters of live rows
  // Positions and head statistics; tables that all heads share lie in the codec, outside.
  std::int64_t metadata_bytes = 0;
  std::int64_t key_kept_bytes = 0;  // K's part of the three above, positions included
  std::int64_t value_kept_bytes = 0;

  std::int64_t padding_bytes = 0;      // alignment and dimension padding of live rows
  std::int64_t reserved_bytes = 0;     // room for more rows
  std::int64_t observation_bytes = 0;  // the query ring
  std::int64_t shared_bytes = 0;       // part of resident that forks of the cache hold as well
  // Largest memory that scoring or encoding took in FinishPrefill or Evict, lists of rows included
  // (+ takes the maximum).
  // What Attend takes is the caller's AttendScratch.
  std::int64_t scratch_peak_bytes = 0;

  std::int64_t tokens_seen = 0;  // rows, summed over layers and KV heads
  std::int64_t rows_kept = 0;
  std::int64_t lifetime_tokens = 0;  // every row ever appended

  std::int64_t full_bytes() const { return key_full_bytes + value_full_bytes; }
  std::int64_t kept_bytes() const { return payload_bytes + scale_bytes + metadata_bytes; }
  std::int64_t resident_bytes() const {
    return kept_bytes() + padding_bytes + reserved_bytes + observation_bytes;
  }

  // Share of the resident bytes that is in use, all but the room for more rows: 0 when nothing is
  // resident, never above 1.
  double occupancy() const;

  // Nothing seen: 1. No row kept: no ratio (nullopt), keep rate 0.
  double keep_rate() const;
  std::optional<double> eviction_ratio() const;  // full / f16 bytes of kept rows
  std::optional<double> storage_ratio() const;   // f16 bytes of kept rows / kept
  std::optional<double> total_ratio() const;     // full / kept = eviction * storage
  std::optional<double> resident_ratio() const;  // full / resident

  ByteReport& operator+=(const ByteReport& other);
  ByteReport operator*(std::int64_t times) const;  // the sum of so many alike
};

inline ByteReport operator+(ByteReport a, const ByteReport& b) { return a += b; }

}  // namespace kvsieve

#endif  // KVSIEVE_BYTE_REPORT_H_
