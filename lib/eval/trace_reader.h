// From the bytes of a kv-trace file to checked layers. Trace owns the result.
#ifndef KVSIEVE_LIB_EVAL_TRACE_READER_H_
#define KVSIEVE_LIB_EVAL_TRACE_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/eval/trace.h"
#include "kvsieve/result.h"
#include "lib/eval/file_error.h"

namespace kvsieve::eval {

struct TraceContent {
  std::map<std::string, std::string> metadata;
  std::vector<TraceLayer> layers;
  std::span<const TokenPos> positions;
  std::span<const TokenPos> window_positions;
  std::span<const TokenPos> eval_positions;
  std::span<const std::int32_t> token_ids;
  // Copies of tensors that the file does not align to their element: safetensors allows it when a
  // writer leaves the header unpadded.
  std::vector<std::vector<std::byte>> aligned_copies;
};

// All checks of the format. `file` must outlive the result.
Result<TraceContent> ReadTrace(std::span<const std::byte> file, const FileErrors& errors);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_TRACE_READER_H_
