// Plans in bytes: what is kept against the budget, what must stay, and that nothing else matters.
#include "lib/tier_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "lib/position_list.h"
#include "tests/lib/tier_plan_fixture.h"

namespace kvsieve::tier_plan_test {
namespace {

using cache_test::MakeLayer;
using cache_test::MustParse;
using cache_test::StateOf;
using cache_test::Threads;
using cache_test::WithReserve;

constexpr const char* kScopes[] = {",scope=model", ",scope=layer", ",scope=kv_head"};
constexpr const char* kThreeTiers =
    "k=center+turbo5, v=turbo5; k=center+turbo4, v=turbo3; k=center+turbo3, v=turbo2";

std::string NotesOf(const Cache& cache) {
  std::string notes;
  for (int i = 0; i < cache.layers(); ++i) notes += cache.ReportLayer(i).note + "\n";
  return notes;
}

std::int64_t KeptBytes(const Cache& cache) { return cache.Report().kept_bytes(); }

// The most that one step adds: a tier's first row with its statistics, in the finest tier, which
// may open a group of scales; where a layer has one tier, whose groups are whole, an exact row. And
// what a list of positions may grow by: a mark of 4 bytes in either list, and what one row more or
// less changes in its bits.
std::int64_t MostOfAStep(const Cache& cache, std::string_view spec) {
  const auto pipeline = MustParse(spec);
  std::int64_t most = 0;
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerSpec& layer = cache.layer(i);
    for (int tier = 0; tier < pipeline->TiersOf(i, cache.layers()); ++tier) {
      const Result<LayerStore> store =
          BuildStore(pipeline->StoreFor(i, cache.layers(), tier), layer);
      std::int64_t bytes = Tier::StatsBytes(*store);
      for (const Side side : store->sides()) {
        const Codec& codec = store->chain(side).codec();
        bytes += codec.row_bytes().codes + codec.row_bytes().scales * codec.group_rows();
      }
      if (store->group_rows() > 1) bytes = std::max(bytes, 4L * (layer.key_dim + layer.value_dim));
      most = std::max(most, bytes);
    }
  }
  return most + 24;
}

// Plans count positions as if each tier reached over all planned rows.
std::int64_t SavedOnPositions(const Cache& cache, std::string_view spec) {
  const auto pipeline = MustParse(spec);
  std::int64_t saved = 0;
  for (int i = 0; i < cache.layers(); ++i) {
    const auto tokens = static_cast<TokenPos>(cache.next_position());
    const TokenPos first_seen =
        cache.layer(i).sliding_window > 0 ? tokens - cache.layer(i).sliding_window : 0;
    for (int head = 0; head < cache.layer(i).kv_heads; ++head) {
      const auto places = PlaceOfRows(cache, i, head, tokens);
      for (int tier = 0; tier < pipeline->tiers(); ++tier) {
        PositionSpan held;
        for (TokenPos p = 0; p < tokens; ++p) {
          if (places[static_cast<std::size_t>(p)] != tier) continue;
          if (held.rows++ == 0) held.first = p;
          held.last = p;
        }
        if (held.rows == 0) continue;
        const PositionSpan planned{held.rows, std::max(pipeline->exact_sinks(), first_seen),
                                   tokens - 1 - pipeline->tail()};
        saved += PositionList::BytesFor(planned).live - PositionList::BytesFor(held).live;
      }
    }
  }
  return saved;
}

// Layers of any shape, one of them sliding at times, and stores that they can hold.
struct RandomCase {
  std::vector<LayerSpec> layers;
  std::int64_t rows = 0;
  std::string tiers;
  std::string rest;
  std::string more;
  int shares = 0;  // of the budget

