// The distributions behind GenerateTrace.
#ifndef KVSIEVE_LIB_EVAL_GENERATE_PRESETS_H_
#define KVSIEVE_LIB_EVAL_GENERATE_PRESETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/eval/generate.h"

namespace kvsieve::eval {

// Rows of all heads in f32, before rounding to the trace's dtype.
struct HeadRows {
  int heads = 0;
  std::int64_t rows = 0;
  int dim = 0;
  std::vector<float> values;  // [heads, rows, dim]

  HeadRows(int h, std::int64_t r, int d)
      : heads(h), rows(r), dim(d), values(static_cast<std::size_t>(h * r * d)) {}
  std::span<float> row(int head, std::int64_t r) {
    return std::span(values).subspan(static_cast<std::size_t>((head * rows + r) * dim),
                                     static_cast<std::size_t>(dim));
  }
};

struct SyntheticLayer {
  HeadRows keys;     // prompt rows, then eval rows
  HeadRows values;   // the same
  HeadRows queries;  // window queries, then eval queries
};

// `options` is valid, its window at most its tokens.
SyntheticLayer GenerateLayer(const GenerateOptions& options, int layer);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_GENERATE_PRESETS_H_
