// Shared by the tests of quant/: chains from text, rows from a seed, blocks with memory.
#ifndef KVSIEVE_TESTS_QUANT_QUANT_TEST_UTIL_H_
#define KVSIEVE_TESTS_QUANT_QUANT_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/codec.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/targets.h"
#include "kvsieve/types.h"

namespace kvsieve::quant_test {

// "center+int4(group=32,sym)" as the spec parser would hand it over. Well-formed text only; columns
// count from 1.
std::vector<SpecCall> ParseChain(std::string_view text);

std::shared_ptr<const Chain> MakeChainOrDie(std::string_view text, int dim, Side side);
// The message of the error that MakeChain gives; empty when it gives none.
std::string MakeChainError(std::string_view text, int dim, Side side = Side::kKey);

// Rows of one head in memory, f32 [rows, dim].
class Rows final : public RowSource {
 public:
  Rows(std::int64_t rows, int dim) : dim_(dim), values_(static_cast<std::size_t>(rows * dim)) {}

  std::int64_t rows() const override { return static_cast<std::int64_t>(values_.size()) / dim_; }
  int dim() const override { return dim_; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    std::memcpy(out, row(first), static_cast<std::size_t>(count) * dim_ * sizeof(float));
  }

  float* row(std::int64_t r) { return values_.data() + r * dim_; }
  const float* row(std::int64_t r) const { return values_.data() + r * dim_; }
  std::vector<float>& values() { return values_; }
  const std::vector<float>& values() const { return values_; }

 private:
  int dim_;
  std::vector<float> values_;
};

// Independent N(0, 1) elements.
Rows GaussianRows(std::int64_t rows, int dim, unsigned seed);

// A zeroed block, 64-byte aligned as lib allocates it.
class Block {
 public:
  Block(const Codec& codec, int capacity_rows);
  BlockRef ref() { return {bytes(), capacity_}; }
  ConstBlockRef ref() const { return {bytes(), capacity_}; }
  std::size_t size() const { return size_; }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(memory_.data()); }
  const std::uint8_t* bytes() const {
    return reinterpret_cast<const std::uint8_t*>(memory_.data());
  }

 private:
  struct alignas(64) Line {
    std::uint8_t bytes[64];
  };
  int capacity_;
  std::size_t size_;
  std::vector<Line> memory_;
};

// All rows of one head, learnt and encoded by one chain.
struct Stored {
  std::shared_ptr<const Chain> chain;
  std::vector<float> stats;
  std::vector<Block> blocks;

  // Decoded rows, original basis.
  Rows Decode(std::int64_t rows) const;
};
Stored Store(std::shared_ptr<const Chain> chain, const Rows& rows);

// Mean over rows of |x - x'|^2 / |x|^2, in double; zero rows are left out.
double NormalizedError(const Rows& rows, const Rows& decoded);

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

}  // namespace kvsieve::quant_test

#endif  // KVSIEVE_TESTS_QUANT_QUANT_TEST_UTIL_H_
