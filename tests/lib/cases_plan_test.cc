// Cases from the field about bytes that are told beforehand (docs/cases.md).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvsieve/plan_bytes.h"
#include "kvsieve/str_cat.h"
#include "tests/lib/plan_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using plan_test::ExpectWithin;
using plan_test::Life;
using plan_test::MustPlan;

// Block bytes of a quantized row are not bytes of an element.
TEST(Cases, U71_QuantizedRowsTakeTheirBlocksBytes) {
  const std::vector<LayerSpec> layers(32, MakeLayer(32, 8, 128, 128));
  PlanRequest request;
  request.prompt_tokens = 8192;
  const auto rows_of = [&](const char* spec) {
    const BytePlan plan = MustPlan(spec, layers, request);
    EXPECT_TRUE(plan.kept.exact());
    // A head without gaps stores one position.
    EXPECT_EQ(plan.bytes.most.metadata_bytes, 32 * 8 * 4);
    EXPECT_EQ(plan.bytes.most.full_bytes(), 1'073'741'824);
    return plan.bytes.most.payload_bytes + plan.bytes.most.scale_bytes;
  };
  EXPECT_EQ(rows_of("none | kv=f16"), 1'073'741'824);
  EXPECT_EQ(rows_of("none | kv=q8_0"), 570'425'344);
  EXPECT_EQ(rows_of("none | kv=q4_0"), 301'989'888);
}

// The plan is what the allocator gives: to the byte without eviction, within 1 % with it.
TEST(Cases, U73_ThePlanIsWhatIsAllocated) {
  const std::vector<LayerSpec> layers(2, MakeLayer(8, 2, 128, 128));
  PlanRequest request;
  request.prompt_tokens = 3000;
  request.key_type = request.value_type = ElementType::kF32;
  for (const char* evict : {"none", "snapkv(budget=25%)", "random(budget=40%)"}) {
    for (const char* store : {"kv=f16", "kv=q8_0", "kv=q4_0", "kv=int8", "kv=int4",
                              "k=center+turbo4, v=turbo4", "kv=channel(bits=2)"}) {
      const std::string spec = StrCat(evict, " | ", store);
      SCOPED_TRACE(spec);
      const BytePlan plan = MustPlan(spec, layers, request);
      Life life(spec, layers, request);
      life.Finish();
      ExpectWithin(plan.resident, life.allocator().live_bytes, "resident");
      EXPECT_LE(plan.resident.most - plan.resident.least, plan.resident.least / 100);
      ExpectWithin(plan.prefill_peak, life.allocator().peak_bytes, "peak");
    }
  }
}

// Sizes that 32 bits do not hold.
TEST(Cases, U77_PlannedSizesAre64Bits) {
  const std::vector<LayerSpec> layers(80, MakeLayer(64, 8, 128, 128));
  PlanRequest request;
  request.prompt_tokens = 1'048'576;
  const BytePlan plan = MustPlan("none | kv=f16", layers, request);
  EXPECT_EQ(plan.bytes.most.payload_bytes, 343'597'383'680);
  EXPECT_EQ(plan.bytes.most.full_bytes(), 343'597'383'680);
  EXPECT_GT(plan.prefill_peak.least, 2 * std::int64_t{343'597'383'680});
}

}  // namespace
}  // namespace kvsieve
