// Codecs that store groups of rows: which rows are sealed, how many bytes they take, and what a
// trim and an eviction leave of a group.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

constexpr int kKeyDim = 64;
constexpr int kValueDim = 48;
constexpr int kGroup = 32;
constexpr int kSinks = 4;
constexpr int kTail = 40;
constexpr std::string_view kSpec = "none | k=channel, v=int4(group=row) | tail=40";

LayerSpec Layer() { return MakeLayer(4, 2, kKeyDim, kValueDim); }

Cache Finished(std::string_view spec, const Prompt& prompt, std::int64_t rows,
               std::int64_t chunk = 0) {
  Cache cache = MustCreate(spec, {Layer()});
  for (std::int64_t first = 0; first < rows; first += chunk == 0 ? rows : chunk) {
    const std::int64_t count = chunk == 0 ? rows : std::min(chunk, rows - first);
    EXPECT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, first, count).ok());
  }
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

bool IsExact(const oracle::HeadRows& head, const Prompt& prompt, int head_index, std::int64_t row) {
  const oracle::HeadRows all = prompt.Heads()[static_cast<std::size_t>(head_index)];
  const auto same = [row](const std::vector<float>& a, const std::vector<float>& b, int dim) {
    return std::equal(a.begin() + row * dim, a.begin() + (row + 1) * dim, b.begin() + row * dim);
  };
  return same(head.keys, all.keys, kKeyDim) && same(head.values, all.values, kValueDim);
}

// Sinks and the last rows are as they came, at least kTail of those; between them whole groups.
std::int64_t SealedRows(std::int64_t rows) {
  return std::max<std::int64_t>(0, rows - kSinks - kTail) / kGroup * kGroup;
}

void ExpectBytes(const Cache& cache, std::int64_t sealed, std::int64_t groups) {
  const ByteReport report = cache.Report();
  const std::int64_t heads = Layer().kv_heads;
  const std::int64_t exact = cache.rows(0, 0) - sealed;
  EXPECT_EQ(report.payload_bytes,
            heads * (exact * 4 * (kKeyDim + kValueDim) + sealed * (kKeyDim / 4 + kValueDim / 2)));
  EXPECT_EQ(report.scale_bytes, heads * (groups * 4 * kKeyDim + sealed * 4));
}

TEST(RowGroups, OnlyWholeGroupsLeaveTheTail) {
  const Prompt prompt = MakePrompt(Layer(), 300, 1);
  for (const int rows : {3, 75, 76, 107, 108, 300}) {
    SCOPED_TRACE(rows);
    const Cache cache = Finished(kSpec, prompt, rows);
    const std::int64_t sealed = SealedRows(rows);
    ExpectBytes(cache, sealed, sealed / kGroup);
    for (int head = 0; head < 2; ++head) {
      const oracle::HeadRows held = GatherHead(cache, 0, head);
      ASSERT_EQ(std::ssize(held.positions), rows);
      for (std::int64_t row = 0; row < rows; ++row) {
        const bool in_group = row >= kSinks && row < kSinks + sealed;
        EXPECT_EQ(IsExact(held, prompt, head, row), !in_group) << row;
      }
    }
  }
}

// Full groups at their places: 2 bits a key element, 4 bytes a channel of 32 rows.
TEST(RowGroups, ReportAddsUpToWhatIsResident) {
  const Prompt prompt = MakePrompt(Layer(), 300, 2);
  TestAllocator allocator;
  CacheOptions options;
  options.allocator = &allocator;
  Cache cache = MustCreate(kSpec, {Layer()}, options);
  MustAppend(cache, 0, prompt);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
  ASSERT_TRUE(cache.TrimToPosition(150, Trim::kExact).ok());
  EXPECT_EQ(cache.Report().resident_bytes(), allocator.live_bytes);
}

TEST(RowGroups, DoNotDependOnHowRowsArrive) {
  const Prompt prompt = MakePrompt(Layer(), 500, 3);
  const Cache at_once = Finished(kSpec, prompt, 500);
  for (const int chunk : {1, 7, 33, 100}) {
    SCOPED_TRACE(chunk);
    EXPECT_EQ(StateOf(Finished(kSpec, prompt, 500, chunk), WithReserve::kNo),
              StateOf(at_once, WithReserve::kNo));
    // Decode seals group by group, at the same places.
    Cache decoded = Finished(kSpec, prompt, 90);
    for (std::int64_t first = 90; first < 500; first += chunk) {
      const std::int64_t count = std::min<std::int64_t>(chunk, 500 - first);
      ASSERT_TRUE(AppendRows(decoded, 0, Phase::kDecode, prompt, first, count).ok());
    }
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(GatherHead(decoded, 0, head).keys, GatherHead(at_once, 0, head).keys);
      EXPECT_EQ(GatherHead(decoded, 0, head).values, GatherHead(at_once, 0, head).values);
    }
    ExpectBytes(decoded, SealedRows(500), SealedRows(500) / kGroup);
  }
}

void ExpectAttentionOfDecodedRows(const Cache& cache, std::vector<TokenPos> positions) {
  const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
  const std::vector<float> queries =
      UniformRows(std::int64_t{Layer().query_heads} * std::ssize(positions) * kKeyDim, 9);
  ExpectWithinKernelBound(Layer(), heads, queries, MustAttend(cache, 0, queries, positions),
                          oracle::Attend(Layer(), heads, queries, positions));
}

