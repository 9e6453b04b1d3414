// Arithmetic on bounds of byte reports, field by field.
#ifndef KVSIEVE_LIB_BYTE_BOUNDS_H_
#define KVSIEVE_LIB_BYTE_BOUNDS_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kvsieve/plan_bytes.h"
#include "lib/byte_report_fields.h"

namespace kvsieve {

inline ByteBounds Exactly(const ByteReport& report) { return {report, report}; }

inline ByteBounds operator+(ByteBounds a, const ByteBounds& b) {
  a.least += b.least;
  a.most += b.most;
  return a;
}

// The least bounds that hold `a`, when there is one, and `b`.
inline ByteBounds Cover(const std::optional<ByteBounds>& a, ByteBounds b) {
  for (const auto field : kByteReportSums) {
    if (!a) break;
    b.least.*field = std::min(b.least.*field, a->least.*field);
    b.most.*field = std::max(b.most.*field, a->most.*field);
  }
  return b;
}

inline bool SameSums(const ByteReport& a, const ByteReport& b) {
  return std::all_of(std::begin(kByteReportSums), std::end(kByteReportSums),
                     [&](const auto field) { return a.*field == b.*field; });
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_BYTE_BOUNDS_H_
