// What PlanBytes tells beforehand, against what a cache that lived through it reports, and what its
// allocator gave.
#include "kvsieve/plan_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"
#include "tests/lib/plan_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MustParse;
using plan_test::ExpectWithin;
using plan_test::Life;
using plan_test::MustPlan;

void ExpectPlanHolds(const std::string& spec, const std::vector<LayerSpec>& layers,
                     PlanRequest request) {
  SCOPED_TRACE(StrCat(spec, ", ", request.prompt_tokens, " + ", request.decode_tokens,
                      " tokens, chunks of ", request.chunk_tokens));
  request.key_type = request.value_type = ElementType::kF32;
  const BytePlan plan = MustPlan(spec, layers, request);
  Life life(spec, layers, request);
  life.Finish();
  ExpectWithin(plan.prefill_peak, life.allocator().peak_bytes, "peak");
  life.Decode();
  const ByteReport report = life.cache().Report();
  ExpectWithin(plan.bytes, report);
  ExpectWithin(plan.kept, report.kept_bytes(), "kept");
  ExpectWithin(plan.resident, life.allocator().live_bytes, "resident");
  ASSERT_EQ(plan.layers.size(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    SCOPED_TRACE(StrCat("layer ", i));
    EXPECT_EQ(plan.layers[i].layer, layers[i].layer);
    ExpectWithin(plan.layers[i].bytes, life.cache().ReportLayer(static_cast<int>(i)).bytes);
  }
}

std::vector<LayerSpec> MixedLayers() {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 64, 64), MakeLayer(4, 2, 64, 64),
                                   MakeLayer(3, 1, 96, 32), MakeLayer(4, 4, 32, 64)};
  layers[1].sliding_window = 100;
  for (int i = 0; i < 4; ++i) layers[static_cast<std::size_t>(i)].layer = i;
  return layers;
}

constexpr const char* kStores[] = {"kv=f16",
                                   "kv=int8 | tail=64",
                                   "k=int8, v=int4 | exact_sinks=4",
                                   "kv=q8_0",
                                   "kv=q4_0 | tail=1",
                                   "k=center+turbo4, v=turbo3 | tail=40",
                                   "kv=channel(bits=2,group=32)",
                                   "kv=channel(bits=4,group=16) | exact_sinks=70 | tail=50",
                                   "kv=int8 | layers(0..0,-1..-1)={kv=f16}"};

// Nothing is left open where every row stays, and right after the prompt nothing else is either.
TEST(PlanBytes, IsExactWithoutEviction) {
  for (const char* store : kStores) {
    const std::string spec = StrCat("none | ", store);
    for (const std::int64_t tokens : {0, 3, 64, 331}) {
      PlanRequest request;
      request.prompt_tokens = tokens;
      ExpectPlanHolds(spec, MixedLayers(), request);
      const BytePlan plan = MustPlan(spec, MixedLayers(), request);
      EXPECT_TRUE(plan.kept.exact());
      EXPECT_TRUE(plan.resident.exact());
      EXPECT_TRUE(plan.prefill_peak.exact());
      request.chunk_tokens = 37;
      ExpectPlanHolds(spec, MixedLayers(), request);
      for (const std::int64_t decode : {1, 170, 600}) {
        request.decode_tokens = decode;
        ExpectPlanHolds(spec, MixedLayers(), request);
        EXPECT_TRUE(MustPlan(spec, MixedLayers(), request).kept.exact());
      }
    }
  }
}

// Where V lies in K there is K alone.
TEST(PlanBytes, CountsLatentRowsOnce) {
  std::vector<LayerSpec> layers = {MakeLayer(4, 1, 96, 64), MakeLayer(4, 2, 64, 64)};
  layers[0].value_is_key_prefix = true;
  for (const char* spec : {"none | kv=f16", "none | kv=int8 | exact_sinks=4, tail=20",
                           "snapkv(budget=40%,window=16) | kv=int8 | tail=8",
                           "random(budget=2x) | kv=center+turbo4"}) {
    PlanRequest request;
    request.prompt_tokens = 200;
    ExpectPlanHolds(spec, layers, request);
    request.decode_tokens = 50;
    ExpectPlanHolds(spec, layers, request);
  }
  PlanRequest request;
  request.prompt_tokens = 1000;
  EXPECT_EQ(MustPlan("none | kv=f16", {layers[0]}, request).bytes.most.payload_bytes,
            1000 * 96 * 2);
}

