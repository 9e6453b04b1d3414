// center, hadamard and channel_scale are exact changes of basis.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kvsieve/codec.h"
#include "quant/hadamard.h"
#include "quant/registry.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::GaussianRows;
using quant_test::OnEveryTarget;
using quant_test::Rows;

constexpr int kDims[] = {1, 2, 4, 8, 16, 33, 40, 64, 72, 80, 96, 112, 128, 192, 256, 576, 4096};
constexpr double kUnit = 0x1p-24;

std::shared_ptr<const Transform> Hadamard(int dim, std::uint64_t seed) {
  return quant::MakeHadamard(dim, seed, "hadamard");
}

// Rounding of a transform of `block` points relative to the row's length: log2(block) additions,
// the factor (rounded itself), and the product with it.
double HadamardError(int dim) { return (std::log2(quant::HadamardBlock(dim)) + 3) * kUnit; }

TEST(Hadamard, BlockIsTheLargestPowerOfTwoDividingDim) {
  EXPECT_EQ(quant::HadamardBlock(128), 128);
  EXPECT_EQ(quant::HadamardBlock(80), 16);
  EXPECT_EQ(quant::HadamardBlock(96), 32);
  EXPECT_EQ(quant::HadamardBlock(576), 64);
  EXPECT_EQ(quant::HadamardBlock(33), 1);
}

// The reference outputs of splitmix64 seeded with 0 are the outputs for states 0,
// 0x9E3779B97F4A7C15, ...: the first is 0xE220A8397B1DCDAF, bit 63 set.
TEST(Hadamard, SignsAreBit63OfSplitMix64) {
  EXPECT_TRUE(quant::NegatedDim(0, 0));
  // From an independent implementation (Python integers), seeds 0 and 7, dims 0..15.
  const char* expected[] = {"---+++-+--++--+-", "-+------++++--++"};
  const std::uint64_t seeds[] = {0, 7};
  for (int s = 0; s < 2; ++s) {
    std::string signs;
    for (int j = 0; j < 16; ++j) signs += quant::NegatedDim(seeds[s], j) ? '-' : '+';
    EXPECT_EQ(signs, expected[s]);
  }
}

// y_i = sum_j (-1)^popcount(i & j) s_j x_j / sqrt(block), written out.
TEST(Hadamard, EqualsTheDenseMatrixOnEveryTarget) {
  OnEveryTarget([] {
    for (const int dim : kDims) {
      if (dim > 600) continue;
      const Rows rows = GaussianRows(2, dim, 40);
      Rows rotated = rows;
      Hadamard(dim, 7)->Apply(nullptr, rotated.row(0), 2);
      const int block = quant::HadamardBlock(dim);
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < dim; ++i) {
          double exact = 0, length = 0;
          const int first = i / block * block;
          for (int j = first; j < first + block; ++j) {
            const double x = quant::NegatedDim(7, j) ? -rows.row(r)[j] : rows.row(r)[j];
            exact += std::popcount(static_cast<unsigned>((i - first) & (j - first))) % 2 ? -x : x;
            length += std::fabs(x);
          }
          const double root = std::sqrt(static_cast<double>(block));
          ASSERT_NEAR(rotated.row(r)[i], exact / root, HadamardError(dim) * length / root + 1e-9)
              << dim << ' ' << i;
        }
      }
    }
  });
}