// A trim into a group: rows before it keep their bytes, and all scales are still there; the rows
// that come next wait for a group of their own.
TEST(RowGroups, ATrimLeavesAShortGroup) {
  const Prompt prompt = MakePrompt(Layer(), 400, 4);
  const Cache whole = Finished(kSpec, prompt, 400);
  for (const int end : {kSinks + 3 * kGroup, kSinks + 3 * kGroup + 1, kSinks + 4 * kGroup - 1, 5}) {
    SCOPED_TRACE(end);
    Cache cache = Finished(kSpec, prompt, 400);
    ASSERT_TRUE(cache.TrimToPosition(end, Trim::kExact).ok());
    const std::int64_t short_rows = end - kSinks;
    const std::int64_t short_groups = (short_rows + kGroup - 1) / kGroup;
    ExpectBytes(cache, short_rows, short_groups);
    for (std::int64_t first = end; first < 400; first += 13) {
      const std::int64_t count = std::min<std::int64_t>(13, 400 - first);
      ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, first, count).ok());
      ExpectAttentionOfDecodedRows(
          cache, {static_cast<TokenPos>(first + count - 1), static_cast<TokenPos>(end / 2),
                  static_cast<TokenPos>(end)});
    }
    const std::int64_t sealed_again = std::max(0, 400 - end - kTail) / kGroup * kGroup;
    ExpectBytes(cache, short_rows + sealed_again, short_groups + sealed_again / kGroup);
    const Result<Cache> clone = cache.Fork();
    ASSERT_TRUE(clone.ok());
    EXPECT_EQ(StateOf(*clone, WithReserve::kNo), StateOf(cache, WithReserve::kNo));
    for (int head = 0; head < 2; ++head) {
      const oracle::HeadRows held = GatherHead(cache, 0, head);
      const oracle::HeadRows before = GatherHead(whole, 0, head);
      ASSERT_EQ(held.positions, before.positions);
      EXPECT_TRUE(
          std::equal(before.keys.begin(), before.keys.begin() + end * kKeyDim, held.keys.begin()));
      for (std::int64_t row = end; row < 400; ++row) {
        EXPECT_EQ(IsExact(held, prompt, head, row), row >= end + sealed_again) << row;
      }
    }
  }
}

// Many trims into groups: blocks that end early are found again.
TEST(RowGroups, SurviveManyTrims) {
  const Prompt prompt = MakePrompt(Layer(), 600, 5);
  Cache cache = Finished("none | kv=channel(group=16) | exact_sinks=0, tail=16", prompt, 100);
  std::int64_t at = 100;
  for (int round = 0; round < 40; ++round) {
    const std::int64_t more = std::min<std::int64_t>(17 + round * 5 % 90, 600 - at);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, at, more).ok());
    at = std::max<std::int64_t>(1, at + more - (11 + round * 7 % 80));
    const std::vector<oracle::HeadRows> before = GatherLayer(cache, 0);
    ASSERT_TRUE(cache.TrimToPosition(static_cast<TokenPos>(at), Trim::kExact).ok());
    ASSERT_EQ(cache.rows(0, 0), at);
    const std::vector<oracle::HeadRows> after = GatherLayer(cache, 0);
    for (int head = 0; head < 2; ++head) {
      ASSERT_TRUE(
          std::equal(after[head].keys.begin(), after[head].keys.end(), before[head].keys.begin()));
    }
    ExpectAttentionOfDecodedRows(cache, {static_cast<TokenPos>(at / 2), static_cast<TokenPos>(at)});
  }
}

// On a sliding layer whole blocks fall away; the groups that stay are what they were.
TEST(RowGroups, SlideOutByBlocks) {
  LayerSpec layer = Layer();
  layer.sliding_window = 100;
  const Prompt prompt = MakePrompt(layer, 500, 6);
  Cache cache = MustCreate("none | kv=channel | exact_sinks=0", {layer});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 90).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (std::int64_t row = 90; row < 500; ++row) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, row, 1).ok());
    // At most a block's rows that no query sees, beside the window.
    ASSERT_LE(cache.rows(0, 0), 100 + kBlockRows);
  }
  const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
  const std::vector<TokenPos> positions = {499};
  const std::vector<float> queries = UniformRows(4 * kKeyDim, 10);
  ExpectWithinKernelBound(layer, heads, queries, MustAttend(cache, 0, queries, positions),
                          oracle::Attend(layer, heads, queries, positions));
}

// What a budget in bytes counts before the rows are stored is what the report says afterwards.
TEST(RowGroups, CountInByteBudgets) {
  const Prompt prompt = MakePrompt(Layer(), 600, 7);
  for (const int kilobytes : {30, 60, 90}) {
    const std::int64_t budget = kilobytes * 1000;
    const std::string evict = StrCat("key_norm(budget=", kilobytes, "kB)");
    const Cache cache =
        Finished(StrCat(evict, " | k=channel, v=int4(group=row) | tail=40"), prompt, 600);
    EXPECT_LE(cache.Report().kept_bytes(), budget);
    // One more row does not fit: at most an exact one and its position.
    EXPECT_GT(cache.Report().kept_bytes(), budget - 4 * (kKeyDim + kValueDim) - 100);
  }
}

}  // namespace
}  // namespace kvsieve::cache_test
