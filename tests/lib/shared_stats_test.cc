// What a chain's first transform learns about a head lies once, with the first tier, for all tiers
// whose chains begin with it; and tiers that never hold a row learn nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/cache_set.h"
#include "kvsieve/str_cat.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::AppendRows;
using cache_test::ExpectWithinKernelBound;
using cache_test::GatherHead;
using cache_test::GatherLayer;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAppend;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::MustParse;
using cache_test::Prompt;
using cache_test::QueryRounding;
using cache_test::TestAllocator;
using cache_test::UniformRows;

constexpr int kDim = 64;
constexpr std::int64_t kRows = 300;
constexpr std::int64_t kMeanBytes = kDim * sizeof(float);
// K of tiers 0 and 1 share a mean, V of tiers 0 and 2.
constexpr std::string_view kSpec =
    "random(budget=80%) | k=center+int8, v=center+int4 | cold(25%)={k=center+turbo3, v=int4} | "
    "cold(20%)={k=int8, v=center+turbo2} | exact_sinks=3 | tail=10";

LayerSpec Layer() { return MakeLayer(4, 2, kDim, kDim); }

// Rows around a mean far from zero.
Prompt OffCentre(std::uint64_t seed, std::int64_t rows = kRows, TokenPos first = 0) {
  Prompt prompt = MakePrompt(Layer(), rows, seed, first);
  for (std::size_t i = 0; i < prompt.keys.size(); ++i) prompt.keys[i] += 3;
  for (std::size_t i = 0; i < prompt.values.size(); ++i) prompt.values[i] -= 2;
  return prompt;
}

Cache Finished(std::string_view spec, const Prompt& prompt, const CacheOptions& options = {}) {
  Cache cache = MustCreate(spec, {prompt.layer}, options);
  MustAppend(cache, 0, prompt);
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

std::int64_t MetadataBytes(std::string_view spec, const Prompt& prompt) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const Cache cache = Finished(spec, prompt, options);
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
  return cache.Report().metadata_bytes;
}

// f32 [rows, dim].
class RowsIn final : public RowSource {
 public:
  RowsIn(const std::vector<float>& elements, int dim) : elements_(elements), dim_(dim) {}
  std::int64_t rows() const override { return std::ssize(elements_) / dim_; }
  int dim() const override { return dim_; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    std::copy_n(elements_.begin() + first * dim_, count * dim_, out);
  }

 private:
  const std::vector<float>& elements_;
  int dim_;
};

// One side of one head of a cache whose K and V have the same dim: rows as tiers hold them.
class StoredSide {
 public:
  StoredSide(const Cache& cache, const Prompt& prompt, int head, Side side)
      : prompt_(prompt), head_(head), side_(side), held_(GatherHead(cache, 0, head)) {
    tiers_.resize(held_.positions.size());
    EXPECT_TRUE(cache.RowTiers(0, head, tiers_).ok());
  }

  // The prompt's rows that these tiers hold.
  std::vector<float> RowsOf(const std::vector<int>& tiers) const {
    const std::int64_t first = head_ * prompt_.rows();
    return Chosen(side_ == Side::kKey ? prompt_.keys : prompt_.values, tiers,
                  [&](std::size_t i) { return first + held_.positions[i]; });
  }
  std::vector<float> DecodedOf(int tier) const {
    return Chosen(side_ == Side::kKey ? held_.keys : held_.values, {tier},
                  [](std::size_t i) { return static_cast<std::int64_t>(i); });
  }

 private:
  // row_of(i): where held row i lies in `all`.
  template <class RowOf>
  std::vector<float> Chosen(const std::vector<float>& all, const std::vector<int>& tiers,
                            RowOf row_of) const {
    const int dim = prompt_.layer.key_dim;
    std::vector<float> rows;
    for (std::size_t i = 0; i < tiers_.size(); ++i) {
      if (std::ranges::find(tiers, tiers_[i]) == tiers.end()) continue;
      const auto row = all.begin() + row_of(i) * dim;
      rows.insert(rows.end(), row, row + dim);
    }
    return rows;
  }

  const Prompt& prompt_;
  int head_;
  Side side_;
  oracle::HeadRows held_;
  std::vector<std::int32_t> tiers_;
};

