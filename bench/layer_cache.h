// One layer of a model as benchmarks of a whole cache use it: 32 query heads, mostly on 8 KV heads,
// of 128 dims, random rows, one decode step whose result is checked.
#ifndef KVSIEVE_BENCH_LAYER_CACHE_H_
#define KVSIEVE_BENCH_LAYER_CACHE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/float16.h"

namespace kvsieve::bench {

inline constexpr int kQueryHeads = 32;
inline constexpr int kKvHeads = 8;
inline constexpr int kDim = 128;

// Both end the program.
[[noreturn]] void Fail(const std::string& what);
void Check(const Status& status);

struct Prompt {
  explicit Prompt(std::int64_t rows, int heads = kKvHeads);
  std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
  int kv_heads;
  std::vector<TokenPos> positions;
  std::vector<F16> keys;
  std::vector<F16> values;
};

// A cache that has seen the prompt and its last queries, not finished yet.
Cache StagedCache(const std::string& spec, const Prompt& prompt, Allocator& allocator);

// One token, or several of a draft, that attend over all rows of a finished cache, on one thread.
class DecodeStep {
 public:
  // Runs one step and ends the program when its result is wrong.
  DecodeStep(const Cache& cache, std::int64_t rows, int tokens = 1);
  void Run();

 private:
  void CheckKvHead(int kv_head) const;

  const Cache& cache_;
  std::vector<TokenPos> positions_;  // of the tokens
  std::vector<float> queries_;
  std::vector<float> out_;
  AttendScratch scratch_;
};

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_LAYER_CACHE_H_
