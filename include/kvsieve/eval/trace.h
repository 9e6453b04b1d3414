// Recorded attention inputs of a real (or synthetic) model: "kv-trace 1", a safetensors file.
// The format is in docs/trace-format.md.
#ifndef KVSIEVE_EVAL_TRACE_H_
#define KVSIEVE_EVAL_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve::eval {

// One recorded layer; views point into the mapped file.
struct TraceLayer {
  LayerSpec spec;
  HeadsView keys;          // [kv_heads, tokens, key_dim]
  HeadsView values;        // [kv_heads, tokens, value_dim]
  HeadsView window_queries;  // [query_heads, window, key_dim]
  HeadsView eval_queries;  // [query_heads, n_eval, key_dim]
  HeadsView eval_keys;     // [kv_heads, n_eval, key_dim]; data null when not recorded
  HeadsView eval_values;
  HeadsView eval_outputs;  // [query_heads, n_eval, value_dim]; data null when not recorded
};

// A validated, mapped trace. Everything of spec 5 is checked before Open returns: sizes, header,
// names, shapes, dtypes, positions, and NaN or Inf in K, V, Q (with layer, head and row).
class Trace {
 public:
  static Result<Trace> Open(const std::string& path);
  ~Trace();
  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;

  const std::string& name() const;  // file name without folder
  const std::vector<TraceLayer>& layers() const;
  std::int64_t tokens() const;
  std::int64_t window() const;
  std::int64_t n_eval() const;
  std::span<const TokenPos> positions() const;         // [tokens]
  std::span<const TokenPos> window_positions() const;  // [window]
  std::span<const TokenPos> eval_positions() const;    // [n_eval]
  std::span<const std::int32_t> token_ids() const;     // [tokens], or empty
  const std::map<std::string, std::string>& metadata() const;
  std::vector<LayerSpec> LayerSpecs() const;

 private:
  struct Impl;
  explicit Trace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_TRACE_H_