class PlanWithEviction : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanWithEviction, HoldsWhatTheCacheReports) {
  for (const char* store : kStores) {
    const std::string spec = StrCat(GetParam(), " | ", store);
    for (const std::int64_t tokens : {2, 90, 331}) {
      PlanRequest request;
      request.prompt_tokens = tokens;
      ExpectPlanHolds(spec, MixedLayers(), request);
      request.decode_tokens = 75;
      ExpectPlanHolds(spec, MixedLayers(), request);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Evictors, PlanWithEviction,
    ::testing::Values("snapkv(budget=60)", "snapkv(budget=30%,window=8,sinks=0)",
                      "random(budget=50)", "snapkv(budget=40%,window=16,split=pyramid(beta=10))",
                      "snapkv(budget=40%,window=16,split=adaptive)",
                      "snapkv(budget=40%,window=16,split=adaptive(floor=0,scope=model))",
                      "random(budget=60%,select=threshold:0.7)",
                      "random(budget=40%,protect=[50..80])", "random(budget=33%,select=chunk:16)",
                      "snapkv(budget=30%,scope=layer)", "snapkv(budget=3x,window=16)",
                      "random(budget=60kB)", "random(budget=1GiB)", "random(budget=10B)",
                      "random(budget=3x,split=adaptive)", "random(budget=2x,split=pyramid)",
                      "random(budget=2x,select=threshold:0.5)"));

// Of plans only the most is known: the budget wherever what must stay is less.
TEST(PlanBytes, PlansTakeTheirBudgetAtMost) {
  const std::string stores = "tiers=[kv=int8; k=turbo4, v=turbo3; kv=turbo2]";
  for (const std::string& spec :
       {std::string("waterfill(budget=6x,window=8) | ") + stores,
        "waterfill(budget=40kB,window=8) | " + stores + " | tail=20",
        "waterfill(budget=5x,window=8,scope=layer) | " + stores + " | exact_sinks=10",
        "waterfill(budget=5x,window=8,scope=kv_head) | " + stores,
        "waterfill(budget=100x,window=32) | " + stores, "waterfill(budget=1GiB) | " + stores,
        std::string("waterfill(budget=4x,window=8) | tiers=[kv=int8; kv=channel(bits=2,group=16)] "
                    "| tail=16"),
        std::string("best(3.7x) | tail=5"), std::string("best(8x)")}) {
    for (const std::int64_t tokens : {2, 90, 331, 1500}) {
      PlanRequest request;
      request.prompt_tokens = tokens;
      ExpectPlanHolds(spec, MixedLayers(), request);
      request.chunk_tokens = 37;
      ExpectPlanHolds(spec, MixedLayers(), request);
    }
  }
  PlanRequest request;
  request.prompt_tokens = 4096;
  const BytePlan plan = MustPlan("best(8x)", MixedLayers(), request);
  EXPECT_EQ(plan.kept.most, plan.bytes.most.full_bytes() / 8);
  EXPECT_EQ(plan.kept.least, 0);
  EXPECT_GT(plan.resident.most, plan.kept.most);
  request.decode_tokens = 1;
  const Result<BytePlan> decode = PlanBytes(*MustParse("best(8x)"), MixedLayers(), request);
  ASSERT_FALSE(decode.ok());
  EXPECT_NE(decode.error().message.find("1 decode tokens"), std::string::npos);
}

// Twelve rows are in the first tier, and the last row alone brings the second, whose statistics are
// six times as large.
TEST(PlanBytes, PlansCountTheStatisticsOfAllTiers) {
  PlanRequest request;
  request.prompt_tokens = 40;
  ExpectPlanHolds(
      "waterfill(budget=1B,window=1,sinks=12) | tiers=[kv=int8; kv=channel_scale+int4] | "
      "exact_sinks=0",
      {MakeLayer(2, 1, 256, 256)}, request);
}

// Tiers have known numbers of rows, but for protected rows that may lie in the exact tail.
TEST(PlanBytes, HoldsWhatTiersTake) {
  for (const char* evict :
       {"snapkv(budget=60%,window=8)", "random(budget=40%,protect=[50..80])", "random(budget=100%)",
        "recency(budget=90,over_budget=budget,sinks=100)",
        "snapkv(budget=50%,window=16,split=pyramid)", "random(budget=70%,recent=100)"}) {
    for (const char* store :
         {"kv=int8 | cold(35%)={kv=int4}",
          "k=center+turbo4, v=turbo4 | cold(20%)={kv=int4} | cold(30)={k=turbo2, v=int8} | tail=20",
          "kv=center+turbo4 | cold(20%)={k=center+int4, v=turbo2} | cold(30)={k=int2, "
          "v=center+int2}",
          "kv=f16 | cold(50)={k=center+turbo3, v=int4} | exact_sinks=40 | tail=64",
          "kv=int8 | cold(99%)={kv=turbo2} | layers(0..0)={kv=f16} | tail=3"}) {
      for (const std::int64_t tokens : {3, 90, 331}) {
        PlanRequest request;
        request.prompt_tokens = tokens;
        ExpectPlanHolds(StrCat(evict, " | ", store), MixedLayers(), request);
        request.decode_tokens = 75;
        ExpectPlanHolds(StrCat(evict, " | ", store), MixedLayers(), request);
      }
    }
  }
  const std::vector<LayerSpec> layers(3, MakeLayer(4, 2, 64, 64));
  PlanRequest request;
  request.prompt_tokens = 1000;
  const BytePlan plan =
      MustPlan("snapkv(budget=100%) | kv=int8 | cold(350)={kv=int4}", layers, request);
  // 650 rows of 64 + 64 bytes and 350 of 32 + 32, in six heads.
  EXPECT_EQ(plan.bytes.least.payload_bytes, 6 * (650 * 128 + 350 * 64));
  EXPECT_EQ(plan.bytes.most.payload_bytes, 6 * (650 * 128 + 350 * 64));
}

// Any evictor with any store, shape and length.
TEST(PlanBytes, HoldsWhateverIsPlanned) {
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto up_to = [&](unsigned most) { return static_cast<int>(random() % (most + 1)); };
    const auto one_of = [&](auto&&... choices) {
      const std::string all[] = {std::string(choices)...};
      return all[random() % std::size(all)];
    };
    std::string spec = "none";
    if (up_to(5) > 0) {
      spec = StrCat(
          one_of("random(", "recency(", "key_norm("),
          one_of(StrCat("budget=", 1 + up_to(300)), StrCat("budget=", 1 + up_to(99), "%"),
                 StrCat("budget=", 1 + up_to(400), "kB"), StrCat("budget=", 1 + up_to(9), "x")),
          ",over_budget=", one_of("protected", "budget"), ",sinks=", up_to(12),
          one_of("", StrCat(",recent=", up_to(40)), StrCat(",recent=", 1 + up_to(40), "%"),
                 ",recent=budget/8"),
          one_of("", "", StrCat(",protect=[", 20, "..", 20 + up_to(90), "]")),
          one_of("", ",select=block:8", ",select=chunk:5", ",select=threshold:0.5"),
          one_of("", ",split=pyramid(beta=6)", ",split=adaptive(floor=0.1)",
                 ",split=adaptive(scope=model)"),
          ")");
    }
    spec += StrCat(" | ", one_of("kv=int8", "k=turbo4, v=int4", "kv=f16", "k=center+turbo3, v=f16",
                                 "k=channel(bits=2,group=16), v=int8"));
    const bool tiers = spec.starts_with("random(") && up_to(2) > 0 &&
                       spec.find("kB") == spec.npos && spec.find("x,") == spec.npos &&
                       spec.find("threshold") == spec.npos && spec.find("adaptive") == spec.npos &&
                       spec.find("channel") == spec.npos;
    if (tiers) {
      spec += StrCat(" | cold(", 1 + up_to(99), "%)={", one_of("kv=int4", "kv=center+turbo2"), "}");
      if (up_to(1) > 0) spec += StrCat(" | cold(", 1 + up_to(90), ")={k=turbo2, v=int8}");
    }
    spec += StrCat(" | exact_sinks=", up_to(3) == 0 ? up_to(90) : up_to(4),
                   " | tail=", up_to(1) == 0 ? 16 : 16 + up_to(90));
    std::vector<LayerSpec> layers;
    for (int i = 0; i < 1 + up_to(2); ++i) {
      layers.push_back(MakeLayer(4, 1 << up_to(2), 16 * (1 + up_to(3)), 32));
      if (up_to(3) == 0) layers.back().sliding_window = 1 + up_to(200);
    }
    PlanRequest request;
    request.prompt_tokens = up_to(350);
    request.decode_tokens = up_to(1) * up_to(200);
    request.chunk_tokens = up_to(1) * up_to(90);
    ExpectPlanHolds(spec, layers, request);
  }
}

TEST(PlanBytes, HoldsWhatSchedulesLeave) {
  for (const char* spec : {"random(budget=60,recent=8) | kv=int8 | tail=16 | schedule=per_chunk",
                           "random(budget=60,recent=20%) | kv=int4 | schedule=per_chunk",
                           "recency(budget=48) | k=center+turbo4, v=turbo4 | schedule=per_chunk",
                           "snapkv(budget=48,window=16) | kv=int8 | schedule=every(8)"}) {
    for (const std::int64_t chunk : {0, 33, 100}) {
      PlanRequest request;
      request.prompt_tokens = 331;
      request.chunk_tokens = chunk;
      ExpectPlanHolds(spec, MixedLayers(), request);
    }
  }
}

// Rows chosen by score leave positions open, and nothing else.
TEST(PlanBytes, OnlyPositionsAreOpenUnderAnEvenSplit) {
  const std::vector<LayerSpec> layers(3, MakeLayer(4, 2, 64, 64));
  PlanRequest request;
  request.prompt_tokens = 1000;
  const BytePlan plan =
      MustPlan("snapkv(budget=25%) | k=center+turbo4, v=turbo4 | exact_sinks=4", layers, request);
  EXPECT_EQ(plan.bytes.least.payload_bytes, plan.bytes.most.payload_bytes);
  EXPECT_EQ(plan.bytes.least.scale_bytes, plan.bytes.most.scale_bytes);
  EXPECT_EQ(plan.bytes.most.rows_kept, 3 * 2 * 250);
  // One position at least of sinks and tier; at most the 246 rows kept are split over all 996
  // behind the sinks: of one low bit each, 3 times 64 in 8 bytes with a mark of 4 and 54 in 7; and
  // a bit each among 995 / 2 high ones, 743 bits in 93 bytes.
  EXPECT_EQ(plan.kept.most - plan.kept.least, 6 * (3 * 12 + 7 + 93 - 4));
  // Without exact sinks first and last row are known, so that their bytes are.
  EXPECT_TRUE(MustPlan("snapkv(budget=25%) | kv=int8", layers, request).kept.exact());
  // Heads that compete keep a known number of rows together.
  const BytePlan adaptive =
      MustPlan("snapkv(budget=25%,split=adaptive(scope=model)) | kv=int8", layers, request);
  EXPECT_EQ(adaptive.bytes.least.payload_bytes, adaptive.bytes.most.payload_bytes);
  EXPECT_EQ(adaptive.bytes.most.rows_kept, 3 * 2 * 250);
}

// A budget in bytes is nearly used up, and never passed.
TEST(PlanBytes, ABudgetInBytesBoundsWhatIsKept) {
  const std::vector<LayerSpec> layers(4, MakeLayer(8, 2, 128, 128));
  PlanRequest request;
  request.prompt_tokens = 20000;
  const BytePlan plan = MustPlan("snapkv(budget=8x) | kv=int8", layers, request);
  const std::int64_t limit = std::int64_t{4} * 2 * 20000 * 512 / 8;
  EXPECT_EQ(plan.kept.most, limit);
  EXPECT_GT(plan.kept.least, limit - limit / 50);
}

TEST(PlanBytes, ErrorsSayWhatIsWrong) {
  const std::vector<LayerSpec> layers = {MakeLayer(4, 2, 80, 80)};
  const auto error_of = [&](std::string_view spec, const PlanRequest& request) {
    const Result<BytePlan> plan = PlanBytes(*MustParse(spec), layers, request);
    EXPECT_FALSE(plan.ok());
    return plan.ok() ? std::string() : plan.error().message;
  };
  EXPECT_NE(error_of("none | kv=q8_0", {}).find("layer 0: "), std::string::npos);
  EXPECT_NE(error_of("none | layers(1..1)={kv=f16}", {}).find("layer range 1..1"),
            std::string::npos);
  PlanRequest negative;
  negative.decode_tokens = -1;
  EXPECT_NE(error_of("none", negative).find("-1 tokens"), std::string::npos);
  PlanRequest decode;
  decode.decode_tokens = 1;
  EXPECT_NE(error_of("random(budget=64) | schedule=every(4)", decode).find("every(4)"),
            std::string::npos);
  PlanRequest prompt;
  prompt.prompt_tokens = 100;
  EXPECT_NE(error_of("random(budget=4x) | kv=int8 | cold(9)={kv=int4}", prompt).find("bytes"),
            std::string::npos);
  EXPECT_NE(error_of("random(budget=9,split=adaptive) | kv=int8 | cold(9)={kv=int4}", prompt)
                .find("cold tiers of heads"),
            std::string::npos);
  EXPECT_NE(error_of("random(budget=90) | kv=int8 | cold(9)={kv=channel(bits=4)}", prompt)
                .find("cold tiers with codec channel are not planned"),
            std::string::npos);
}

}  // namespace
}  // namespace kvsieve
