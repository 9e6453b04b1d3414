// Cases from the field that concern which rows are kept, through the whole cache: faults of other
// systems, restated. Those of scorers and selectors alone are in tests/evict.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

// The prompt and its last 32 queries, zero or random.
Cache Compressed(std::string_view spec, const Prompt& prompt, std::span<const float> queries) {
  const LayerSpec& layer = prompt.layer;
  const std::int64_t window =
      std::ssize(queries) / (std::int64_t{layer.query_heads} * layer.key_dim);
  Cache cache = MustCreate(spec, {layer});
  MustAppend(cache, 0, prompt);
  EXPECT_TRUE(
      cache
          .Observe(0, prompt.PositionView(prompt.rows() - window, window),
                   HeadsView::HeadMajor(queries.data(), layer.query_heads, window, layer.key_dim))
          .ok());
  const Status finished = cache.FinishPrefill();
  EXPECT_TRUE(finished.ok()) << finished.message();
  return cache;
}

bool Has(const Cache& cache, TokenPos position) {
  const std::vector<TokenPos> kept = GatherHead(cache, 0, 0).positions;
  return std::binary_search(kept.begin(), kept.end(), position);
}

// A share of the tokens that comes to less than a row protects one, never all of them, and the
// report shows what was in force.
TEST(Cases, U03_AShareOfNoRowsProtectsOneRow) {
  const Prompt prompt = MakePrompt(MakeLayer(2, 1, 64, 64), 40, 1);
  const std::vector<float> queries = UniformRows(2 * 64, 2);
  for (const char* spec :
       {"recency(budget=10,sinks=0,recent=2%)", "random(budget=10,sinks=0,recent=2%)",
        "snapkv(budget=10,window=1,sinks=0,recent=2%)"}) {
    SCOPED_TRACE(spec);
    const Cache cache = Compressed(spec, prompt, queries);
    EXPECT_EQ(cache.rows(0, 0), 10);
    EXPECT_TRUE(Has(cache, 39));
    EXPECT_NE(cache.ReportLayer(0).applied.find("recent=2%"), std::string::npos)
        << cache.ReportLayer(0).applied;
  }
}

// Scores are means over the window, not sums since a row came: with uniform attention all tie, and
// the stated rule decides, so early rows have no lead of their own.
TEST(Cases, U06_UniformAttentionGivesEarlyRowsNoLead) {
  const Prompt prompt = MakePrompt(MakeLayer(2, 1, 64, 64), 64, 3);
  const std::vector<float> uniform(2 * 8 * 64);
  const std::string spec = "snapkv(budget=32,window=8,sinks=0,pool=none,ties=";
  const Cache low = Compressed(spec + "low)", prompt, uniform);
  const Cache high = Compressed(spec + "high)", prompt, uniform);
  std::vector<TokenPos> expected = Positions(0, 24);
  const std::vector<TokenPos> window = Positions(56, 8);
  expected.insert(expected.end(), window.begin(), window.end());
  EXPECT_EQ(GatherHead(low, 0, 0).positions, expected);
  EXPECT_EQ(GatherHead(high, 0, 0).positions, Positions(32, 32));
}

// Attention after eviction is attention over exactly the rows kept, and the report tells rows that
// were dropped on purpose from rows that failed: there are none of these, a failure is an error.
TEST(Cases, U07_AttentionIsThatOverTheRowsKept) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const Prompt prompt = MakePrompt(layer, 2048, 4);
  const std::vector<float> queries = UniformRows(4 * 32 * 64, 5);
  const Cache cache = Compressed("snapkv(budget=1024) | kv=f16", prompt, queries);
  std::vector<oracle::HeadRows> kept = prompt.Heads();
  for (int head = 0; head < 2; ++head) {
    const std::vector<TokenPos> positions = GatherHead(cache, 0, head).positions;
    ASSERT_EQ(positions.size(), 1024U);
    EXPECT_TRUE(std::binary_search(positions.begin(), positions.end(), 2040));
    oracle::HeadRows rows;
    rows.positions = positions;
    for (const TokenPos p : positions) {
      for (int d = 0; d < 64; ++d) rows.keys.push_back(kept[head].keys[p * 64 + d]);
      for (int d = 0; d < 64; ++d) rows.values.push_back(kept[head].values[p * 64 + d]);
    }
    kept[head] = std::move(rows);
  }
  const std::vector<TokenPos> position = {2048};
  const std::vector<float> query = UniformRows(4 * 64, 6);
  // f16 rows: 2^-11 an element.
  ExpectAttentionNear(MustAttend(cache, 0, query, position),
                      oracle::Attend(layer, kept, query, position), 64, 2e-3, 2e-3);
  const LayerReport report = cache.ReportLayer(0);
  EXPECT_EQ(report.bytes.rows_kept, 2 * 1024);
  EXPECT_EQ(report.bytes.tokens_seen, 2 * 2048);
  EXPECT_EQ(report.note, "");
  EXPECT_NE(report.applied.find("budget=1024"), std::string::npos) << report.applied;
}

// What the window asks for is kept and the rest pays for it; a policy without queries keeps the
// same rows whatever is asked. `explain` says which of the two a policy is.
TEST(Cases, U08_APolicyThatReadsQueriesSaysSo) {
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  Prompt prompt = MakePrompt(layer, 1000, 7);
  for (float& key : prompt.keys) key *= 0.1F;
  const auto plant = [&](TokenPos first, int dim) {
    for (TokenPos p = first; p < first + 4; ++p) {
      for (int d = 0; d < 64; ++d) prompt.keys[p * 64 + d] = d == dim ? 20.0F : 0.0F;
    }
  };
  plant(100, 0);  // fact A
  plant(900, 1);  // fact B, orthogonal
  std::vector<float> asks_for_a = UniformRows(16 * 64, 8);
  std::vector<float> asks_for_b = asks_for_a;
  for (int w = 0; w < 16; ++w) {
    asks_for_a[w * 64] = asks_for_b[w * 64 + 1] = 20.0F;
    asks_for_a[w * 64 + 1] = asks_for_b[w * 64] = 0.0F;
  }
  const char* dependent = "snapkv(budget=64,window=16)";
  EXPECT_TRUE(Has(Compressed(dependent, prompt, asks_for_a), 101));
  EXPECT_FALSE(Has(Compressed(dependent, prompt, asks_for_a), 901));
  EXPECT_TRUE(Has(Compressed(dependent, prompt, asks_for_b), 901));
  EXPECT_FALSE(Has(Compressed(dependent, prompt, asks_for_b), 101));
  for (const char* agnostic : {"key_norm(budget=64)", "key_diff(budget=64)", "lag(budget=600)"}) {
    EXPECT_EQ(StateOf(Compressed(agnostic, prompt, asks_for_a)),
              StateOf(Compressed(agnostic, prompt, asks_for_b)));
    EXPECT_EQ(MustParse(agnostic)->evictor()->needs().window_queries, 0);
    EXPECT_EQ(Explain(*MustParse(agnostic), 64, 64)->find("queries of the prompt"),
              std::string::npos);
  }
  EXPECT_EQ(MustParse(dependent)->evictor()->needs().window_queries, 16);
  EXPECT_NE(Explain(*MustParse(dependent), 64, 64)->find("the last 16 queries of the prompt"),
            std::string::npos);
}

}  // namespace
}  // namespace kvsieve::cache_test
