// Rows of one head in several precisions: what is stored how, in which order it is read back, and
// that eviction, trim and clone leave codes and tiers alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

constexpr int kDim = 64;
constexpr std::int64_t kRows = 400;
constexpr std::string_view kSpec =
    "key_norm(budget=75%,sinks=4) | k=int8, v=int8 | cold(20%)={k=int4, v=int4(group=row)} | "
    "cold(10%)={kv=int2} | exact_sinks=2 | tail=10";
constexpr std::int64_t kKept = 300;
constexpr std::int64_t kWarm = 80;
constexpr std::int64_t kColdest = 40;
constexpr std::int64_t kExact = 12;

LayerSpec Layer() { return MakeLayer(4, 2, kDim, kDim); }

Cache Finished(std::string_view spec, const Prompt& prompt, const CacheOptions& options = {},
               std::int64_t chunk = 0) {
  Cache cache = MustCreate(spec, {prompt.layer}, options);
  MustAppend(cache, 0, prompt, chunk);
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

// The row of a head as `spec` stores it when it stores every row so.
std::vector<float> DecodedAlone(std::string_view spec, const Prompt& prompt, int head, Side side) {
  const Cache all = Finished(spec, prompt);
  const oracle::HeadRows rows = GatherHead(all, 0, head);
  return side == Side::kKey ? rows.keys : rows.values;
}

bool SameRow(const std::vector<float>& a, std::int64_t row_a, const std::vector<float>& b,
             std::int64_t row_b) {
  return std::equal(a.begin() + row_a * kDim, a.begin() + (row_a + 1) * kDim,
                    b.begin() + row_b * kDim);
}

TEST(Tiers, EachRowIsStoredAsItsTierSays) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 1);
  const Cache cache = Finished(kSpec, prompt);
  for (int head = 0; head < 2; ++head) {
    const oracle::HeadRows held = GatherHead(cache, 0, head);
    ASSERT_EQ(std::ssize(held.positions), kKept);
    EXPECT_TRUE(std::ranges::is_sorted(held.positions));
    for (const Side side : {Side::kKey, Side::kValue}) {
      const std::vector<float>& rows = side == Side::kKey ? held.keys : held.values;
      const bool key = side == Side::kKey;
      std::int64_t found[4] = {};
      const std::vector<float> as[] = {
          DecodedAlone("none | kv=f16 | tail=400", prompt, head, side),
          DecodedAlone("none | kv=int8", prompt, head, side),
          DecodedAlone(key ? "none | kv=int4" : "none | kv=int4(group=row)", prompt, head, side),
          DecodedAlone("none | kv=int2", prompt, head, side)};
      for (std::int64_t r = 0; r < kKept; ++r) {
        for (int how = 0; how < 4; ++how) {
          found[how] += SameRow(rows, r, as[how], held.positions[static_cast<std::size_t>(r)]);
        }
      }
      EXPECT_EQ(found[0], kExact);
      EXPECT_EQ(found[1], kKept - kExact - kWarm - kColdest);
      EXPECT_EQ(found[2], kWarm);
      EXPECT_EQ(found[3], kColdest);
    }
  }
}

