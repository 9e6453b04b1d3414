// The fields of a ByteReport that add up; scratch_peak_bytes, of which a sum is the largest, is the
// only other one.
#ifndef KVSIEVE_LIB_BYTE_REPORT_FIELDS_H_
#define KVSIEVE_LIB_BYTE_REPORT_FIELDS_H_

#include <cstdint>

#include "kvsieve/byte_report.h"

namespace kvsieve {

inline constexpr std::int64_t ByteReport::*kByteReportSums[] = {
    &ByteReport::key_full_bytes, &ByteReport::value_full_bytes,  &ByteReport::f16_rows_bytes,
    &ByteReport::payload_bytes,  &ByteReport::scale_bytes,       &ByteReport::metadata_bytes,
    &ByteReport::key_kept_bytes, &ByteReport::value_kept_bytes,  &ByteReport::padding_bytes,
    &ByteReport::reserved_bytes, &ByteReport::observation_bytes, &ByteReport::shared_bytes,
    &ByteReport::tokens_seen,    &ByteReport::rows_kept,         &ByteReport::lifetime_tokens};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_BYTE_REPORT_FIELDS_H_
