#include "kvsieve/spec_args.h"

#include <gtest/gtest.h>

namespace kvsieve {
namespace {

SpecCall Call(std::vector<SpecArg> args) { return {"stage", 3, std::move(args)}; }

TEST(SpecArgs, PercentagesAreExact) {
  EXPECT_EQ((*ParsePercent("10%")).CeilOf(1000), 100);
  EXPECT_EQ((*ParsePercent("20%")).CeilOf(5), 1);
  EXPECT_EQ((*ParsePercent("0.1%")).CeilOf(5), 1);
  EXPECT_EQ((*ParsePercent("33.3%")).CeilOf(1000), 333);
  EXPECT_EQ((*ParsePercent("100%")).CeilOf(7), 7);
  for (const char* bad :
       {"0%", "101%", "-5%", "%", "25", "1e1%", "nan%", "", "1.2.3%", "99999999999999999999%"}) {
    EXPECT_FALSE(ParsePercent(bad).ok()) << bad;
  }
}

TEST(SpecArgs, SizesNeedAUnit) {
  EXPECT_EQ(*ParseByteSize("64MiB"), 64 << 20);
  EXPECT_EQ(*ParseByteSize("1.5kB"), 1500);
  EXPECT_EQ(*ParseByteSize("1001B"), 1001);
  for (const char* bad :
       {"64", "MiB", "0MiB", "-1MiB", "1mib", "infGiB", "1e30GiB", "B", "64XiB"}) {
    EXPECT_FALSE(ParseByteSize(bad).ok()) << bad;
  }
}

TEST(SpecArgs, ReportsTheFirstMistakeWithItsColumn) {
  const SpecCall call = Call({{"group", "x", 9, 15, {}}});
  ArgReader args(call);
  int group = 32;
  args.Int("group", &group, 1, 64);
  const Status status = args.Finish();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "column 15: option group: 'x' is not an integer");
  EXPECT_EQ(group, 32);
}

TEST(SpecArgs, SuggestsNamesWhateverTheirCase) {
  const std::vector<std::string_view> known = {"int4", "snapkv", "AVX3"};
  EXPECT_EQ(Suggest("SnapKV", known), " (did you mean snapkv?)");
  EXPECT_EQ(Suggest("avx2", known), " (did you mean AVX3?)");
}

TEST(SpecArgs, SuggestsANearOption) {
  const SpecCall call = Call({{"windw", "32", 9, 15, {}}});
  ArgReader args(call);
  int window = 0;
  args.Int("window", &window, 1, 64);
  EXPECT_EQ(args.Finish().message(),
            "column 9: unknown option 'windw' of stage (did you mean window?)");
}

TEST(SpecArgs, RejectsAKeyGivenTwice) {
  const SpecCall call = Call({{"a", "1", 9, 11, {}}, {"a", "2", 13, 15, {}}});
  ArgReader args(call);
  int a = 0;
  args.Int("a", &a, 0, 9);
  EXPECT_EQ(args.Finish().message(), "column 13: option 'a' of stage is given twice");
}

TEST(SpecArgs, AKeyWithoutItsValueAndAWordWithOneAreNamed) {
  const auto error = [](const SpecArg& arg) {
    const SpecCall call = Call({arg});
    ArgReader args(call);
    int a = 0;
    args.Int("a", &a, 0, 9);
    args.Word("sym");
    return args.Finish().message();
  };
  EXPECT_EQ(error({"", "a", 9, 9, {}}), "column 9: option 'a' of stage needs a value");
  EXPECT_EQ(error({"sym", "1", 9, 13, {}}), "column 9: option 'sym' of stage takes no value");
}

TEST(SpecArgs, ListsEachKnownOptionOnce) {
  const SpecCall call = Call({{"nothing_like_it", "1", 9, 25, {}}});
  ArgReader args(call);
  int a = 0;
  if (args.Raw("a") == nullptr) args.Int("a", &a, 0, 9);
  EXPECT_EQ(args.Finish().message(),
            "column 9: unknown option 'nothing_like_it' of stage (known: a)");
}

}  // namespace
}  // namespace kvsieve