TEST(Tiers, RowTiersSayHowEachRowIsStored) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 1);
  Cache cache = Finished(kSpec, prompt);
  std::vector<std::int32_t> tiers(kKept);
  for (int head = 0; head < 2; ++head) {
    ASSERT_TRUE(cache.RowTiers(0, head, tiers).ok());
    const oracle::HeadRows held = GatherHead(cache, 0, head);
    const std::vector<float> as[] = {
        DecodedAlone("none | kv=f16 | tail=400", prompt, head, Side::kKey),
        DecodedAlone("none | kv=int8", prompt, head, Side::kKey),
        DecodedAlone("none | kv=int4", prompt, head, Side::kKey),
        DecodedAlone("none | kv=int2", prompt, head, Side::kKey)};
    for (std::int64_t r = 0; r < kKept; ++r) {
      const auto row = static_cast<std::size_t>(r);
      EXPECT_TRUE(SameRow(held.keys, r, as[1 + tiers[row]], held.positions[row])) << r;
    }
    EXPECT_EQ(std::ranges::count(tiers, Cache::kExactRow), kExact);
    EXPECT_EQ(std::ranges::count(tiers, 1), kWarm);
    EXPECT_EQ(std::ranges::count(tiers, 2), kColdest);
  }
  EXPECT_EQ(cache.RowTiers(0, 0, std::span(tiers).first(5)).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache.RowTiers(0, 2, tiers).error().code, ErrorCode::kInvalidArgument);
  // Rows of a draft are exact while they are open.
  const Prompt draft = MakePrompt(Layer(), 3, 2, static_cast<TokenPos>(kRows));
  MustAppend(cache, 0, draft, 0, Phase::kVerify);
  std::vector<std::int32_t> with_draft(kKept + 3);
  ASSERT_TRUE(cache.RowTiers(0, 1, with_draft).ok());
  EXPECT_TRUE(std::equal(tiers.begin(), tiers.end(), with_draft.begin()));
  EXPECT_EQ(std::count(with_draft.end() - 3, with_draft.end(), Cache::kExactRow), 3);
  ASSERT_TRUE(cache.TrimToPosition(static_cast<TokenPos>(kRows)).ok());
  // A saved state brings them back.
  MemorySink sink;
  ASSERT_TRUE(cache.Save("", sink).ok());
  MemorySource source(sink.bytes());
  const Result<Cache> loaded = Cache::FromState(source, "", {});
  ASSERT_TRUE(loaded.ok());
  std::vector<std::int32_t> again(kKept);
  ASSERT_TRUE(loaded->RowTiers(0, 1, again).ok());
  EXPECT_EQ(again, tiers);
}

// Whatever the tiers: a byte a row where one of 32 positions is in its tier, 2 where one of 8192
// is, and 6 of rounding for each list (lib/position_store.h); sinks and tail are runs of 4. int8,
// int4 and int2 learn nothing, so that positions are all metadata.
TEST(Tiers, PositionsTakeAByteOrTwoARow) {
  const Prompt prompt = MakePrompt(MakeLayer(1, 1, 16, 16), 3000, 13);
  struct Mix {
    const char* spec;
    std::int64_t bytes_a_row;
  };
  for (const Mix& mix :
       {Mix{"key_norm(budget=100%) | kv=int8 | cold(90%)={kv=int4} | cold(5%)={kv=int2}", 1},
        {"key_norm(budget=50%) | kv=int8 | cold(20%)={kv=int4} | cold(20%)={kv=int2}", 1},
        {"key_norm(budget=12.5%) | kv=int8 | cold(4%)={kv=int4} | cold(4%)={kv=int2} | tail=8", 1},
        {"key_norm(budget=12.5%) | kv=int8 | cold(11%)={kv=int4} | cold(1%)={kv=int2}", 2},
        {"key_norm(budget=2%) | kv=int8 | cold(1%)={kv=int4} | cold(0.5%)={kv=int2}", 2}}) {
    SCOPED_TRACE(mix.spec);
    const Cache cache = Finished(mix.spec, prompt);
    const ByteReport report = cache.Report();
    EXPECT_LE(report.metadata_bytes, mix.bytes_a_row * report.rows_kept + 3 * 6 + 2 * 4);
  }
}

TEST(Tiers, StagedRowsAreExact) {
  const Prompt prompt = MakePrompt(Layer(), 20, 1);
  Cache cache = MustCreate(kSpec, {Layer()});
  MustAppend(cache, 0, prompt, 0);
  std::vector<std::int32_t> tiers(20);
  ASSERT_TRUE(cache.RowTiers(0, 1, tiers).ok());
  EXPECT_EQ(tiers, std::vector<std::int32_t>(20, Cache::kExactRow));
}

// int8: 64 + 2 bytes; int4: 32 + 2 * 4, group=row 32 + 4; int2: 16 + 2 * 4; f32 rows 256.
TEST(Tiers, BytesAreThoseOfEachTier) {
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  const Cache cache = Finished(kSpec, MakePrompt(Layer(), kRows, 1), options);
  const ByteReport report = cache.Report();
  const std::int64_t hot = kKept - kExact - kWarm - kColdest;
  EXPECT_EQ(report.payload_bytes,
            2 * (kExact * 512 + hot * 128 + kWarm * (32 + 32) + kColdest * 32));
  EXPECT_EQ(report.scale_bytes, 2 * (hot * 4 + kWarm * (8 + 4) + kColdest * 16));
  EXPECT_EQ(report.resident_bytes(), allocator.live_bytes);
  EXPECT_EQ(report.rows_kept, 2 * kKept);
}

