#include "kvsieve/targets.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvsieve
