// The bytes that a plan's notes tell are those that the cache then holds.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/tier_plan_fixture.h"

namespace kvsieve::tier_plan_test {
namespace {

using cache_test::MakeLayer;

constexpr std::int64_t kPlenty = 1 << 30;

struct Stores {
  std::string_view tiers;
  std::string_view rest;
};
constexpr Stores kStores[] = {
    {"kv=int8; kv=int4; kv=int2", ""},
    {"k=center+turbo5, v=turbo5; k=center+turbo3, v=turbo2", " | exact_sinks=2, tail=20"},
    {"kv=turbo4", " | exact_sinks=0"},
    {"kv=channel(group=32)", " | tail=64"},
    {"k=channel(bits=3,group=64), v=int4; kv=int2", " | tail=64"},
};

Model SpreadModel() {
  Model model({MakeLayer(4, 2, 64, 64), MakeLayer(2, 1, 64, 64)}, 300, 53);
  model.SpreadPositions(7);
  return model;
}

// What the plan says; a cache may say more behind it.
std::string NoteOf(const Cache& cache, int layer) {
  const std::string note = cache.ReportLayer(layer).note;
  return note.starts_with("budget") ? note.substr(0, note.find("; ")) : std::string();
}
std::string MustStay(std::int64_t budget, std::int64_t kept) {
  return StrCat("budget allows ", budget, " bytes, ", kept, " must stay");
}
std::string NotReached(std::int64_t budget, std::int64_t kept) {
  return StrCat("budget not reached: ", kept, " of ", budget, " bytes");
}

TEST(TierPlanNote, WhatMustStayDoesAndTheNoteSaysSo) {
  const char* tiers =
      "k=center+turbo5, v=turbo5; k=center+turbo4, v=turbo3; k=center+turbo3, v=turbo2";
  const Model model({MakeLayer(4, 2, 64, 64)}, 200, 43);
  for (const char* scope : {",scope=model", ",scope=layer", ",scope=kv_head"}) {
    const Cache cache = model.Finished(SpecOf(1, StrCat(scope, ",window=16"), tiers));
    for (int head = 0; head < 2; ++head) {
      const auto places = PlaceOfRows(cache, 0, head, 200);
      for (int r = 0; r < 200; ++r) {
        const auto row = static_cast<std::size_t>(r);
        // turbo4 and turbo3: the values have 3 bits, so the window is in the first.
        EXPECT_EQ(places[row], r < 4 ? Cache::kExactRow : r >= 184 ? 0 : kDropped) << r;
      }
    }
    const std::string note = cache.ReportLayer(0).note;
    EXPECT_NE(note.find("budget allows"), std::string::npos) << note;
    EXPECT_NE(note.find("must stay"), std::string::npos) << note;
  }
}

// Just below what must stay and just above: there the plan counts more for positions than is kept,
// and takes no more than that either.
TEST(TierPlanNote, SaysThatTooMuchMustStayOnlyWhereItDoes) {
  const Model model = SpreadModel();
  for (const Stores& stores : kStores) {
    const auto with = [&](std::int64_t budget) {
      return model.Finished(SpecOf(budget, ",sinks=9", stores.tiers, stores.rest));
    };
    const std::int64_t least = with(1).Report().kept_bytes();
    for (const std::int64_t budget : {std::int64_t{1}, least / 2, least - 1}) {
      const Cache cache = with(budget);
      EXPECT_EQ(cache.Report().kept_bytes(), least);
      EXPECT_EQ(NoteOf(cache, 0), MustStay(budget, least)) << stores.tiers;
      EXPECT_EQ(NoteOf(cache, 1), NoteOf(cache, 0));
    }
    for (const std::int64_t more : {0, 1, 30, 1000}) {
      const Cache cache = with(least + more);
      EXPECT_LE(cache.Report().kept_bytes(), least + more);
      EXPECT_EQ(NoteOf(cache, 0), "") << stores.tiers << " + " << more;
    }
  }
}

// Also where rows go that lose nothing by it.
TEST(TierPlanNote, TellsHowMuchOfTheBudgetIsNotReached) {
  const Model model = SpreadModel();
  for (const Stores& stores : kStores) {
    for (const char* more : {"", ",drop_weight=0.01,power=1", ",drop_weight=0"}) {
      SCOPED_TRACE(StrCat(stores.tiers, more));
      const Cache cache = model.Finished(SpecOf(kPlenty, more, stores.tiers, stores.rest));
      EXPECT_EQ(NoteOf(cache, 0), NotReached(kPlenty, cache.Report().kept_bytes()));
    }
  }
}

TEST(TierPlanNote, TellsTheShareOfALayerOrOfItsFirstHead) {
  const Model model = SpreadModel();
  for (const Stores& stores : kStores) {
    const std::string spec = SpecOf(3, ",scope=layer", stores.tiers, stores.rest);
    const Cache by_layer = model.Finished(spec);
    // Two heads and one share 3 bytes.
    EXPECT_EQ(NoteOf(by_layer, 0), MustStay(2, by_layer.ReportLayer(0).bytes.kept_bytes()));
    EXPECT_EQ(NoteOf(by_layer, 1), MustStay(1, by_layer.ReportLayer(1).bytes.kept_bytes()));
    const Cache by_head = model.Finished(SpecOf(3, ",scope=kv_head", stores.tiers, stores.rest));
    EXPECT_EQ(NoteOf(by_head, 0), MustStay(1, by_head.ReportLayer(0).heads[0].kept_bytes()));
  }
}

}  // namespace
}  // namespace kvsieve::tier_plan_test