  explicit RandomCase(std::mt19937_64& random) {
    const auto one_of = [&](auto choices) { return choices[random() % choices.size()]; };
    const bool mla = random() % 4 == 0;
    tiers = mla ? one_of(std::vector<std::string>{"kv=int8; kv=int4; kv=int2", "kv=turbo4",
                                                  "kv=f16; kv=channel", "kv=channel(group=16)"})
                : one_of(std::vector<std::string>{
                      kThreeTiers, "kv=int8; kv=int4; kv=int2", "k=int8, v=int4", "kv=f16",
                      "kv=channel", "kv=channel(group=16); kv=int2",
                      "k=channel(bits=3,group=64), v=int4; kv=int2", "kv=q8_0; kv=q4_0; kv=turbo1",
                      "kv=int4(group=16); kv=turbo5; kv=int4; kv=turbo1",
                      "k=int8, v=int2; k=int2, v=int8; k=int4, v=int2",
                      "kv=int8; kv=channel_scale+int4; kv=center+int2"});
    const int scope = static_cast<int>(random() % 3);
    more = StrCat(kScopes[scope], ",window=", one_of(std::vector<int>{1, 16, 32}),
                  ",sinks=", one_of(std::vector<int>{0, 4, 9}));
    const bool override = random() % 4 == 0;
    const std::string store =
        mla || random() % 2 == 0 ? "kv=channel(group=32)" : "k=center+turbo4, v=int8";
    // Codecs that store groups need a tail as long.
    const bool groups_of_rows =
        StrCat(tiers, override ? store : std::string()).find("channel") != std::string::npos;
    rest = one_of(groups_of_rows
                      ? std::vector<std::string>{"tail=64", "exact_sinks=2, tail=64", "tail=100"}
                      : std::vector<std::string>{"", "tail=7", "tail=64", "exact_sinks=0",
                                                 "exact_sinks=2, tail=20"});
    if (override) rest += StrCat(rest.empty() ? "" : ", ", "layers(0..0)={", store, "}");
    if (!rest.empty()) rest = " | " + rest;
    const int count = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < count; ++i) {
      const int heads = 1 + static_cast<int>(random() % 2);
      const int dim = 32 << random() % 2;
      layers.push_back(MakeLayer(heads * (1 + static_cast<int>(random() % 3)), heads, dim,
                                 mla || random() % 2 == 0 ? 32 : dim));
      layers.back().value_is_key_prefix = mla;
      if (i > 0 && random() % 3 == 0) layers.back().sliding_window = 40;
      shares += scope == 2 ? heads : 1;
    }
    if (scope == 0) shares = 1;
    rows = 1 + static_cast<std::int64_t>(random() % 400);
  }
};

TEST(TierPlan, BudgetsAreMetToAStep) {
  constexpr std::uint64_t kSeed = 2024;
  std::mt19937_64 random(kSeed);
  int planned = 0;
  for (int round = 0; round < 120; ++round) {
    const RandomCase one(random);
    Model model(one.layers, one.rows, random());
    model.type = static_cast<ElementType>(random() % 3);
    const std::int64_t least = KeptBytes(model.Finished(SpecOf(1, one.more, one.tiers, one.rest)));
    for (int i = 0; i < 4; ++i) {
      const auto budget =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(model.FullBytes())) + 1;
      const std::string spec = SpecOf(budget, one.more, one.tiers, one.rest);
      SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", round " << round << ", "
                                        << one.rows << " rows: " << spec);
      const Cache cache = model.Finished(spec);
      const std::int64_t kept = KeptBytes(cache);
      const std::string notes = NotesOf(cache);
      if (notes.find("must stay") != std::string::npos) {
        EXPECT_LE(kept, budget + least);
        if (one.shares == 1) {
          EXPECT_EQ(kept, least);
        }
        continue;
      }
      ASSERT_LE(kept, budget);
      if (notes.find("not reached") != std::string::npos) continue;
      ++planned;
      EXPECT_GT(kept + SavedOnPositions(cache, spec) + one.shares * (MostOfAStep(cache, spec) + 1),
                budget);
    }
  }
  EXPECT_GT(planned, 100);
}

// A group that is begun has all its scales, whatever the search takes for a row.
TEST(TierPlan, GroupsThatAreBegunCountInFull) {
  const Model model({MakeLayer(8, 8, 64, 64)}, 110, 23);
  const char* more = ",window=1,sinks=0,pool=none";
  const char* tiers = "k=channel(bits=3,group=64), v=int4; kv=int2";
  const auto with = [&](std::int64_t budget) {
    return model.Finished(SpecOf(budget, more, tiers, " | tail=64"));
  };
  const std::int64_t least = KeptBytes(with(1));
  const std::int64_t all = KeptBytes(with(1 << 30));
  for (std::int64_t budget = least + 200; budget < all; budget += (all - least) / 40) {
    const Cache cache = with(budget);
    EXPECT_LE(KeptBytes(cache), budget);
    EXPECT_EQ(NotesOf(cache).find("must stay"), std::string::npos) << budget << " of " << all;
  }
}

TEST(TierPlan, BudgetsAreMetWherePositionsHaveGaps) {
  Model model({MakeLayer(4, 2, 64, 64), MakeLayer(2, 1, 64, 64)}, 1200, 19);
  model.SpreadPositions(1000);
  for (const char* tiers : {kThreeTiers, "kv=turbo4", "kv=channel; kv=turbo1"}) {
    for (const int factor : {4, 5, 6}) {
      const std::int64_t budget = model.FullBytes() / factor;
      const std::int64_t kept = KeptBytes(model.Finished(SpecOf(budget, "", tiers, " | tail=64")));
      EXPECT_LE(kept, budget) << tiers;
      EXPECT_GT(kept, budget * 95 / 100) << tiers;
    }
  }
}

