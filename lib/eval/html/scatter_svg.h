// An SVG scatter plot of pipelines: kept bytes (log) against mean output error (log), smaller is
// better on both; the Pareto front is drawn as steps.
#ifndef KVSIEVE_LIB_EVAL_HTML_SCATTER_SVG_H_
#define KVSIEVE_LIB_EVAL_HTML_SCATTER_SVG_H_

#include <span>
#include <string>

namespace kvsieve::eval {

struct ScatterPoint {
  double kept_bytes = 0;    // > 0
  double output_error = 0;  // >= 0; below the axis it is drawn on the axis
  bool front = false;
  int number = 0;     // drawn beside the point, as in the table
  std::string label;  // shown by the browser when the pointer rests on the point; plain text
};

// Colours come from the page: classes grid, axis, front-line, point, point-front, number.
std::string ScatterSvg(std::span<const ScatterPoint> points);

// Text made safe between tags and in attributes.
std::string HtmlText(const std::string& text);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_HTML_SCATTER_SVG_H_
