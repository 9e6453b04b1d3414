// A batch of caches: members of any length, forks that share, and totals that count memory once.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::cache_test {
namespace {

using state_test::Bytes;
using state_test::ExpectSame;
using state_test::Saved;

CacheSet MustCreateSet(const char* spec, const LayerSpec& layer, Allocator* allocator = nullptr) {
  CacheOptions options;
  options.allocator = allocator;
  Result<CacheSet> set = CacheSet::Create(MustParse(spec), {layer}, options);
  EXPECT_TRUE(set.ok()) << set.message();
  return *std::move(set);
}

// The prompt, finished.
void Fill(Cache& cache, const Prompt& prompt) {
  MustAppend(cache, 0, prompt);
  ASSERT_TRUE(cache.FinishPrefill().ok());
}

Result<int> AddState(CacheSet& set, const Bytes& state, std::string_view identity = "test") {
  MemorySource source(state);
  return set.AddState(source, identity);
}

// Members at every length, each as if it were alone.
TEST(CacheSet, MembersAreOfAnyLengthAndIndependent) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  const char* spec = "random(budget=70) | kv=int8 | tail=5";
  CacheSet set = MustCreateSet(spec, layer);
  EXPECT_EQ(set.Report().resident_bytes(), 0);
  ByteReport sum;
  for (int i = 0; i < 4; ++i) {
    const Result<int> member = set.Add();
    ASSERT_TRUE(member.ok()) << member.message();
    ASSERT_EQ(*member, i);
    if (i > 0) Fill(set[i], MakePrompt(layer, 40 * i, i));
    Cache alone = MustCreate(spec, {layer});
    if (i > 0) Fill(alone, MakePrompt(layer, 40 * i, i));
    ExpectSame(set[i], alone);
    sum += alone.Report();
  }
  EXPECT_EQ(set.size(), 4);
  EXPECT_EQ(BytesText(set.Report()), BytesText(sum));
  EXPECT_EQ(set.Report().shared_bytes, 0);
}

// A prefix that was saved goes on in two ways; exact attention over prefix and continuation is what
// each answers.
TEST(CacheSet, ASavedPrefixGoesOnInDifferentWays) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  const auto rounded = [&](std::int64_t rows, std::uint64_t seed, TokenPos first) {
    Prompt prompt = MakePrompt(layer, rows, seed, first);
    prompt.keys = RoundedToF16(prompt.keys);
    prompt.values = RoundedToF16(prompt.values);
    return prompt;
  };
  const Prompt shared = rounded(300, 1, 0);
  Bytes state;
  {
    Cache cache = MustCreate("none | kv=f16", {layer});
    Fill(cache, shared);
    state = Saved(cache, "a system prompt");
  }
  const auto pipeline = MustParse("none | kv=f16");
  Result<CacheSet> created = CacheSet::Create(pipeline, {layer}, {});
  ASSERT_TRUE(created.ok()) << created.message();
  CacheSet& batch = *created;
  MemorySource source(state);
  const Result<int> prefix = batch.AddState(source, "a system prompt");
  const Result<int> first_answer = batch.AddFork(*prefix);
  const Result<int> second_answer = batch.AddFork(*prefix);
  ASSERT_TRUE(first_answer.ok()) << first_answer.message();
  ASSERT_EQ(*second_answer, 2);
  for (int i = 1; i <= 2; ++i) {
    const std::int64_t rows = 30 * i;
    const Prompt more = rounded(rows, static_cast<std::uint64_t>(10 + i), 300);
    MustAppend(batch[i], 0, more, 7, Phase::kDecode);
  }
  for (int i = 0; i <= 2; ++i) {
    SCOPED_TRACE(i);
    std::vector<oracle::HeadRows> heads = shared.Heads();
    if (i > 0) {
      const Prompt more = rounded(30 * i, static_cast<std::uint64_t>(10 + i), 300);
      const std::vector<oracle::HeadRows> rest = more.Heads();
      for (int h = 0; h < 2; ++h) {
        const auto join = [](auto& to, const auto& from) {
          to.insert(to.end(), from.begin(), from.end());
        };
        join(heads[h].positions, rest[h].positions);
        join(heads[h].keys, rest[h].keys);
        join(heads[h].values, rest[h].values);
      }
    }
    EXPECT_EQ(batch[i].next_position(), 300 + 30 * i);
    const std::vector<TokenPos> positions = {290, 310, 400};
    const std::vector<float> queries = UniformRows(4 * 3 * 32, 20);
    ExpectWithinKernelBound(layer, heads, queries, MustAttend(batch[i], 0, queries, positions),
                            oracle::Attend(layer, heads, queries, positions));
  }
}

// Bytes of rows of f16 at dims 32 and 32.
constexpr std::int64_t RowBytes(std::int64_t rows) { return rows * (32 + 32) * 2; }

