#include "kvsieve/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kvsieve/targets.h"

namespace kvsieve {
namespace {

TEST(Float16, EveryF16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<std::uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(value)))) << bits;
    } else {
      EXPECT_EQ(ToF16(value).bits, bits);
    }
  }
}

TEST(Float16, RoundsHalfToEvenAndOverflowsToInf) {
  EXPECT_EQ(ToF16(1.0F + 0x1p-11F).bits, 0x3C00);      // half way, even below
  EXPECT_EQ(ToF16(1.0F + 3 * 0x1p-11F).bits, 0x3C02);  // half way, even above
  EXPECT_EQ(ToF16(65519.9F).bits, 0x7BFF);
  EXPECT_EQ(ToF16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(ToF16(5.96e-8F).bits, 0x0001);
  EXPECT_EQ(ToF16(0x1p-25F).bits, 0x0000);  // half of the smallest, even is zero
  EXPECT_EQ(ToF16(-INFINITY).bits, 0xFC00);
}

TEST(Float16, EveryBF16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = ToFloat(BF16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) continue;
    EXPECT_EQ(ToBF16(value).bits, bits);
  }
}

TEST(Float16, DirectedRoundingIsTheNearestOnThatSide) {
  for (int i = -200'000; i < 200'000; i += 7) {
    const float value = static_cast<float>(i) * 0.37F;
    const F16 down = ToF16RoundDown(value);
    ASSERT_LE(ToFloat(down), std::fmax(value, -kF16Max));
    if (value > -kF16Max && value < kF16Max) {
      const bool negative = (down.bits & 0x8000) != 0;
      const F16 next{static_cast<std::uint16_t>(negative ? down.bits - 1 : down.bits + 1)};
      if (down.bits != 0x8000) {
        ASSERT_GT(ToFloat(next), value) << value;
      }
    }
    if (value >= 0) {
      const BF16 up = ToBF16RoundUp(value);
      ASSERT_GE(ToFloat(up), value);
      if (up.bits > 0) {
        ASSERT_LT(ToFloat(BF16{static_cast<std::uint16_t>(up.bits - 1)}), value);
      }
    }
  }
  EXPECT_EQ(ToF16RoundDown(1e9F).bits, 0x7BFF);
  EXPECT_EQ(ToF16RoundDown(-1e9F).bits, 0xFBFF);
  EXPECT_EQ(ToBF16RoundUp(3.4e38F).bits, 0x7F7F);
}

TEST(Float16, ConvertsWholeArraysExactlyOnEveryTarget) {
  std::vector<F16> halves(0x10000);
  for (std::uint32_t bits = 0; bits < halves.size(); ++bits) {
    halves[bits].bits = static_cast<std::uint16_t>(bits);
  }
  std::vector<float> values(halves.size());
  for (const std::string_view target : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(target).ok());
    // An odd length, so that the remainder is taken too.
    ConvertToF32(halves.data() + 1, ElementType::kF16, 0xFFFF, values.data() + 1);
    for (std::size_t i = 1; i < halves.size(); ++i) {
      const float expected = ToFloat(halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i])) << target << " " << i;
      } else {
        ASSERT_EQ(std::memcmp(&values[i], &expected, sizeof(float)), 0) << target << " " << i;
      }
    }
  }
  ASSERT_TRUE(SelectTarget("").ok());
}

}  // namespace
}  // namespace kvsieve
