// The text part of a kv-trace: required keys, and numbers that hold for all layers or for each.
#ifndef KVSIEVE_LIB_EVAL_TRACE_METADATA_H_
#define KVSIEVE_LIB_EVAL_TRACE_METADATA_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "kvsieve/result.h"
#include "lib/eval/file_error.h"

namespace kvsieve::eval {

// attn.* of every stored layer, in ascending order of the layers.
struct AttentionMetadata {
  std::vector<double> scale;
  std::vector<double> softcap;         // 0 = none
  std::vector<double> sliding_window;  // whole numbers, 0 = none
};

// Checks version, required keys, rope.* and attn.*.
Result<AttentionMetadata> ReadMetadata(const std::map<std::string, std::string>& metadata,
                                       std::size_t layers, const FileErrors& errors);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_TRACE_METADATA_H_