TEST(CacheSet, TotalsCountSharedMemoryOnce) {
  TestAllocator allocator;
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  CacheSet set = MustCreateSet("none | kv=f16", layer, &allocator);
  ASSERT_TRUE(set.Add().ok());
  Fill(set[0], MakePrompt(layer, 140, 1));  // two full blocks and 12 rows
  const ByteReport one = set.Report();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(set.AddFork(i).ok());
  const ByteReport four = set.Report();
  EXPECT_EQ(four.shared_bytes, RowBytes(128));
  EXPECT_EQ(four.payload_bytes, RowBytes(128 + 4 * 12));
  EXPECT_EQ(four.resident_bytes(), 4 * one.resident_bytes() - 3 * RowBytes(128));
  EXPECT_EQ(four.resident_bytes(), allocator.live_bytes);
  EXPECT_EQ(four.rows_kept, 4 * 140);
  EXPECT_EQ(four.full_bytes(), 4 * one.full_bytes());
  EXPECT_GT(*four.storage_ratio(), 2.5 * *one.storage_ratio());  // 560 rows in the room of 176
  EXPECT_EQ(set[3].Report().shared_bytes, RowBytes(128));

  // Back to row 100, in the second block, of which the others hold 64 rows: rows that any holds.
  for (const int trimmed : {2, 0}) {
    ASSERT_TRUE(set[trimmed].TrimToPosition(100).ok());
    EXPECT_EQ(set.Report().payload_bytes, RowBytes(128 + (trimmed == 2 ? 3 : 2) * 12));
    EXPECT_EQ(set.Report().resident_bytes(), allocator.live_bytes);
  }
  // The others leave; what one holds is shared with none.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(set.Remove(1).ok());
  ASSERT_EQ(set.size(), 1);
  EXPECT_EQ(set.Report().shared_bytes, 0);
  EXPECT_EQ(set.Report().payload_bytes, RowBytes(100));
  EXPECT_EQ(set.Report().resident_bytes(), allocator.live_bytes);
  ASSERT_TRUE(set.Remove(0).ok());
  EXPECT_EQ(allocator.live_bytes, 0);
}

// What a fork outside the set holds too is shared, and counts here as well.
TEST(CacheSet, AForkOutsideSharesWithTheSet) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  CacheSet set = MustCreateSet("none | kv=f16", layer);
  ASSERT_TRUE(set.Add().ok());
  Fill(set[0], MakePrompt(layer, 140, 1));
  const ByteReport before = set.Report();
  const Result<Cache> outside = set[0].Fork();
  ASSERT_TRUE(outside.ok());
  EXPECT_EQ(set.Report().shared_bytes, RowBytes(128));
  EXPECT_EQ(set.Report().resident_bytes(), before.resident_bytes());
}

TEST(CacheSet, AMemberStaysWhereItIsWhileOthersComeAndGo) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  CacheSet set = MustCreateSet("none | kv=int8", layer);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(set.Add().ok());
  Cache& second = set[1];
  Fill(second, MakePrompt(layer, 90, 2));
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(set.AddFork(1).ok());
  ASSERT_TRUE(set.Remove(0).ok());
  EXPECT_EQ(&set[0], &second);
  ExpectSame(set[50], second);
}

TEST(CacheSet, ErrorsChangeNothing) {
  TestAllocator allocator;
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  CacheSet set = MustCreateSet("none | kv=f16 | tail=10", layer, &allocator);
  ASSERT_TRUE(set.Add().ok());
  Fill(set[0], MakePrompt(layer, 140, 1));
  const std::string before = BytesText(set.Report());
  const auto expect_refused = [&](const auto& result, ErrorCode code, std::string_view part) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.message();
    EXPECT_NE(result.message().find(part), std::string::npos) << result.message();
    EXPECT_EQ(set.size(), 1);
    EXPECT_EQ(BytesText(set.Report()), before);
    EXPECT_EQ(set.Report().resident_bytes(), allocator.live_bytes);
  };
  expect_refused(set.AddFork(1), ErrorCode::kInvalidArgument, "member 1 is outside [0, 1)");
  expect_refused(set.AddFork(-1), ErrorCode::kInvalidArgument, "member -1");
  expect_refused(set.Remove(1), ErrorCode::kInvalidArgument, "member 1");
  const Bytes state = Saved(set[0]);
  expect_refused(AddState(set, state, "another"), ErrorCode::kInvalidArgument, "identity");
  int refused = 0;
  for (const bool fork : {false, true}) {
    for (int n = 0;; ++n) {
      allocator.fail_at = n;
      const Result<int> added = fork ? set.AddFork(0) : AddState(set, state);
      allocator.fail_at = -1;
      if (added.ok()) break;
      ++refused;
      expect_refused(added, ErrorCode::kOutOfMemory, "bytes");
    }
    ASSERT_TRUE(set.Remove(1).ok());
  }
  EXPECT_GT(refused, 6);
  LayerSpec bad = layer;
  bad.query_heads = 0;
  EXPECT_FALSE(CacheSet::Create(MustParse("none | kv=f16"), {bad}, {}).ok());
}

}  // namespace
}  // namespace kvsieve::cache_test