TEST(Hadamard, KeepsLengthsAndProductsAndComesBack) {
  for (const int dim : kDims) {
    const auto transform = Hadamard(dim, 3);
    const Rows rows = GaussianRows(8, dim, 41);
    Rows rotated = rows;
    transform->Apply(nullptr, rotated.row(0), 8);
    Rows query = GaussianRows(1, dim, 42);
    const Rows original_query = query;
    EXPECT_EQ(transform->ApplyToQuery(nullptr, query.row(0)), 0.0F);
    Rows back = rotated;
    transform->Invert(nullptr, back.row(0), 8);
    Rows output = rotated;
    transform->InvertOutput(nullptr, 0.3F, output.row(0));
    for (int r = 0; r < 8; ++r) {
      double length = 0, rotated_length = 0, q_length = 0, dot = 0, rotated_dot = 0;
      for (int j = 0; j < dim; ++j) {
        const double x = rows.row(r)[j], y = rotated.row(r)[j];
        length += x * x;
        rotated_length += y * y;
        q_length += double{original_query.row(0)[j]} * original_query.row(0)[j];
        dot += x * original_query.row(0)[j];
        rotated_dot += y * query.row(0)[j];
      }
      // Errors of single elements are relative to the block's length, hence the root.
      const double error = HadamardError(dim) * std::sqrt(static_cast<double>(dim));
      EXPECT_NEAR(std::sqrt(rotated_length / length), 1.0, error) << dim;
      EXPECT_NEAR(rotated_dot, dot, 2 * error * std::sqrt(length * q_length)) << dim;
      for (int j = 0; j < dim; ++j) {
        ASSERT_NEAR(back.row(r)[j], rows.row(r)[j], 2 * error * std::sqrt(length)) << dim;
        if (r > 0) continue;
        EXPECT_EQ(output.row(0)[j], back.row(0)[j]);
      }
    }
  }
}

// Sums of equal magnitudes stay exact in f32, so a one-hot row has equal magnitudes afterwards.
TEST(Hadamard, AOneHotRowSpreadsEvenly) {
  Rows row(1, 128);
  row.row(0)[77] = 3.0F;
  Hadamard(128, 0)->Apply(nullptr, row.row(0), 1);
  for (int j = 0; j < 128; ++j) {
    EXPECT_EQ(std::fabs(row.row(0)[j]), std::fabs(row.row(0)[0]));
  }
}

std::shared_ptr<const Transform> Center(int dim) {
  return *quant::kCenterTransform.make(SpecCall{"center", 1, {}}, dim);
}

TEST(Center, SubtractsTheMeanAndGivesItBack) {
  const int dim = 80;
  const auto center = Center(dim);
  EXPECT_TRUE(center->wants_exact_sinks());
  ASSERT_EQ(center->stats_floats(), dim);
  Rows rows = GaussianRows(200, dim, 43);
  for (float& x : rows.values()) x += 100.0F;
  std::vector<float> mean(dim);
  ASSERT_TRUE(center->Learn(rows, mean.data()).ok());
  Rows moved = rows;
  center->Apply(mean.data(), moved.row(0), 200);
  for (int j = 0; j < dim; ++j) {
    double exact = 0, left = 0;
    for (int r = 0; r < 200; ++r) {
      exact += double{rows.row(r)[j]} / 200;
      left += double{moved.row(r)[j]} / 200;
    }
    EXPECT_NEAR(mean[j], exact, exact * kUnit);
    EXPECT_NEAR(left, 0.0, exact * kUnit + 6 * kUnit);  // the mean's rounding, and each row's
  }
  center->Invert(mean.data(), moved.row(0), 200);
  for (std::size_t i = 0; i < rows.values().size(); ++i) {
    ASSERT_NEAR(moved.values()[i], rows.values()[i], 110 * kUnit);
  }
}

