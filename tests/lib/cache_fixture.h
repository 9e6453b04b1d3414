// Shared by the tests of lib/: prompts from a seed, caches from a spec, attention read back, and
// allocators that count and fail.
#ifndef KVSIEVE_TESTS_LIB_CACHE_FIXTURE_H_
#define KVSIEVE_TESTS_LIB_CACHE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/cache.h"
#include "kvsieve/targets.h"
#include "tests/oracle/attention_oracle.h"

namespace kvsieve::cache_test {

LayerSpec MakeLayer(int query_heads, int kv_heads, int key_dim, int value_dim);
std::string Describe(const LayerSpec& layer);
std::shared_ptr<const Pipeline> MustParse(std::string_view spec);
Cache MustCreate(std::string_view spec, const std::vector<LayerSpec>& layers,
                 const CacheOptions& options = {});

// f32 elements, uniform in (-sqrt(3), sqrt(3)): unit variance, cheap, the same on every machine.
std::vector<float> UniformRows(std::int64_t count, std::uint64_t seed);
std::vector<TokenPos> Positions(TokenPos first, std::int64_t count);
// The nearest f16, as f32.
std::vector<float> RoundedToF16(std::vector<float> values);

// f32 elements in another element type, with the views the cache takes.
class TypedRows {
 public:
  TypedRows(std::span<const float> values, ElementType type);
  HeadsView HeadMajor(int heads, std::int64_t rows, int dim) const;

 private:
  ElementType type_;
  std::vector<std::uint8_t> bytes_;
};

// The rows of one layer: keys [kv_heads, n, key_dim], values [kv_heads, n, value_dim], where V lies
// in K too; then ValueView is empty.
struct Prompt {
  LayerSpec layer;
  std::vector<TokenPos> positions;
  std::vector<float> keys;
  std::vector<float> values;

  std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
  HeadsView KeyView(std::int64_t first, std::int64_t count) const;
  HeadsView ValueView(std::int64_t first, std::int64_t count) const;
  std::span<const TokenPos> PositionView(std::int64_t first, std::int64_t count) const;
  std::vector<oracle::HeadRows> Heads() const;
};
// The first value_dim elements of each row.
std::vector<float> KeyPrefixes(std::span<const float> keys, int key_dim, int value_dim);
Prompt MakePrompt(const LayerSpec& layer, std::int64_t rows, std::uint64_t seed,
                  TokenPos first_position = 0);

// Rows [first, first + count) of the prompt, as f32.
Status AppendRows(Cache& cache, int layer_index, Phase phase, const Prompt& prompt,
                  std::int64_t first, std::int64_t count);
// The whole prompt in chunks of `chunk` rows (0: at once).
void MustAppend(Cache& cache, int layer_index, const Prompt& prompt, std::int64_t chunk = 0,
                Phase phase = Phase::kPrefill);

// Decoded rows of one head, or of all heads of a layer.
oracle::HeadRows GatherHead(const Cache& cache, int layer_index, int head);
std::vector<oracle::HeadRows> GatherLayer(const Cache& cache, int layer_index);

struct Attended {
  std::vector<float> out;
  std::vector<float> lse;
};
// Attend with out and lse poisoned before. queries f32 [query_heads, n, key_dim].
Attended MustAttend(const Cache& cache, int layer_index, std::span<const float> queries,
                    std::span<const TokenPos> positions, const AttendParams& params = {});

// Per query: |out - exact|_2, |exact|_2.
struct OutputError {
  double error = 0.0;
  double norm = 0.0;
  double relative() const { return norm > 0 ? error / norm : error; }
};
std::vector<OutputError> OutputErrors(const Attended& attended, const oracle::Attention& exact,
                                      int value_dim);
// Every query within `relative` of the oracle's output and lse within `lse_bound`.
void ExpectAttentionNear(const Attended& attended, const oracle::Attention& exact, int value_dim,
                         double relative, double lse_bound);

// How far a kernel may be from exact arithmetic over the same decoded rows.
//   query   its elements are rounded to 16 bits of the largest, each off by less than
//           u = 2^-15 |q|, independently: a logit is off by less than 4 u |k| scale
//   weight  rounded likewise, each off by less than 2^-15 of the largest weight
// A softmax whose logits are off by d moves its output by less than 2 d max|v|.
//
// Keys of up to 5 bits on fused kernels: the query has one byte a dim, in the worst case steps of
// 1/64 of its largest element, which is at most 5 |q| / sqrt(dim) (uniform elements, or Gaussian
// ones after a rotation). The errors are independent, so six deviations of a logit are
// 6 * 0.29 / 64 * 5 / sqrt(dim) |q| |k| scale, and independent from row to row: they move the
// output by sqrt(sum of w^2) <= sqrt(largest weight) as much as one common error would.
enum class QueryRounding : std::uint8_t { kSixteenBits, kByte };
// Of a spec's main store, "none | kv=int4".
QueryRounding RoundingOf(std::string_view spec, const LayerSpec& layer);

struct KernelBound {
  double max_key = 0.0;    // largest |k|, decoded, twice where a mean is taken off
  double max_value = 0.0;  // largest |v|
  double rows = 0.0;
};
KernelBound BoundOf(const LayerSpec& layer, std::span<const oracle::HeadRows> heads);
// Every query within that bound.
void ExpectWithinKernelBound(const LayerSpec& layer, std::span<const oracle::HeadRows> heads,
                             std::span<const float> queries, const Attended& attended,
                             const oracle::Attention& exact,
                             QueryRounding rounding = QueryRounding::kSixteenBits);

// Everything that a failed call must leave alone, as text: rows, positions, decoded rows (bit by
// bit) and the report; with `reserved` also memory held for later rows.
enum class WithReserve : std::uint8_t { kNo, kYes };
std::string StateOf(const Cache& cache, WithReserve reserve = WithReserve::kYes);
std::string BytesText(const ByteReport& report, WithReserve reserve = WithReserve::kYes);

// What a test of refused memory lives through.
struct FaultCase {
  const char* spec;
  int window;  // sliding window of the layer
};
// Else GoogleTest prints its bytes, padding included, which memcheck reports.
inline std::ostream& operator<<(std::ostream& out, const FaultCase& fault_case) {
  return out << fault_case.spec;
}

// Counts what is held; refuses the `fail_at`-th request from now (0 = the next one, -1 = never).
class TestAllocator final : public Allocator {
 public:
  enum class Fail : std::uint8_t { kAllFromOneOn, kOne };
  ~TestAllocator() override { EXPECT_EQ(live_bytes, 0) << "memory was not given back"; }
  void* Allocate(std::size_t bytes) override;
  void Deallocate(void* memory, std::size_t bytes) override;

  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;
  int refusals = 0;
  int fail_at = -1;
  Fail fail = Fail::kAllFromOneOn;
};

// `workers` threads that take tasks in an unknown order.
class Threads final : public Parallel {
 public:
  explicit Threads(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void Run(std::int64_t tasks, TaskFn fn, void* context) override;

 private:
  int workers_;
};

// Runs `body` once on every target the CPU has; restores the best one.
template <class Body>
void OnEveryTarget(Body body) {
  for (const std::string_view target : SupportedTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(SelectTarget(target).ok());
    body();
  }
  ASSERT_TRUE(SelectTarget("").ok());
}

}  // namespace kvsieve::cache_test

#endif  // KVSIEVE_TESTS_LIB_CACHE_FIXTURE_H_
