// Synthetic traces with known structure, for tests, demonstrations and machines without a capture.
//
//   GenerateOptions options;
//   options.preset = "sink";
//   Status status = GenerateTrace(options, "sink.safetensors");
#ifndef KVSIEVE_EVAL_GENERATE_H_
#define KVSIEVE_EVAL_GENERATE_H_

#include <cstdint>
#include <span>
#include <string>

#include "kvsieve/result.h"
#include "kvsieve/stage_info.h"
#include "kvsieve/types.h"

namespace kvsieve::eval {

struct GenerateOptions {
  std::string preset = "needle";  // a name of GeneratePresets()
  std::int64_t tokens = 1024;     // prompt rows
  std::uint64_t seed = 0;
  int layers = 2;
  int query_heads = 8;
  int kv_heads = 2;
  int key_dim = 64;
  int value_dim = 64;
  std::int64_t window = 64;  // recorded prompt queries; more than `tokens` is clipped
  std::int64_t n_eval = 32;  // queries, and rows, after the prompt
  ElementType dtype = ElementType::kF16;
};

// What there is to generate, in the order for `--help`.
std::span<const StageInfo> GeneratePresets();

// Writes a kv-trace that Trace::Open accepts, with out_eval from exact attention, to a temporary
// name, then renames it. The same options give the same bytes on every machine: the noise and the
// functions behind it use nothing but IEEE basic operations and sqrt. Errors name the option.
Status GenerateTrace(const GenerateOptions& options, const std::string& path);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_GENERATE_H_