// `rows` as a chain stores them that learnt from them, but its first transform from `sharing`.
std::vector<float> Restored(const Chain& chain, std::vector<float> rows,
                            const std::vector<float>& sharing) {
  const int dim = chain.dim();
  std::vector<float> first(static_cast<std::size_t>(chain.first_stats_floats()));
  std::vector<float> rest(static_cast<std::size_t>(chain.stats_floats()) - first.size() + 1);
  EXPECT_TRUE(chain.LearnFirst(RowsIn(sharing, dim), first.data()).ok());
  EXPECT_TRUE(chain.LearnRest(RowsIn(rows, dim), first.data(), rest.data()).ok());
  const ChainStats stats(first.data(), rest.data());
  alignas(64) std::uint8_t memory[16 * kDim * sizeof(float)];
  EXPECT_LE(chain.codec().BlockBytes(16), sizeof memory);
  for (std::size_t begin = 0; begin < rows.size(); begin += static_cast<std::size_t>(dim)) {
    std::ranges::fill(memory, std::uint8_t{0});
    const BlockRef block{memory, 16};
    EXPECT_TRUE(chain.Encode(stats, rows.data() + begin, 1, block, 0).ok());
    chain.Decode(stats, block, 0, 1, rows.data() + begin);
  }
  return rows;
}

// Of K tiers 0 and `key_sharer` share a mean, of V tiers 0 and `value_sharer`; -1: none does.
void ExpectMeans(const Cache& cache, const Prompt& prompt, const Pipeline& pipeline, int key_sharer,
                 int value_sharer) {
  for (int head = 0; head < prompt.layer.kv_heads; ++head) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const StoredSide stored(cache, prompt, head, side);
      const int sharer = side == Side::kKey ? key_sharer : value_sharer;
      for (int tier = 0; tier < pipeline.tiers(); ++tier) {
        SCOPED_TRACE(StrCat("head ", head, side == Side::kKey ? ", K" : ", V", ", tier ", tier));
        const bool shares = sharer > 0 && (tier == 0 || tier == sharer);
        const auto store = BuildStore(pipeline.StoreFor(0, 1, tier), prompt.layer);
        EXPECT_FALSE(stored.RowsOf({tier}).empty());
        EXPECT_EQ(stored.DecodedOf(tier),
                  Restored(store->chain(side), stored.RowsOf({tier}),
                           stored.RowsOf(shares ? std::vector{0, sharer} : std::vector{tier})));
      }
    }
  }
}

TEST(SharedStats, TheMeanIsThatOfTheRowsOfAllTiersThatShareIt) {
  const Prompt prompt = OffCentre(1);
  ExpectMeans(Finished(kSpec, prompt), prompt, *MustParse(kSpec), 1, 2);
}

TEST(SharedStats, AttentionIsThatOverTheRowsHeld) {
  const Prompt prompt = OffCentre(2);
  const Cache cache = Finished(kSpec, prompt);
  const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
  const std::vector<float> queries = UniformRows(4 * kDim, 3);
  const std::vector<TokenPos> positions = {kRows};
  ExpectWithinKernelBound(Layer(), heads, queries, MustAttend(cache, 0, queries, positions),
                          oracle::Attend(Layer(), heads, queries, positions), QueryRounding::kByte);
}

// int8 and int4 learn nothing, and the same rows stay: what is more is statistics.
TEST(SharedStats, TiersPayForAMeanOnce) {
  const Prompt prompt = OffCentre(3);
  const auto metadata = [&](std::string_view first, std::string_view colder) {
    return MetadataBytes(StrCat("random(budget=80%) | ", first, " | cold(30%)={", colder,
                                "} | cold(20%)={", colder, "} | exact_sinks=4"),
                         prompt);
  };
  const std::int64_t none = metadata("kv=int8", "kv=int4");
  EXPECT_EQ(metadata("k=center+int8, v=int8", "k=center+int4, v=int4"), none + 2 * kMeanBytes);
  EXPECT_EQ(metadata("kv=center+int8", "kv=center+int4"), none + 2 * 2 * kMeanBytes);
  // Sides are apart, and only the first transform is shared, with the first tier.
  EXPECT_EQ(metadata("k=center+int8, v=int8", "k=int4, v=center+int4"),
            none + 2 * (1 + 2) * kMeanBytes);
  EXPECT_EQ(metadata("k=int8, v=int8", "k=center+int4, v=int4"), none + 2 * 2 * kMeanBytes);
  EXPECT_EQ(metadata("k=center+int8, v=int8", "k=channel_scale+int4, v=int4"),
            none + 2 * 3 * kMeanBytes);
  EXPECT_EQ(metadata("k=center+channel_scale+int8, v=int8", "k=center+channel_scale+int4, v=int4"),
            none + 2 * (1 + 3) * kMeanBytes);
  EXPECT_EQ(metadata("k=hadamard+center+int8, v=int8", "k=hadamard+center+int4, v=int4"),
            none + 2 * 3 * kMeanBytes);
}