TEST(TierPlan, ThereMayBeNoRows) {
  const std::vector<LayerSpec> layers = {MakeLayer(4, 2, 64, 64)};
  Cache cache = cache_test::MustCreate(SpecOf(1000, "", kThreeTiers), layers);
  const Status status = cache.FinishPrefill();
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  EXPECT_EQ(cache.rows(0, 0), 0);
}

// A head of one tier whose codes come in groups: rows that fill none join the exact tail, whose
// list then reaches back to them.
TEST(TierPlan, RowsThatFillNoGroupCountBesideTheTail) {
  const Model model({MakeLayer(2, 1, 32, 32)}, 1500, 5);
  const std::int64_t full = model.FullBytes();
  for (std::int64_t budget = full / 3; budget < full; budget += full / 97) {
    const std::string spec = SpecOf(budget, ",sinks=0", "kv=channel(group=32)", " | tail=100");
    const Cache cache = model.Finished(spec);
    ASSERT_LE(KeptBytes(cache), budget) << spec;
  }
}

// power=0: going costs every row the same, far more than any tier.
TEST(TierPlan, OfEqualStepsAsManyAreTakenAsFit) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 300, 29);
  const std::int64_t budget = model.FullBytes() / 5;
  const std::string spec = SpecOf(budget, ",power=0,drop_weight=1e6,sinks=0", "k=f16, v=f16");
  const Cache cache = model.Finished(spec);
  EXPECT_LE(KeptBytes(cache), budget);
  EXPECT_GT(KeptBytes(cache) + SavedOnPositions(cache, spec) + MostOfAStep(cache, spec), budget);
}

TEST(TierPlan, SharesOfLayersAndHeadsAddUpAndEachIsKept) {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 64, 64), MakeLayer(3, 3, 32, 64),
                                   MakeLayer(2, 1, 64, 32)};
  const Model model(layers, 301, 31);
  const std::int64_t full = model.FullBytes();
  for (const std::int64_t budget : {full / 3 + 1, full / 5, full / 7 + 5}) {
    const Cache by_layer = model.Finished(SpecOf(budget, ",scope=layer", kThreeTiers));
    const Cache by_head = model.Finished(SpecOf(budget, ",scope=kv_head", kThreeTiers));
    std::int64_t before = 0;
    std::int64_t shares = 0;
    const auto within = [&](std::int64_t full_bytes, const ByteReport& kept) {
      const std::int64_t share = budget * (before + full_bytes) / full - budget * before / full;
      before += full_bytes;
      shares += share;
      EXPECT_LE(kept.kept_bytes(), share);
      // A row of the finest takes 2 * 42 bytes; positions are counted as in BudgetsAreMetToAStep.
      EXPECT_GT(kept.kept_bytes(), share * 97 / 100 - 84 - 24);
    };
    for (int i = 0; i < 3; ++i) {
      within(model.FullBytes(static_cast<std::size_t>(i)), by_layer.ReportLayer(i).bytes);
    }
    EXPECT_EQ(shares, budget);
    before = shares = 0;
    for (int i = 0; i < 3; ++i) {
      for (const ByteReport& head : by_head.ReportLayer(i).heads) {
        within(model.FullBytes(static_cast<std::size_t>(i)) / layers[i].kv_heads, head);
      }
    }
    EXPECT_EQ(shares, budget);
  }
}

TEST(TierPlan, ABudgetForEverythingStoresAllRowsInTheFinest) {
  const Model model({MakeLayer(4, 2, 64, 64), MakeLayer(2, 2, 64, 64)}, 200, 41);
  for (const char* scope : kScopes) {
    // The finest is the first in bytes, not in the spec.
    const std::string spec = SpecOf(1 << 30, scope, "kv=int2; kv=int8; kv=int4");
    const Cache cache = model.Finished(spec);
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 2; ++head) {
        const auto places = PlaceOfRows(cache, layer, head, 200);
        EXPECT_EQ(std::ranges::count(places, Cache::kExactRow), 4);
        EXPECT_EQ(std::ranges::count(places, 1), 196);
      }
      EXPECT_NE(cache.ReportLayer(layer).note.find("budget not reached"), std::string::npos);
    }
  }
}

struct FineCase {
  const char* tiers;
  std::set<std::int32_t> fine;  // where rows of the window may be
};

