#include "kvsieve/keep_set.h"

#include <gtest/gtest.h>

namespace kvsieve {
namespace {

TEST(KeepSet, HeadsMayKeepDifferentNumbersOfRows) {
  const auto set = KeepSet::Create({0, 2, 2, 5}, {1, 4, 0, 2, 9}, {});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->kv_heads(), 3);
  EXPECT_EQ(set->rows(1), 0);
  EXPECT_EQ(set->positions(2)[2], 9);
  EXPECT_TRUE(set->tiers(0).empty());
}

TEST(KeepSet, RejectsWhatIsNotStrictlyIncreasing) {
  EXPECT_FALSE(KeepSet::Create({0, 2}, {4, 4}, {}).ok());
  EXPECT_FALSE(KeepSet::Create({0, 2}, {4, 1}, {}).ok());
  EXPECT_FALSE(KeepSet::Create({0, 1}, {-1}, {}).ok());
  EXPECT_FALSE(KeepSet::Create({0, 3}, {1, 2}, {}).ok());
  EXPECT_FALSE(KeepSet::Create({0, 2, 1, 3}, {1, 2, 3}, {}).ok());
  EXPECT_FALSE(KeepSet::Create({0, 2}, {1, 2}, {0}).ok());
  EXPECT_FALSE(KeepSet::Create({}, {}, {}).ok());
}

}  // namespace
}  // namespace kvsieve
