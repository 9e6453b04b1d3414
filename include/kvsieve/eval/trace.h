// Recorded attention inputs of a real (or synthetic) model: "kv-trace 1", a safetensors file.
// The format is in docs/trace-format.md.
//
//   KVS_ASSIGN_OR_RETURN(Trace trace, Trace::Open("capture.safetensors"));
//   for (const TraceLayer& layer : trace.layers()) Use(layer.spec, layer.keys);
#ifndef KVSIEVE_EVAL_TRACE_H_
#define KVSIEVE_EVAL_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve::eval {

// One recorded layer. The views are owned by the Trace; element types may differ between tensors.
struct TraceLayer {
  LayerSpec spec;            // spec.layer is the model's number, read from the tensor names
  HeadsView keys;            // [kv_heads, tokens, key_dim]
  HeadsView values;          // [kv_heads, tokens, value_dim]
  HeadsView window_queries;  // [query_heads, window, key_dim], post-RoPE, unscaled
  HeadsView eval_queries;    // [query_heads, n_eval, key_dim]
  HeadsView eval_keys;       // [kv_heads, n_eval, key_dim]; data null when not recorded
  HeadsView eval_values;     // [kv_heads, n_eval, value_dim]; null exactly when eval_keys is
  HeadsView eval_outputs;    // [query_heads, n_eval, value_dim]; data null when not recorded
};

// A validated trace. Everything is checked before Open returns: sizes, header, names, shapes,
// dtypes, metadata, positions, and NaN or Inf in any recorded row (with layer, head and row).
// Errors are one line: file, where, what, and what to do.
//
// The file stays mapped, not copied, while the Trace lives: nobody may shorten it meanwhile.
class Trace {
 public:
  static Result<Trace> Open(const std::string& path);
  // The same checks on the bytes of a file that are in memory already. `name` stands for the path.
  static Result<Trace> FromBytes(std::vector<std::byte> bytes, const std::string& name);
  ~Trace();
  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;

  const std::string& name() const;                // file name without folder
  const std::vector<TraceLayer>& layers() const;  // by ascending layer number, at least one
  std::int64_t tokens() const;                    // prompt rows, at least 1
  std::int64_t window() const;                    // recorded prompt queries, may be 0
  std::int64_t n_eval() const;                    // queries after the prompt, at least 1
  // All strictly increasing; window positions are prompt positions, eval positions follow them.
  std::span<const TokenPos> positions() const;         // [tokens]
  std::span<const TokenPos> window_positions() const;  // [window]
  std::span<const TokenPos> eval_positions() const;    // [n_eval]
  std::span<const std::int32_t> token_ids() const;     // [tokens], or empty when not recorded
  const std::map<std::string, std::string>& metadata() const;
  std::vector<LayerSpec> LayerSpecs() const;

 private:
  struct Impl;
  explicit Trace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_TRACE_H_
