// What waterfill reads, writes and refuses.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "evict/waterfill.h"
#include "kvsieve/str_cat.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using testing::Observed;
using testing::RandomLayer;

TEST(Waterfill, QueriesThatWereNotObservedAreNamed) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 100, 20}, 1));
  const auto evictor = testing::MustMake("waterfill(budget=8x)");
  SerialParallel serial;
  RowLosses losses;
  const Status status =
      evictor->loss_estimator()->Estimate(observed.observation(), serial, nullptr, &losses);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("68..79"), std::string_view::npos) << status.message();
  EXPECT_NE(status.message().find("window=32"), std::string_view::npos) << status.message();
}

TEST(Waterfill, ValuesAreNeeded) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 100, 32}, 1));
  std::vector<HeadObservation> heads(observed.observation().heads.begin(),
                                     observed.observation().heads.end());
  heads[0].values = nullptr;
  Observation observation = observed.observation();
  observation.heads = heads;
  SerialParallel serial;
  RowLosses losses;
  EXPECT_FALSE(testing::MustMake("waterfill(budget=8x)")
                   ->loss_estimator()
                   ->Estimate(observation, serial, nullptr, &losses)
                   .ok());
}

TEST(Waterfill, RanksNoRows) {
  const Observed observed(RandomLayer({2, 1, 16, 16, 100, 32}, 1));
  const Observation observation = observed.observation();
  const auto evictor = testing::MustMake("waterfill(budget=64MiB)");
  SerialParallel serial;
  EXPECT_FALSE(evictor->Decide({&observation, 1}, serial, nullptr).ok());
  EXPECT_FALSE(evictor->Rank({&observation, 1}, {}, serial, nullptr).ok());
  EXPECT_FALSE(evictor->Foresee({}).ok());
  EXPECT_FALSE(evictor->CheckRepeatable().ok());
  EXPECT_EQ(evictor->byte_budget()->bytes, std::int64_t{64} << 20);
}

constexpr std::string_view kDefaults =
    "waterfill(budget=8x,scope=model,power=0.5,pool=max:15,pool_pad=exclude,drop_weight=4,"
    "window=32,sinks=4,";

TEST(Waterfill, WritesOutItsDefaults) {
  EXPECT_EQ(testing::Canonical("waterfill(budget=8x)"),
            StrCat(kDefaults, "level=0,floor=0,follow=0)"));
  EXPECT_EQ(testing::Canonical("waterfill(budget=8x,follow=64,floor=0.1,level=0.5)"),
            StrCat(kDefaults, "level=0.5,floor=0.1,follow=64,follow_weight=0.1)"));
}

TEST(Waterfill, WhatItWritesIsReadAsTheSame) {
  for (const char* spec :
       {"waterfill(budget=8x)", "waterfill(budget=8x,follow=0)", "waterfill(budget=1MiB,level=2)",
        "waterfill(budget=8x,floor=10)", "waterfill(budget=8x,follow=7,follow_weight=0)",
        "waterfill(budget=8x,level=0.5,floor=0.125,follow=2147483647,follow_weight=1)"}) {
    const std::string canonical = testing::Canonical(spec);
    EXPECT_EQ(testing::Canonical(canonical), canonical);
  }
}

TEST(Waterfill, NamesOptionsThatItCannotUse) {
  const auto expect_error = [](std::string_view option, std::string_view message) {
    const Error error = testing::ErrorOf(StrCat("waterfill(budget=8x,", option, ")"));
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << option;
    EXPECT_NE(error.message.find(message), std::string::npos) << option << ": " << error.message;
    EXPECT_EQ(error.message.find("column "), 0U) << error.message;
  };
  expect_error("follow_weight=0.2", "column 21: option follow_weight means nothing with follow=0");
  expect_error("follow=0,follow_weight=0.2", "means nothing with follow=0");
  for (const std::string_view range :
       {"level=-0.5", "level=2.5", "level=nan", "floor=-1", "floor=10.5", "follow=-1", "follow=1.5",
        "follow=4294967296"}) {
    expect_error(range, StrCat("option ", range.substr(0, range.find('='))));
  }
  expect_error("follow=8,follow_weight=1.5", "option follow_weight");
  expect_error("follow=8,follow_weight=-0.1", "option follow_weight");
}

}  // namespace
}  // namespace kvsieve
