// A stretch of a recorded prompt, and the tokens after it, run through a cache as an engine would:
// shared by the property tests.
#ifndef KVSIEVE_TESTS_EVAL_PROMPT_LIFE_H_
#define KVSIEVE_TESTS_EVAL_PROMPT_LIFE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/eval/trace.h"

namespace kvsieve::eval {

// Positions of the rows kept, per layer and head.
using Kept = std::vector<std::vector<TokenPos>>;
Kept KeptBy(const Cache& cache);

class PromptLife {
 public:
  // Looks at the cache after an eviction of all layers; `seen` are the positions appended so far.
  using Check = std::function<void(const Cache&, std::span<const TokenPos> seen)>;

  // The last `rows` rows of the prompt in the first `layers` layers. The trace outlives it.
  PromptLife(const Trace& trace, std::int64_t rows, int layers);

  std::int64_t rows() const { return rows_; }
  int layers() const { return layers_; }
  // Of the prompt rows used, then of decode.
  std::span<const TokenPos> Positions(std::int64_t first, std::int64_t count) const {
    return std::span(positions_)
        .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  std::span<const TokenPos> positions() const { return positions_; }

  // The life under the pipeline's schedule: the prompt in chunks, then all eval rows if it evicts
  // during decode. Evict stage `external` is handed scores.
  Result<Cache> Run(const std::shared_ptr<const Pipeline>& pipeline, std::int64_t chunk,
                    Parallel* parallel = nullptr, const Check& check = nullptr) const;

 private:
  Status AppendChunk(Cache& cache, const Pipeline& pipeline, std::int64_t first,
                     std::int64_t count) const;
  Status Decode(Cache& cache, const Pipeline& pipeline, const Check& check) const;

  const Trace& trace_;
  std::int64_t rows_;
  int layers_;
  std::vector<TokenPos> positions_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_TESTS_EVAL_PROMPT_LIFE_H_
