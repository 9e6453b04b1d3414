// demote=yes: rows that rank low when decode selects again move to a colder tier, and only these.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/str_cat.h"
#include "lib/state_stream.h"
#include "lib/tier.h"
#include "tests/lib/cache_fixture.h"
#include "tests/lib/state_fixture.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve::cache_test {
namespace {

using state_test::LoadBytes;
using state_test::Saved;

constexpr int kDim = 64;
constexpr std::int64_t kRows = 400;
constexpr std::string_view kSpec =
    "key_norm(budget=200,sinks=4) | kv=int8 | cold(80)={kv=int4} | cold(30)={kv=int2} | "
    "exact_sinks=2 | tail=5 | schedule=every(20) | demote=yes";

LayerSpec Layer() { return MakeLayer(4, 2, kDim, kDim); }

struct Row {
  std::int32_t tier;
  std::vector<float> key;
  std::vector<float> value;
};

std::map<TokenPos, Row> RowsOf(const Cache& cache, int head) {
  const oracle::HeadRows held = GatherHead(cache, 0, head);
  std::vector<std::int32_t> tiers(held.positions.size());
  EXPECT_TRUE(cache.RowTiers(0, head, tiers).ok());
  std::map<TokenPos, Row> rows;
  for (std::size_t r = 0; r < held.positions.size(); ++r) {
    const auto of = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(r * kDim),
                                all.begin() + static_cast<std::ptrdiff_t>((r + 1) * kDim));
    };
    rows[held.positions[r]] = {tiers[r], of(held.keys), of(held.values)};
  }
  return rows;
}

// A row as a codec that looks at single rows decodes it.
std::vector<float> Coded(std::string_view codec, const std::vector<float>& row) {
  Cache cache = MustCreate(StrCat("none | kv=", codec), {MakeLayer(1, 1, kDim, kDim)});
  const HeadsView view = HeadsView::HeadMajor(row.data(), 1, 1, kDim);
  const TokenPos position = 0;
  EXPECT_TRUE(cache.Append(0, Phase::kPrefill, view, view, {&position, 1}).ok());
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return GatherHead(cache, 0, 0).keys;
}

Cache AfterPrompt(std::string_view spec, const Prompt& prompt, std::int64_t rows = 300) {
  Cache cache = MustCreate(spec, {Layer()});
  EXPECT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, rows).ok());
  EXPECT_TRUE(cache.FinishPrefill().ok());
  return cache;
}

// Where the rank alone would put the rows that stay: key_norm ranks long keys low; the 4 sinks and
// the exact tail of 5 are never cold.
std::map<TokenPos, std::int32_t> TiersByRank(const std::map<TokenPos, Row>& before,
                                             const std::map<TokenPos, Row>& after) {
  std::vector<std::pair<float, TokenPos>> longest;
  for (const auto& [position, row] : after) {
    const bool last = std::distance(after.find(position), after.end()) <= 5;
    if (position < 4 || last) continue;
    float norm = 0;
    for (const float x : before.at(position).key) norm -= x * x;
    longest.emplace_back(norm, position);
  }
  std::sort(longest.begin(), longest.end());
  std::map<TokenPos, std::int32_t> tiers;
  for (std::size_t i = 0; i < longest.size(); ++i) {
    tiers[longest[i].second] = i < 30 ? 2 : i < 110 ? 1 : 0;
  }
  return tiers;
}