TEST(TierPlan, RowsOfTheWindowAreInTiersOfFourBitsOrMore) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 150, 47);
  for (const FineCase& one :
       {FineCase{"kv=int8; kv=int4; k=int4, v=int2; kv=int2", {0, 1}},
        FineCase{"kv=int2; k=int2, v=int8; kv=int4; kv=int8", {2, 3}},
        FineCase{"k=turbo3, v=turbo3; kv=int2", {0}}, FineCase{"kv=int2", {0}},
        FineCase{"kv=f16; kv=turbo4; kv=turbo1", {0, 1}}}) {
    for (const int factor : {100, 12, 8, 5, 3, 2}) {
      const std::string spec = SpecOf(model.FullBytes() / factor, ",window=24,sinks=3", one.tiers);
      const Cache cache = model.Finished(spec);
      for (int head = 0; head < 2; ++head) {
        const auto places = PlaceOfRows(cache, 0, head, 150);
        for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(places[r], Cache::kExactRow) << spec;
        for (std::size_t r = 126; r < 150; ++r) {
          EXPECT_TRUE(one.fine.contains(places[r])) << spec << " row " << r << ": " << places[r];
        }
      }
    }
  }
}

TEST(TierPlan, SinksThatAreNotExactAreInTheFinest) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 150, 48);
  for (const std::int64_t budget : {std::int64_t{1}, model.FullBytes() / 6}) {
    const Cache cache =
        model.Finished(SpecOf(budget, ",sinks=5", "kv=int2; kv=int8", " | exact_sinks=2"));
    const auto places = PlaceOfRows(cache, 0, 1, 150);
    EXPECT_EQ(std::vector<std::int32_t>(places.begin(), places.begin() + 5),
              (std::vector<std::int32_t>{Cache::kExactRow, Cache::kExactRow, 1, 1, 1}));
  }
}

TEST(TierPlan, OfTiersWithAsManyBytesTheFirstIsUsed) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 150, 49);
  for (const char* tiers : {"k=int8, v=int4; k=int4, v=int8; kv=int2", "kv=int4; kv=int4"}) {
    for (const int factor : {2, 3, 4}) {
      const Cache cache = model.Finished(SpecOf(model.FullBytes() / factor, "", tiers));
      for (const std::int32_t place : PlaceOfRows(cache, 0, 0, 150)) EXPECT_NE(place, 1);
      EXPECT_LE(KeptBytes(cache), model.FullBytes() / factor);
    }
  }
}

// A row of values of 2 bits and keys of 16 takes more than one of 8 and 4, and loses more. What
// loses more is not bought; all fits in the larger one, if the budget holds that.
TEST(TierPlan, ALargerTierThatLosesMoreIsNoReasonToPassTheBudget) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 300, 53);
  const char* tiers = "k=f16, v=int2; k=int8, v=int4";
  const std::int64_t all = KeptBytes(model.Finished(SpecOf(1 << 30, "", tiers)));
  for (std::int64_t budget = all / 4; budget < all + 2000; budget += all / 53) {
    const Cache cache = model.Finished(SpecOf(budget, "", tiers));
    ASSERT_LE(KeptBytes(cache), budget);
  }
}

// Tasks backwards, each given to another worker: threads may leave all of a short list to one.
class Scattered final : public Parallel {
 public:
  int workers() const override { return 5; }
  void Run(std::int64_t tasks, TaskFn fn, void* context) override {
    for (std::int64_t task = tasks; task-- > 0;) fn(context, task, static_cast<int>(task * 3 % 5));
  }
};

TEST(TierPlan, NeitherWorkersNorChunksChangeARow) {
  const Model model({MakeLayer(4, 2, 64, 64), MakeLayer(3, 3, 64, 32)}, 350, 59);
  for (const char* scope : kScopes) {
    for (const char* tiers : {kThreeTiers, "kv=channel; kv=int2", "kv=channel"}) {
      const std::string spec = SpecOf(model.FullBytes() / 6, scope, tiers);
      const std::string expected = StateOf(model.Finished(spec), WithReserve::kNo);
      for (const int chunk : {1, 33, 349}) {
        EXPECT_EQ(StateOf(model.Finished(spec, chunk), WithReserve::kNo), expected) << spec;
      }
      Scattered scattered;
      EXPECT_EQ(StateOf(model.Finished(spec, 0, &scattered), WithReserve::kNo), expected) << spec;
      for (const int workers : {2, 3, 7}) {
        Threads threads(workers);
        EXPECT_EQ(StateOf(model.Finished(spec, 50, &threads), WithReserve::kNo), expected) << spec;
      }
    }
  }
}

// Losses are known up to rounding on every target; so is the plan.
TEST(TierPlan, KeepsTheBudgetOnEveryTarget) {
  const Model model({MakeLayer(4, 2, 64, 64)}, 350, 61);
  const std::string spec = SpecOf(model.FullBytes() / 6, "", kThreeTiers);
  std::vector<double> losses;
  cache_test::OnEveryTarget([&] {
    const Cache cache = model.Finished(spec);
    EXPECT_LE(KeptBytes(cache), model.FullBytes() / 6);
    losses.push_back(LossOf(model, spec, cache));
  });
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-3 * losses[0]);
}

}  // namespace
}  // namespace kvsieve::tier_plan_test
