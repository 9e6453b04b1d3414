// Attention through f16 storage against the double-precision oracle, for every shape and length of
// the grid, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::Prompt;

struct Heads {
  int query, kv;
};
struct Dims {
  int key, value;
};
constexpr Heads kHeads[] = {{1, 1}, {9, 3}, {32, 8}, {28, 4}, {71, 1}};
constexpr Dims kDims[] = {{33, 33},   {64, 64},   {80, 80},   {96, 96}, {128, 128},
                          {192, 192}, {256, 256}, {192, 128}, {64, 80}};
constexpr int kLengths[] = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 4096};

// What the project promises for f16. The oracle sees the same f16 values, so what is left is f32
// arithmetic: a logit is off by at most (key_dim + 4) * 2^-24 * sum|q k| * scale, below 4e-4 here
// (256 dims, |q k| at most 3), a weight by that much in relation, and a sum of 4096 rows in f32
// adds 1e-5 to that.
constexpr double kRelative = 1e-3;
constexpr double kLseBound = 5e-4;

class AttentionGrid : public ::testing::TestWithParam<Heads> {};

// One query after the prompt, and one in the middle of it where the rest is masked.
std::vector<TokenPos> QueryPositions(int rows) { return {rows, rows / 2}; }

void CheckShape(const LayerSpec& layer, int rows, ElementType type) {
  SCOPED_TRACE(cache_test::Describe(layer) + ", " + std::to_string(rows) + " rows of " +
               std::string(ElementName(type)));
  Prompt prompt = cache_test::MakePrompt(layer, rows, 7);
  Cache cache = cache_test::MustCreate("none | kv=f16", {layer});
  const cache_test::TypedRows keys(prompt.keys, type);
  const cache_test::TypedRows values(prompt.values, type);
  ASSERT_TRUE(cache
                  .Append(0, Phase::kPrefill, keys.HeadMajor(layer.kv_heads, rows, layer.key_dim),
                          values.HeadMajor(layer.kv_heads, rows, layer.value_dim), prompt.positions)
                  .ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());

  prompt.keys = cache_test::RoundedToF16(std::move(prompt.keys));
  prompt.values = cache_test::RoundedToF16(std::move(prompt.values));
  const std::vector<TokenPos> positions = QueryPositions(rows);
  const std::vector<float> queries = cache_test::UniformRows(
      std::int64_t{layer.query_heads} * std::ssize(positions) * layer.key_dim, 11);
  const oracle::Attention exact = oracle::Attend(layer, prompt.Heads(), queries, positions);
  cache_test::OnEveryTarget([&] {
    const cache_test::Attended attended = cache_test::MustAttend(cache, 0, queries, positions);
    cache_test::ExpectAttentionNear(attended, exact, layer.value_dim, kRelative, kLseBound);
  });
}

TEST_P(AttentionGrid, F16StorageEqualsTheOracleOnEveryTarget) {
  int turn = 0;
  for (const Dims dims : kDims) {
    ++turn;  // so that every length meets both types
    for (const int rows : kLengths) {
      const LayerSpec layer = MakeLayer(GetParam().query, GetParam().kv, dims.key, dims.value);
      CheckShape(layer, rows, ++turn % 2 == 0 ? ElementType::kF32 : ElementType::kF16);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, AttentionGrid, ::testing::ValuesIn(kHeads),
                         [](const ::testing::TestParamInfo<Heads>& shape) {
                           return std::to_string(shape.param.query) + "over" +
                                  std::to_string(shape.param.kv);
                         });

}  // namespace
}  // namespace kvsieve