TEST(Demote, RowsMoveToTheTierOfTheirRankWhenItIsColder) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 8);
  Cache cache = AfterPrompt(kSpec, prompt);
  constexpr std::string_view kCodecs[] = {"int8", "int4", "int2"};
  std::int64_t demoted = 0;
  for (std::int64_t row = 300; row < kRows; row += 20) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, row, 20).ok());
    const std::map<TokenPos, Row> grown[] = {RowsOf(cache, 0), RowsOf(cache, 1)};
    ASSERT_TRUE(cache.Evict(0).ok());
    for (int head = 0; head < 2; ++head) {
      const std::map<TokenPos, Row> after = RowsOf(cache, head);
      const auto by_rank = TiersByRank(grown[head], after);
      for (const auto& [position, held] : after) {
        SCOPED_TRACE(StrCat("head ", head, ", position ", position));
        const Row& was = grown[head].at(position);
        const auto rank = by_rank.find(position);
        const bool moves =
            was.tier != Cache::kExactRow && rank != by_rank.end() && rank->second > was.tier;
        ASSERT_EQ(held.tier, moves ? rank->second : was.tier);
        if (!moves) {
          ASSERT_EQ(held.key, was.key);
          ASSERT_EQ(held.value, was.value);
          continue;
        }
        ++demoted;
        const std::string_view codec = kCodecs[held.tier];
        ASSERT_EQ(held.key, Coded(codec, was.key));
        ASSERT_EQ(held.value, Coded(codec, was.value));
      }
    }
    EXPECT_EQ(cache.ReportLayer(0).demoted_rows, demoted);
    EXPECT_EQ(cache.oldest_exact_position(), row + 20);
  }
  EXPECT_GT(demoted, 50);
  EXPECT_NE(cache.ReportLayer(0).note.find(StrCat(demoted, " rows moved to colder stores")),
            std::string::npos);
}

std::vector<std::byte> BytesOf(const Tier& tier) {
  MemorySink sink;
  StateWriter out(sink);
  out.StartSection(0);
  tier.Save(out);
  out.EndSection();
  EXPECT_TRUE(out.Finish().ok());
  return sink.bytes();
}

// The same rows in the same blocks, whether they came together or half of them later.
TEST(Demote, RowsThatComeToATierAreStoredAsThoseOfThePrompt) {
  std::vector<std::string> chains = quant_test::EveryCodec(kDim);
  for (const char* transform : {"center+int4", "hadamard+int3", "channel_scale+int2"}) {
    chains.emplace_back(transform);
  }
  const LayerSpec layer = MakeLayer(1, 1, kDim, kDim);
  const Prompt prompt = MakePrompt(layer, 150, 21);
  class Some final : public RowSource {
   public:
    Some(const std::vector<float>& rows, std::vector<RowIndex> chosen)
        : rows_(rows), chosen_(std::move(chosen)) {}
    std::int64_t rows() const override { return std::ssize(chosen_); }
    int dim() const override { return kDim; }
    void ReadRows(RowIndex first, int count, float* out) const override {
      for (int r = 0; r < count; ++r) {
        std::copy_n(rows_.data() + chosen_[static_cast<std::size_t>(first + r)] * kDim, kDim,
                    out + std::ptrdiff_t{r} * kDim);
      }
    }

   private:
    const std::vector<float>& rows_;
    std::vector<RowIndex> chosen_;
  };
  std::vector<RowIndex> all, first, later;
  std::vector<TokenPos> all_at, first_at, later_at;
  for (RowIndex r = 0; r < 150; ++r) {
    const bool comes_later = r * r % 7 < 3;
    (comes_later ? later : first).push_back(r);
    (comes_later ? later_at : first_at).push_back(static_cast<TokenPos>(3 * r));
    all.push_back(r);
    all_at.push_back(static_cast<TokenPos>(3 * r));
  }
  OnEveryTarget([&] {
    for (const std::string& chain : chains) {
      const Result<Pipeline> pipeline = Pipeline::Parse(StrCat("none | kv=", chain));
      ASSERT_TRUE(pipeline.ok()) << pipeline.message();
      const Result<LayerStore> store = BuildStore(pipeline->main_store(), layer);
      if (!store.ok() || store->group_rows() > 1) continue;
      SCOPED_TRACE(chain);
      std::vector<float> scratch(static_cast<std::size_t>(kBlockRows) * kDim);
      const auto filled = [&](const std::vector<RowIndex>& rows,
                              const std::vector<TokenPos>& positions) {
        Tier tier(*store);
        EXPECT_TRUE(tier.ReserveStats(DefaultAllocator()).ok());
        const Some all_keys(prompt.keys, all);
        const Some all_values(prompt.values, all);
        EXPECT_TRUE(tier.Learn(Side::kKey, all_keys, all_keys).ok());
        EXPECT_TRUE(tier.Learn(Side::kValue, all_values, all_values).ok());
        EXPECT_TRUE(tier.Reserve(DefaultAllocator(), positions).ok());
        tier.Fill(Some(prompt.keys, rows), Some(prompt.values, rows), positions, scratch.data());
        return tier;
      };
      const Tier together = filled(all, all_at);
      Tier apart = filled(first, first_at);
      std::vector<RowIndex> held(first.size());
      for (std::size_t i = 0; i < held.size(); ++i) held[i] = static_cast<RowIndex>(i);
      const Some keys(prompt.keys, later);
      const Some values(prompt.values, later);
      Result<Tier::Kept> kept = apart.KeepWith(DefaultAllocator(), held, {later_at, keys, values});
      ASSERT_TRUE(kept.ok()) << kept.message();
      apart.Replace(*std::move(kept));
      ASSERT_EQ(BytesOf(apart), BytesOf(together));
    }
  });
}

