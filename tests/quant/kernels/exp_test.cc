// kvsieve/simd/exp-inl.h on every target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "kvsieve/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/quant/kernels/exp_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve {
namespace HWY_NAMESPACE {

// count: a multiple of 16.
void ExpArray(const float* x, std::size_t count, float* y) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(ExpNonPositive(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve {
namespace {

HWY_EXPORT(ExpArray);

std::vector<float> Exp(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(ExpArray)(x.data(), x.size(), y.data());
  return y;
}

class ExpOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(SelectTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SelectTarget("").ok()); }
};

TEST_P(ExpOnTarget, StaysWithinItsRelativeErrorDownToTheCutoff) {
  std::vector<float> x;
  for (int i = 0; i < 1 << 20; ++i) {
    x.push_back(kExpCutoff * static_cast<float>(i) / static_cast<float>((1 << 20) - 1));
  }
  const std::vector<float> y = Exp(x);
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    worst = std::fmax(worst, std::fabs(y[i] / exact - 1.0));
  }
  EXPECT_LE(worst, kExpRelativeError);
  EXPECT_GT(worst, 1e-8) << "the comparison itself is broken";
}

TEST_P(ExpOnTarget, ZeroIsExactlyOneAndFarBelowIsZero) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> y = Exp({0.0F, -0.0F, -1e-30F, -86.6F, -88.0F, -1000.0F, -3e38F, -inf,
                                    0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F});
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 1.0F);
  for (int i = 3; i < 8; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], 0.0F) << i;
}

std::vector<std::string> Targets() {
  std::vector<std::string> names;
  for (const auto name : SupportedTargets()) names.emplace_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Targets, ExpOnTarget, testing::ValuesIn(Targets()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace kvsieve
#endif  // HWY_ONCE