TEST(Tiers, AttentionIsThatOverTheRowsHeld) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 2);
  const std::vector<TokenPos> positions = {200, kRows};
  const std::vector<float> queries = UniformRows(4 * std::ssize(positions) * kDim, 3);
  OnEveryTarget([&] {
    for (const int workers : {1, 3}) {
      Threads threads(workers);
      AttendParams params;
      params.parallel = &threads;
      const Cache cache = Finished(kSpec, prompt);
      const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
      ExpectWithinKernelBound(
          Layer(), heads, queries, MustAttend(cache, 0, queries, positions, params),
          oracle::Attend(Layer(), heads, queries, positions), QueryRounding::kByte);
    }
  });
}

TEST(Tiers, DoNotDependOnChunksOrThreads) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 4);
  const std::string expected = StateOf(Finished(kSpec, prompt), WithReserve::kNo);
  for (const int chunk : {1, 33, 399}) {
    EXPECT_EQ(StateOf(Finished(kSpec, prompt, {}, chunk), WithReserve::kNo), expected) << chunk;
  }
  Threads threads(3);
  CacheOptions options;
  options.parallel = &threads;
  EXPECT_EQ(StateOf(Finished(kSpec, prompt, options), WithReserve::kNo), expected);
}

// The rows that a store for all layers would hold twice.
TEST(Tiers, LayersWithAStoreOfTheirOwnHaveOneTier) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 5);
  const Cache plain = Finished("key_norm(budget=75%) | k=center+int8, v=int8", prompt);
  const Cache cold = Finished(
      "key_norm(budget=75%) | kv=int4 | cold(50%)={kv=int2} | "
      "layers(0..0)={k=center+int8, v=int8}",
      prompt);
  EXPECT_EQ(StateOf(cold, WithReserve::kYes).substr(0, 200), StateOf(plain).substr(0, 200));
  EXPECT_EQ(BytesText(cold.Report()), BytesText(plain.Report()));
}

TEST(Tiers, DecodeRowsGoToTheFirst) {
  const Prompt prompt = MakePrompt(Layer(), kRows + 50, 6);
  Prompt first = prompt;
  Cache cache = MustCreate(kSpec, {Layer()});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, kRows).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const ByteReport before = cache.Report();
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, kRows, 50).ok());
  EXPECT_EQ(cache.Report().payload_bytes - before.payload_bytes, 2 * 50 * 128);
  EXPECT_TRUE(std::ranges::is_sorted(GatherHead(cache, 0, 0).positions));
}

TEST(Tiers, TrimAndCloneKeepTheRowsOfEachTier) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 7);
  Cache cache = Finished(kSpec, prompt);
  const oracle::HeadRows held = GatherHead(cache, 0, 1);
  const Result<Cache> clone = cache.Fork();
  ASSERT_TRUE(clone.ok());
  EXPECT_EQ(StateOf(*clone, WithReserve::kNo), StateOf(cache, WithReserve::kNo));
  ASSERT_TRUE(cache.TrimToPosition(150, Trim::kAllowInexact).ok());
  const oracle::HeadRows left = GatherHead(cache, 0, 1);
  ASSERT_GT(std::ssize(left.positions), 50);
  for (std::size_t i = 0; i < left.positions.size(); ++i) {
    ASSERT_EQ(left.positions[i], held.positions[i]);
    EXPECT_TRUE(SameRow(left.keys, RowIndex(i), held.keys, RowIndex(i))) << i;
  }
  EXPECT_LT(left.positions.back(), 150);
}