TEST(Demote, RowsMoveThoughNoneIsDropped) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 9);
  Cache cache = AfterPrompt(
      "key_norm(budget=1000) | kv=int8 | cold(25%)={kv=int4} | schedule=every(50) | demote=yes",
      prompt, 200);
  EXPECT_EQ(cache.ReportLayer(0).stores[2].bytes.rows_kept, 2 * 50);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 200, 200).ok());
  EXPECT_EQ(cache.oldest_exact_position(), 0);
  ASSERT_TRUE(cache.Evict(0).ok());
  // Of the lowest 100 of 400 those are new there that were not of the lowest 50 of the first 200.
  EXPECT_GE(cache.ReportLayer(0).stores[2].bytes.rows_kept, 2 * 100);
  EXPECT_EQ(cache.ReportLayer(0).stores[2].bytes.rows_kept,
            2 * 50 + cache.ReportLayer(0).demoted_rows);
  EXPECT_EQ(cache.rows(0, 0), 400);
  EXPECT_EQ(cache.oldest_exact_position(), 400);
  EXPECT_TRUE(cache.ReportLayer(0).applied.starts_with("none | "));
}

TEST(Demote, AttentionIsThatOverTheRowsHeld) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 10);
  const std::vector<float> queries = UniformRows(4 * kDim, 3);
  const std::vector<TokenPos> positions = {kRows};
  OnEveryTarget([&] {
    Cache cache = AfterPrompt(kSpec, prompt);
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 300, 100).ok());
    ASSERT_TRUE(cache.Evict(0).ok());
    ASSERT_GT(cache.ReportLayer(0).demoted_rows, 0);
    const std::vector<oracle::HeadRows> heads = GatherLayer(cache, 0);
    ExpectWithinKernelBound(Layer(), heads, queries, MustAttend(cache, 0, queries, positions),
                            oracle::Attend(Layer(), heads, queries, positions),
                            QueryRounding::kByte);
  });
}

TEST(Demote, ForksAndSavedStatesGoOnAlike) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 11);
  Cache cache = AfterPrompt(kSpec, prompt);
  const auto step = [&](Cache& c, std::int64_t row) {
    ASSERT_TRUE(AppendRows(c, 0, Phase::kDecode, prompt, row, 20).ok());
    ASSERT_TRUE(c.Evict(0).ok());
  };
  step(cache, 300);
  Result<Cache> fork = cache.Fork();
  ASSERT_TRUE(fork.ok());
  Cache loaded = MustCreate(kSpec, {Layer()});
  ASSERT_TRUE(LoadBytes(Saved(cache), loaded).ok());
  for (std::int64_t row = 320; row < kRows; row += 20) {
    for (Cache* c : {&cache, &*fork, &loaded}) step(*c, row);
  }
  state_test::ExpectSame(loaded, cache);
  EXPECT_EQ(Saved(*fork), Saved(cache));
  EXPECT_EQ(loaded.ReportLayer(0).demoted_rows, cache.ReportLayer(0).demoted_rows);
  cache.Clear();
  EXPECT_EQ(cache.ReportLayer(0).demoted_rows, 0);
}

TEST(Demote, IsNotDoneUnlessAsked) {
  const Prompt prompt = MakePrompt(Layer(), kRows, 12);
  const std::string spec(kSpec.substr(0, kSpec.find(" | demote")));
  Cache cache = AfterPrompt(spec, prompt);
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 300, 100).ok());
  ASSERT_TRUE(cache.Evict(0).ok());
  EXPECT_EQ(cache.ReportLayer(0).demoted_rows, 0);
  EXPECT_EQ(cache.ReportLayer(0).note.find("moved"), std::string::npos);
}

}  // namespace
}  // namespace kvsieve::cache_test
