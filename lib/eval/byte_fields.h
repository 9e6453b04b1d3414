// The byte fields and ratios of a report, each with its public name: one list for JSON, CSV, the
// table of `kvsieve report` and its explanations.
#ifndef KVSIEVE_LIB_EVAL_BYTE_FIELDS_H_
#define KVSIEVE_LIB_EVAL_BYTE_FIELDS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvsieve/byte_report.h"

namespace kvsieve::eval {

struct ByteField {
  std::string_view name;
  std::int64_t (*get)(const ByteReport&);
  std::string_view meaning;
};

struct RatioField {
  std::string_view name;
  std::optional<double> (*get)(const ByteReport&);
  std::string_view meaning;
};

std::span<const ByteField> ByteFields();
std::span<const RatioField> RatioFields();  // keep_rate, then the four ratios

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_BYTE_FIELDS_H_
