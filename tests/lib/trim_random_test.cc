// Random lives of a cache with trims in them, against plain vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

constexpr std::int64_t kTokens = 4000;
constexpr int kHeads = 2;
constexpr int kDim = 8;

// Forgets what is at `end` and behind it; returns how many went.
std::int64_t Cut(std::vector<TokenPos>& positions, TokenPos end) {
  const auto from = std::lower_bound(positions.begin(), positions.end(), end);
  const std::int64_t gone = positions.end() - from;
  positions.erase(from, positions.end());
  return gone;
}

class Life {
 public:
  Life(std::uint64_t seed, const char* spec)
      : random_(seed), prompt_(MakePrompt(MakeLayer(2, kHeads, kDim, kDim), kTokens, seed)) {
    prompt_.keys = RoundedToF16(prompt_.keys);
    prompt_.values = RoundedToF16(prompt_.values);
    whole_ = prompt_.Heads();
    CacheOptions options;
    options.allocator = &allocator_;
    cache_.push_back(MustCreate(spec, {prompt_.layer}, options));
    EXPECT_TRUE(cache().FinishPrefill().ok());
  }

  void Step() {
    const std::int64_t what = Below(6);
    what < 3 ? Append() : what < 5 ? Trim() : Evict();
  }

  void ExpectAsTold() {
    const ByteReport report = cache().Report();
    ASSERT_EQ(report.tokens_seen, kHeads * std::ssize(seen_));
    ASSERT_EQ(report.resident_bytes(), allocator_.live_bytes);
    // Three segments a head, each with four bytes more at most: a run of one row.
    ASSERT_LE(report.metadata_bytes, 4 * (report.rows_kept + 3 * kHeads));
    for (int head = 0; head < kHeads; ++head) {
      const oracle::HeadRows rows = GatherHead(cache(), 0, head);
      ASSERT_EQ(rows.positions, kept_[head]);
      for (std::size_t r = 0; r < rows.positions.size(); ++r) {
        // Row r of the cache is row `position` of the prompt.
        for (std::size_t d = 0; d < kDim; ++d) {
          const auto at = static_cast<std::size_t>(rows.positions[r]) * kDim + d;
          ASSERT_EQ(rows.keys[r * kDim + d], whole_[head].keys[at]);
          ASSERT_EQ(rows.values[r * kDim + d], whole_[head].values[at]);
        }
      }
    }
  }

 private:
  Cache& cache() { return cache_.front(); }
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }

  void Append() {
    std::int64_t next = cache().next_position();
    for (std::int64_t n = Below(70); n >= 0; --n, ++next) {
      if (Below(20) == 0) next += Below(40);
      if (next >= kTokens) return;
      ASSERT_TRUE(AppendRows(cache(), 0, Phase::kDecode, prompt_, next, 1).ok());
      seen_.push_back(static_cast<TokenPos>(next));
      for (std::vector<TokenPos>& head : kept_) head.push_back(static_cast<TokenPos>(next));
    }
  }

  void Trim() {
    const auto end = static_cast<TokenPos>(Below(cache().next_position() + 1));
    const Result<std::int64_t> gone = cache().TrimToPosition(end, kvsieve::Trim::kAllowInexact);
    ASSERT_TRUE(gone.ok()) << gone.message();
    ASSERT_EQ(*gone, Cut(seen_, end));
    for (std::vector<TokenPos>& head : kept_) Cut(head, end);
    ASSERT_EQ(cache().next_position(), end);
  }

  void Evict() {
    ASSERT_TRUE(cache().Evict(0).ok());
    for (int head = 0; head < kHeads; ++head) {
      std::vector<TokenPos> left = GatherHead(cache(), 0, head).positions;
      ASSERT_TRUE(std::includes(kept_[head].begin(), kept_[head].end(), left.begin(), left.end()));
      kept_[head] = std::move(left);
    }
  }

  std::mt19937_64 random_;
  Prompt prompt_;
  std::vector<oracle::HeadRows> whole_;
  TestAllocator allocator_;
  std::vector<Cache> cache_;  // one; goes before its allocator
  std::vector<TokenPos> kept_[kHeads];
  std::vector<TokenPos> seen_;
};

// Appends with gaps, evictions and trims in any order.
TEST(Trim, RandomLivesMatchPlainVectors) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    for (const char* spec :
         {"random(budget=90) | kv=f16 | schedule=every(1)",
          "random(budget=90) | kv=f16 | exact_sinks=3 | tail=9 | schedule=every(1)"}) {
      SCOPED_TRACE(testing::Message() << spec << " seed " << seed);
      Life life(seed, spec);
      for (int step = 0; step < 60; ++step) {
        life.Step();
        life.ExpectAsTold();
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace kvsieve::cache_test
