#include "quant/lloyd_max.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvsieve::quant {
namespace {

struct Golden {
  int dim;
  int bits;
  std::vector<double> centroids;   // positive half, unit-variance coordinates
  std::vector<double> thresholds;  // positive, without 0
};

// An independent solution (Lloyd iteration over 200 000-point cumulative tables in long double).
// Six digits are given, so the tolerance is half a unit of the sixth plus f32 rounding.
const Golden kGolden[] = {
    {128, 1, {0.799444}, {}},
    {128, 2, {0.452453, 1.505193}, {0.978823}},
    {128, 3, {0.244425, 0.753330, 1.336599, 2.131471}, {0.498878, 1.044965, 1.734035}},
    {128,
     4,
     {0.127873, 0.386381, 0.653619, 0.937097, 1.247770, 1.604343, 2.045925, 2.688859},
     {0.257127, 0.520000, 0.795358, 1.092434, 1.426056, 1.825134, 2.367392}},
    {64, 1, {0.801007}, {}},
    {64, 2, {0.452119, 1.499975}, {0.976047}},
    {64, 3, {0.243753, 0.750658, 1.329343, 2.111311}, {0.497206, 1.040000, 1.720327}},
    {64,
     4,
     {0.127352, 0.384718, 0.650494, 0.931894, 1.239404, 1.590849, 2.023310, 2.646370},
     {0.256035, 0.517606, 0.791194, 1.085649, 1.415127, 1.807079, 2.334840}},
    {256, 3, {0.244760, 0.754667, 1.340247, 2.141669}, {0.499714, 1.047457, 1.740958}},
    {256,
     4,
     {0.128134, 0.387214, 0.655187, 0.939714, 1.251989, 1.611168, 2.057411, 2.710567},
     {0.257674, 0.521201, 0.797450, 1.095851, 1.431578, 1.834290, 2.383989}},
    {32, 1, {0.804141}, {}},
    {32, 2, {0.451428, 1.489560}, {}},
    {96, 2, {0.452343, 1.503453}, {}},
};

TEST(LloydMax, EqualsTheIndependentTables) {
  constexpr double kTolerance = 0.5e-6 + 3 * 6e-8;  // values up to 3 in f32
  for (const Golden& golden : kGolden) {
    SCOPED_TRACE(testing::Message() << "dim " << golden.dim << " bits " << golden.bits);
    const LloydMaxCodebook book = SolveLloydMax(golden.bits, golden.dim);
    const double unit = std::sqrt(static_cast<double>(golden.dim));
    const int half = book.levels / 2;
    ASSERT_EQ(book.levels, 1 << golden.bits);
    for (std::size_t i = 0; i < golden.centroids.size(); ++i) {
      EXPECT_NEAR(book.centroids[half + i] * unit, golden.centroids[i], kTolerance);
    }
    for (std::size_t i = 0; i < golden.thresholds.size(); ++i) {
      EXPECT_NEAR(book.thresholds[half + i] * unit, golden.thresholds[i], kTolerance);
    }
  }
}

// For N(0,1), bits = 5, the table of the Gaussian limit; at dim 4096 the law differs from it by
// O(1/dim): levels by less than 3 / dim relative (observed from dims 64, 128, 256 above).
TEST(LloydMax, FiveBitsApproachTheGaussianTable) {
  const double expected[] = {0.065890, 0.198052, 0.331378, 0.466699, 0.604933, 0.747135,
                             0.894565, 1.048783, 1.211804, 1.386340, 1.576228, 1.787233,
                             2.028728, 2.317739, 2.691119, 3.260732};
  const LloydMaxCodebook book = SolveLloydMax(5, 4096);
  for (int i = 0; i < 16; ++i) {
    EXPECT_NEAR(book.centroids[16 + i] * 64.0, expected[i], expected[i] * 3.0 / 4096) << i;
  }
}

// Every dim that turbo accepts: symmetric, increasing, thresholds half way, inside the sphere.
TEST(LloydMax, IsSymmetricAndOrderedForEveryDim) {
  for (int dim = 16; dim <= 4096; dim = dim < 512 ? dim + 16 : dim * 2) {
    for (int bits = 1; bits <= kMaxTurboBits; ++bits) {
      const LloydMaxCodebook book = SolveLloydMax(bits, dim);
      for (int i = 0; i < book.levels; ++i) {
        ASSERT_EQ(book.centroids[i], -book.centroids[book.levels - 1 - i]);
        ASSERT_LT(std::fabs(book.centroids[i]), 1.0F);
        if (i == 0) continue;
        ASSERT_LT(book.centroids[i - 1], book.centroids[i]) << dim << ' ' << bits;
        const double middle = (double{book.centroids[i - 1]} + book.centroids[i]) / 2;
        ASSERT_NEAR(book.thresholds[i - 1], middle, 6e-8);
      }
    }
  }
}

// Golden bits, from x86-64: a compiler or machine that solved another codebook would write other
// bytes for the same rows.
TEST(LloydMax, HasTheSameBitsEverywhere) {
  const float expected[] = {0x1.725c36p-7F, 0x1.17c508p-5F, 0x1.d9454ap-5F, 0x1.5343eep-4F,
                            0x1.c3bdbcp-4F, 0x1.226ac4p-3F, 0x1.725a2p-3F,  0x1.e6bc4ap-3F};
  const LloydMaxCodebook book = SolveLloydMax(4, 128);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(book.centroids[8 + i], expected[i]) << i;
}

}  // namespace
}  // namespace kvsieve::quant
