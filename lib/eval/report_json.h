// A comparison as text for programs: JSON (schema kvsieve.report/1, docs/report.schema.json) and
// CSV (one line per pipeline).
#ifndef KVSIEVE_LIB_EVAL_REPORT_JSON_H_
#define KVSIEVE_LIB_EVAL_REPORT_JSON_H_

#include <string>

#include "kvsieve/eval/compare.h"

namespace kvsieve::eval {

// Both end in a newline. Numbers that do not exist are null in JSON and empty in CSV, never NaN.
std::string ReportJson(const Comparison& comparison);
std::string ReportCsv(const Comparison& comparison);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_REPORT_JSON_H_