TEST(Center, BiasAndWeightSumMakeAttentionExact) {
  const int dim = 101;  // some at once, some alone
  const auto center = Center(dim);
  Rows rows = GaussianRows(64, dim, 44);
  for (int r = 0; r < 64; ++r) rows.row(r)[3] += 120.0F;
  std::vector<float> mean(dim);
  ASSERT_TRUE(center->Learn(rows, mean.data()).ok());
  Rows moved = rows;
  center->Apply(mean.data(), moved.row(0), 64);
  Rows query = GaussianRows(1, dim, 45);
  const Rows before = query;
  const double bias = center->ApplyToQuery(mean.data(), query.row(0));
  EXPECT_EQ(query.values(), before.values());
  std::vector<float> output(dim);
  std::vector<double> exact(dim);
  double weight_sum = 0;
  for (int r = 0; r < 64; ++r) {
    double dot = 0, moved_dot = 0, magnitudes = 0;
    const double weight = (r + 1) / 100.0;  // does not sum to 1
    weight_sum += weight;
    for (int j = 0; j < dim; ++j) {
      dot += double{before.row(0)[j]} * rows.row(r)[j];
      moved_dot += double{before.row(0)[j]} * moved.row(r)[j];
      magnitudes += std::fabs(before.row(0)[j]) * (std::fabs(rows.row(r)[j]) + std::fabs(mean[j]));
      output[j] += static_cast<float>(weight * moved.row(r)[j]);
      exact[j] += weight * rows.row(r)[j];
    }
    EXPECT_NEAR(moved_dot + bias, dot, 3 * kUnit * magnitudes);
  }
  center->InvertOutput(mean.data(), static_cast<float>(weight_sum), output.data());
  for (int j = 0; j < dim; ++j) EXPECT_NEAR(output[j], exact[j], std::fabs(exact[j]) * 1e-6 + 1e-4);
}

// Rows up to 8 times as long as the median one count; one that is longer is as if it were not
// there.
TEST(Center, RowsFarLongerThanTheOthersAreLeftOutOfTheMean) {
  const int dim = 48;
  const auto mean_of = [&](const Rows& rows) {
    std::vector<float> mean(dim);
    EXPECT_TRUE(Center(dim)->Learn(rows, mean.data()).ok());
    return mean;
  };
  Rows rows(100, dim);
  for (float& x : rows.values()) x = 0.5F;
  Rows others(98, dim);
  others.values() = {rows.values().begin() + 2 * dim, rows.values().end()};
  const auto scale = [&](int row, float factor) {
    for (int j = 0; j < dim; ++j) rows.row(row)[j] = 0.5F * factor;
  };
  scale(0, -7.9F);
  scale(1, 7.9F);
  EXPECT_EQ(mean_of(rows), std::vector<float>(dim, 0.5F * 98 / 100));
  for (const float factor : {8.1F, 1e6F, 1e38F}) {
    scale(0, -factor);
    scale(1, 2 * factor);
    EXPECT_EQ(mean_of(rows), mean_of(others)) << factor;
  }
}

TEST(Center, NoRowsLearnAZeroMean) {
  std::vector<float> mean(16, 9.0F);
  ASSERT_TRUE(Center(16)->Learn(Rows(0, 16), mean.data()).ok());
  EXPECT_EQ(mean, std::vector<float>(16, 0.0F));
}

// -- channel_scale ------------------------------------------------------------------------------

std::shared_ptr<const Transform> ChannelScale(int dim) {
  return *quant::kChannelScaleTransform.make(SpecCall{"channel_scale", 1, {}}, dim);
}

TEST(ChannelScale, DividesEachChannelByTheRootOfItsLargestAndGivesItBack) {
  const int dim = 80;
  Rows rows = GaussianRows(100, dim, 46);
  for (std::int64_t r = 0; r < 100; ++r) {
    for (int j = 0; j < dim; ++j) rows.row(r)[j] *= std::exp2(static_cast<float>(j % 20 - 10));
    rows.row(r)[7] = 0.0F;
  }
  const auto transform = ChannelScale(dim);
  std::vector<float> stats(dim);
  ASSERT_TRUE(transform->Learn(rows, stats.data()).ok());
  Rows scaled = rows;
  transform->Apply(stats.data(), scaled.row(0), 100);
  Rows back = scaled;
  transform->Invert(stats.data(), back.row(0), 100);
  for (int j = 0; j < dim; ++j) {
    double largest = 0, largest_scaled = 0;
    for (std::int64_t r = 0; r < 100; ++r) {
      largest = std::fmax(largest, std::fabs(rows.row(r)[j]));
      largest_scaled = std::fmax(largest_scaled, std::fabs(scaled.row(r)[j]));
      // The root, the quotient and the product each round once.
      EXPECT_NEAR(back.row(r)[j], rows.row(r)[j], 3 * kUnit * std::fabs(rows.row(r)[j])) << j;
    }
    EXPECT_NEAR(largest_scaled, std::sqrt(largest), 3 * kUnit * std::sqrt(largest)) << j;
  }
}

