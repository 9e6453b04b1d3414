#include "kvsieve/targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvsieve {
namespace {

TEST(Targets, EverySupportedTargetCanBeSelectedAndUndone) {
  const std::string_view best = ActiveTarget();
  ASSERT_EQ(SupportedTargets().front(), best);
  for (const std::string_view name : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(name).ok());
    EXPECT_EQ(ActiveTarget(), name);
  }
  ASSERT_TRUE(SelectTarget("").ok());
  EXPECT_EQ(ActiveTarget(), best);
}

TEST(Targets, UnknownNameIsAnErrorAndChangesNothing) {
  const std::string_view before = ActiveTarget();
  EXPECT_FALSE(SelectTarget("AVX9").ok());
  EXPECT_EQ(ActiveTarget(), before);
}

TEST(Targets, NamesAreReadInAnyCase) {
  ASSERT_TRUE(SelectTarget("scalar").ok());
  EXPECT_EQ(ActiveTarget(), "SCALAR");
  ASSERT_TRUE(SelectTarget("").ok());
}

TEST(Targets, Avx512IsKnownByTheNameThatItHasHere) {
  const auto names = SupportedTargets();
  if (std::find(names.begin(), names.end(), "AVX3") == names.end()) {
    GTEST_SKIP() << "this CPU has no AVX-512";
  }
  for (const char* name : {"AVX512", "avx512f", "AVX-512"}) {
    EXPECT_NE(SelectTarget(name).message().find("did you mean AVX3?"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace kvsieve
