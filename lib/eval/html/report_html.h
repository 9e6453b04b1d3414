// A comparison as one HTML file for people: a scatter of kept bytes against output error with the
// Pareto front, and the table. Needs no network, no script and no other file.
#ifndef KVSIEVE_LIB_EVAL_HTML_REPORT_HTML_H_
#define KVSIEVE_LIB_EVAL_HTML_REPORT_HTML_H_

#include <string>

#include "kvsieve/eval/compare.h"

namespace kvsieve::eval {

std::string ReportHtml(const Comparison& comparison);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_HTML_REPORT_HTML_H_