TEST(ChannelScale, QueriesAndOutputsAreScaledSoThatAttentionIsExact) {
  const int dim = 96;
  const Rows rows = GaussianRows(50, dim, 47);
  const auto transform = ChannelScale(dim);
  std::vector<float> stats(dim);
  ASSERT_TRUE(transform->Learn(rows, stats.data()).ok());
  Rows scaled = rows;
  transform->Apply(stats.data(), scaled.row(0), 50);
  const Rows query = GaussianRows(1, dim, 48);
  Rows scaled_query = query;
  EXPECT_EQ(transform->ApplyToQuery(stats.data(), scaled_query.row(0)), 0.0F);
  std::vector<float> sum(dim, 0.0F);
  for (std::int64_t r = 0; r < 50; ++r) {
    double dot = 0, scaled_dot = 0, magnitudes = 0;
    for (int j = 0; j < dim; ++j) {
      const double product = double{query.row(0)[j]} * rows.row(r)[j];
      dot += product;
      magnitudes += std::fabs(product);
      scaled_dot += double{scaled_query.row(0)[j]} * scaled.row(r)[j];
      sum[j] += 0.02F * scaled.row(r)[j];
    }
    EXPECT_NEAR(scaled_dot, dot, 3 * kUnit * magnitudes);
  }
  transform->InvertOutput(stats.data(), 1.0F, sum.data());
  for (int j = 0; j < dim; ++j) {
    double exact = 0, magnitudes = 0;
    for (std::int64_t r = 0; r < 50; ++r) {
      exact += 0.02 * rows.row(r)[j];
      magnitudes += 0.02 * std::fabs(rows.row(r)[j]);
    }
    EXPECT_NEAR(sum[j], exact, 55 * kUnit * magnitudes) << j;  // f32 sum of 50 terms
  }
}

TEST(ChannelScale, NoRowsLearnFactorsOfOneAndLongRowsAreRefusedByName) {
  const auto transform = ChannelScale(4);
  std::vector<float> stats(4, 9.0F);
  ASSERT_TRUE(transform->Learn(Rows(0, 4), stats.data()).ok());
  for (const float factor : stats) EXPECT_EQ(factor, 1.0F);
  Rows rows(3, 4);
  rows.row(2)[1] = -0x1.000002p24F;
  const Status status = transform->Learn(rows, stats.data());
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("row 2, element 1"), std::string::npos) << status.message();
  rows.row(2)[1] = NAN;
  EXPECT_EQ(transform->Learn(rows, stats.data()).error().code, ErrorCode::kNonFinite);
}

// A row made of its own signs ends in one element, of the whole length: the bound itself.
TEST(Bound, IsReachedByARotatedRowAndNotPassed) {
  for (const int dim : {16, 80, 128, 4096}) {
    const auto rotation = Hadamard(dim, 0);
    Rows rows = GaussianRows(2, dim, 21);
    for (int j = 0; j < dim; ++j) rows.row(0)[j] = quant::NegatedDim(0, j) ? -3.0F : 3.0F;
    for (int j = 0; j < dim; ++j)
      rows.row(1)[j] = std::fmax(std::fmin(rows.row(1)[j], 3.0F), -3.0F);
    const float bound = rotation->BoundAfter(3.0F);
    rotation->Apply(nullptr, rows.row(0), 2);
    float largest = 0;
    for (const float y : rows.values()) largest = std::fmax(largest, std::fabs(y));
    EXPECT_LE(largest, bound) << dim;
    EXPECT_GE(largest, bound * 0.999F) << dim;
  }
}

}  // namespace
}  // namespace kvsieve
