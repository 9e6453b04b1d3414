// Scores of prompt rows that were computed elsewhere, for the evict stage `external`, read from a
// safetensors file: for each layer i of the trace `layer.{i}.scores`, F32 [kv_heads, tokens],
// higher = keep.
#ifndef KVSIEVE_EVAL_EXTERNAL_SCORES_H_
#define KVSIEVE_EVAL_EXTERNAL_SCORES_H_

#include <span>
#include <string>
#include <vector>

#include "kvsieve/eval/trace.h"
#include "kvsieve/result.h"

namespace kvsieve::eval {

class ExternalScores {
 public:
  // Errors are one line: file, tensor, what, and what to do. Every layer without a sliding window
  // needs its tensor; no other tensors may be there. NaN and infinities are scores.
  static Result<ExternalScores> Open(const std::string& path, const Trace& trace);

  // [kv_heads, tokens] of the trace's layer `layer_index`; empty for a sliding layer without
  // scores.
  std::span<const float> layer(int layer_index) const { return layers_[layer_index]; }

 private:
  std::vector<std::vector<float>> layers_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_EXTERNAL_SCORES_H_