// Rows are ranked as they are stored, each beside its position, and none is encoded again.
TEST(Tiers, EvictionDuringDecodeMovesNoRowToAnotherTier) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 8);
  Cache cache =
      MustCreate("key_norm(budget=200,sinks=4) | kv=int8 | cold(80)={kv=int4} | schedule=every(20)",
                 {Layer()});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 300).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t row = 300; row < kRows; row += 20) {
    const oracle::HeadRows before = GatherHead(cache, 0, 0);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, row, 20).ok());
    const oracle::HeadRows grown = GatherHead(cache, 0, 0);
    ASSERT_TRUE(cache.Evict(0).ok());
    const oracle::HeadRows after = GatherHead(cache, 0, 0);
    ASSERT_EQ(std::ssize(after.positions), 200);
    // key_norm: the shortest keys as they are stored, and the 4 sinks.
    std::vector<std::pair<float, TokenPos>> ranked;
    for (std::size_t i = 4; i < grown.positions.size(); ++i) {
      float norm = 0;
      for (int d = 0; d < kDim; ++d) norm += grown.keys[i * kDim + d] * grown.keys[i * kDim + d];
      ranked.emplace_back(norm, grown.positions[i]);
    }
    std::sort(ranked.begin(), ranked.end());
    std::set<TokenPos> expected(grown.positions.begin(), grown.positions.begin() + 4);
    for (std::size_t i = 0; i < 196; ++i) expected.insert(ranked[i].second);
    EXPECT_EQ(std::set<TokenPos>(after.positions.begin(), after.positions.end()), expected);
    for (std::size_t i = 0; i < after.positions.size(); ++i) {
      const auto was = std::ranges::lower_bound(grown.positions, after.positions[i]);
      EXPECT_TRUE(SameRow(after.keys, RowIndex(i), grown.keys, was - grown.positions.begin()));
    }
  }
}

TEST(Tiers, ByteBudgetsCountEachTier) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 9);
  const std::int64_t full = kRows * 2 * 2 * 2 * kDim;
  for (const char* factor : {"3", "5", "8", "12"}) {
    SCOPED_TRACE(factor);
    const Cache cache = Finished(
        StrCat("key_norm(budget=", factor, "x) | kv=int8 | cold(25%)={kv=int2} | exact_sinks=1"),
        prompt);
    const std::int64_t limit = full / std::stoi(factor);
    const ByteReport report = cache.Report();
    EXPECT_LE(report.kept_bytes(), limit);
    // One row more of a head would take at most 132 bytes and 4 of its position.
    EXPECT_GT(report.kept_bytes() + 136, limit);
  }
}

// Rows of decode are sealed in groups of the store they go to, whatever the cold store's are.
TEST(Tiers, DecodeRowsAreSealedInGroupsOfTheirOwnStore) {
  const Prompt prompt = MakePrompt(Layer(), 300, 12);
  for (const char* stores : {"kv=int8 | cold(50%)={kv=channel}", "kv=channel | cold(50%)={kv=int8}",
                             "kv=channel | cold(50%)={kv=channel(bits=3,group=64)}"}) {
    SCOPED_TRACE(stores);
    TestAllocator allocator;
    CacheOptions options;
    options.allocator = &allocator;
    Cache cache =
        MustCreate(StrCat("key_norm(budget=100%) | ", stores, " | tail=64"), {Layer()}, options);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 200).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const oracle::HeadRows before = GatherHead(cache, 0, 1);
    EXPECT_EQ(cache.ReportLayer(0).stores.back().bytes.rows_kept, 2 * 100);  // all of the 50 %
    for (std::int64_t row = 200; row < 300; ++row) {
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, row, 1).ok());
    }
    const oracle::HeadRows after = GatherHead(cache, 0, 1);
    ASSERT_EQ(std::ssize(after.positions), 300);
    for (std::int64_t row = 0; row < 136; ++row) {  // rows that were sealed when the prompt ended
      EXPECT_TRUE(SameRow(after.keys, row, before.keys, row)) << row;
    }
    EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
    const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
    const std::vector<float> queries = UniformRows(4 * kDim, 3);
    const std::vector<TokenPos> positions = {300};
    ExpectWithinKernelBound(Layer(), heads, queries, MustAttend(cache, 0, queries, positions),
                            oracle::Attend(Layer(), heads, queries, positions),
                            QueryRounding::kByte);
  }
}

// A codec that seals groups leaves a short one in every tier.
TEST(Tiers, GroupsOfRowsMayBeShort) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 10);
  const Cache cache = Finished(
      "key_norm(budget=75%) | k=channel, v=int4 | cold(33%)={k=channel(bits=3,group=16), v=int2} | "
      "tail=32",
      prompt);
  const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
  EXPECT_TRUE(std::ranges::is_sorted(heads[0].positions));
  const std::vector<TokenPos> positions = {kRows};
  const std::vector<float> queries = UniformRows(4 * kDim, 3);
  ExpectWithinKernelBound(Layer(), heads, queries, MustAttend(cache, 0, queries, positions),
                          oracle::Attend(Layer(), heads, queries, positions), QueryRounding::kByte);
}

}  // namespace
}  // namespace kvsieve::cache_test
