#include "kvsieve/recommendation.h"

#include <gtest/gtest.h>

#include <string_view>

#include "kvsieve/pipeline.h"

namespace kvsieve {
namespace {

double BitsOfAValue(std::string_view spec, int dim) {
  const Result<Pipeline> pipeline = Pipeline::Parse(spec);
  EXPECT_TRUE(pipeline.ok()) << spec << ": " << pipeline.message();
  const LayerSpec layer{.query_heads = 1, .kv_heads = 1, .key_dim = dim, .value_dim = dim};
  const Result<LayerStore> store = BuildStore(pipeline->main_store(), layer);
  EXPECT_TRUE(store.ok()) << store.message();
  const RowBytes key = store->key->codec().row_bytes();
  const RowBytes value = store->value->codec().row_bytes();
  return 8.0 * static_cast<double>(key.codes + key.scales + value.codes + value.scales) / (2 * dim);
}

const StorageRecommendation* OfBits(double bits) {
  for (const StorageRecommendation& one : StorageRecommendations()) {
    if (one.bits == bits) return &one;
  }
  return nullptr;
}

TEST(Recommendation, EverySpecIsAPipeline) {
  for (const Recommendation& one : Recommendations()) {
    const Result<Pipeline> pipeline = Pipeline::Parse(one.spec);
    EXPECT_TRUE(pipeline.ok()) << one.spec << ": " << pipeline.message();
  }
}

TEST(Recommendation, StoresKeepAllRowsAndHaveTheBitsThatTheyClaim) {
  ASSERT_FALSE(StorageRecommendations().empty());
  for (const StorageRecommendation& one : StorageRecommendations()) {
    const Result<Pipeline> pipeline = Pipeline::Parse(one.spec);
    ASSERT_TRUE(pipeline.ok()) << one.spec << ": " << pipeline.message();
    EXPECT_EQ(pipeline->evictor(), nullptr) << one.spec;
    EXPECT_EQ(BitsOfAValue(one.spec, 128), one.bits) << one.spec;
  }
}

TEST(Recommendation, StoresGetSmallerDownTheList) {
  double last = 16;
  for (const StorageRecommendation& one : StorageRecommendations()) {
    EXPECT_LT(one.bits, last) << one.spec;
    last = one.bits;
  }
}

// "At equal bytes" in docs/storage.md: a row of the recommended store has no more bytes than one of
// its peer's, at the dims that models have.
TEST(Recommendation, StoresAreNoLargerThanTheirPeers) {
  struct Pair {
    std::string_view peer;
    double bits;  // of the recommended store
  };
  constexpr Pair kPairs[] = {{"none | kv=q8_0", 8.125},          {"none | k8v4", 4.625},
                             {"none | kv=q4_0", 4.125},          {"none | 4bit_nc", 4.125},
                             {"none | kv=hadamard+q4_0", 4.125}, {"none | k3v4_nc", 3.625},
                             {"none | 3bit_nc", 3.125},          {"none | kivi2", 2.625}};
  for (const Pair& pair : kPairs) {
    const StorageRecommendation* own = OfBits(pair.bits);
    ASSERT_NE(own, nullptr) << pair.bits;
    for (const int dim : {64, 128, 256}) {
      EXPECT_LE(BitsOfAValue(own->spec, dim), BitsOfAValue(pair.peer, dim))
          << pair.peer << " at dim " << dim;
    }
  }
}

}  // namespace
}  // namespace kvsieve