TEST(SharedStats, TiersThatNeverHoldARowHaveNone) {
  const Prompt prompt = OffCentre(4);
  const auto metadata = [&](std::string_view first, std::string_view second,
                            std::string_view options) {
    return MetadataBytes(StrCat("random(budget=200) | ", first, " | cold(30)={", second,
                                "} | cold(100%)={kv=int2} | exact_sinks=4", options),
                         prompt);
  };
  const std::int64_t none = metadata("kv=int8", "kv=int4", "");
  EXPECT_EQ(metadata("kv=int8", "k=center+int4, v=int4", ""), none);
  // Rows of decode come to the first tier, and to the others where rows are demoted.
  EXPECT_EQ(metadata("k=center+int8, v=int8", "kv=int4", ""), none + 2 * kMeanBytes);
  const char* demote = " | schedule=every(20), demote=yes";
  EXPECT_EQ(metadata("kv=int8", "k=center+int4, v=int4", demote),
            metadata("kv=int8", "kv=int4", demote) + 2 * kMeanBytes);
}

// The first tier's rows of decode are centred by the mean of rows that it does not hold.
TEST(SharedStats, AFirstTierWithoutRowsLearnsFromThoseThatShareItsMean) {
  const Prompt prompt = OffCentre(5);
  constexpr std::string_view kAllCold =
      "random(budget=100%) | k=center+int4, v=int8 | cold(100%)={k=center+int8, v=int8} | "
      "exact_sinks=4";
  Cache cache = Finished(kAllCold, prompt);
  const StoredSide stored(cache, prompt, 0, Side::kKey);
  ASSERT_TRUE(stored.RowsOf({0}).empty());
  const Prompt next = OffCentre(6, 40, kRows);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, next, 0, 40).ok());
  const auto store = BuildStore(MustParse(kAllCold)->StoreFor(0, 1, 0), Layer());
  const std::vector<float> keys(next.keys.begin(), next.keys.begin() + 40 * kDim);
  EXPECT_EQ(StoredSide(cache, prompt, 0, Side::kKey).DecodedOf(0),
            Restored(*store->key, keys, stored.RowsOf({1})));
}

// A fork holds the first tier's floats with its original, and what the others read is in them.
TEST(SharedStats, AForkReadsItsOwnFirstTier) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const Prompt prompt = OffCentre(7);
  constexpr std::string_view kTwoTiers =
      "random(budget=100%) | k=center+int8, v=int8 | cold(30)={k=center+int4, v=int4}";
  Cache cache = Finished(kTwoTiers, prompt, options);
  const std::int64_t alone = allocator.live_bytes;
  Result<Cache> fork = cache.Fork();
  ASSERT_TRUE(fork.ok());
  // A head: 4 exact sinks, 266 rows of int8 in 4 full blocks and an open one, 30 of int4 in one.
  // An int8 row takes its codes and a scale of 2 bytes.
  const std::int64_t shared = 2 * (4 * 64 * 2 * (kDim + 2) + kMeanBytes);
  EXPECT_EQ(fork->Report().shared_bytes, shared);
  EXPECT_EQ(allocator.live_bytes, 2 * alone - shared);
  EXPECT_EQ(TotalReport(std::vector<const Cache*>{&cache, &*fork}).resident_bytes(),
            allocator.live_bytes);
  const Bytes state = Saved(cache);
  cache = Cache(*std::move(fork));
  EXPECT_EQ(allocator.live_bytes, alone);
  ExpectSame(cache, Finished(kTwoTiers, prompt));
  EXPECT_EQ(Saved(cache), state);
  EXPECT_EQ(cache.Report().shared_bytes, 0);
}

// A file of the version before, in which each tier had a mean of its own
// (tests/golden/state_test.cc).
TEST(SharedStats, TiersOfAnOlderStateKeepTheirMeans) {
  Life life;
  life.spec =
      "random(budget=40) | k=center+int8, v=center+int4 | cold(12)={k=center+turbo3, v=int4} | "
      "cold(8)={k=center+int4, v=center+turbo2} | exact_sinks=2";
  life.layers = {MakeLayer(2, 2, 16, 16)};
  life.prompt_rows = 60;
  std::ifstream file(KVS_SOURCE_DIR "/tests/golden/state/v2_means.kvs", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  MemorySource source(std::as_bytes(std::span(text)));
  Result<Cache> loaded = Cache::FromState(source, "golden", {});
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  ExpectMeans(*loaded, MakePrompt(life.layers[0], 60, 0), *MustParse(life.spec), -1, -1);
  // K of two tiers and V of one, in two heads.
  EXPECT_EQ(loaded->Report().metadata_bytes,
            life.At(Stage::kFinished).Report().metadata_bytes + 2 * 3 * 16 * 4);
  Result<Cache> fork = loaded->Fork();
  ASSERT_TRUE(fork.ok());
  Cache again = life.Empty();
  ASSERT_TRUE(LoadBytes(Saved(*loaded), again).ok());
  for (Cache* cache : {&*loaded, &*fork, &again}) life.GoOn(*cache, Stage::kFinished);
  ExpectSame(*fork, *loaded);
  ExpectSame(again, *loaded);
}

}  // namespace
}  // namespace kvsieve::state_test
