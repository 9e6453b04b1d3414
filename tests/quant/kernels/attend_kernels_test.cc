// The fused kernels against plain double sums over the same codes, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "block_fixture.h"
#include "kernel_checks.h"
#include "kvsieve/targets.h"

namespace kvsieve::quant {
namespace {

constexpr int kPlaneBits[] = {1, 2, 3, 5, 5};

class AttendKernels : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SelectTarget(GetParam()).ok());
    seed_ = std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }
  void TearDown() override {
    if (HasFailure()) std::printf("seed %u\n", seed_);
    ASSERT_TRUE(SelectTarget("").ok());
  }
  unsigned seed_ = 0;
  std::mt19937 random_;
};

constexpr int kDims[] = {1, 4, 8, 16, 24, 33, 40, 64, 72, 80, 96, 128, 192, 256, 576};
constexpr int kRows[] = {1, 3, 8, 15, 16, 17, 32, 33, 47, 64};

// Every dim with every row count; the other axes take turns.
void ForGrid(Format format, const std::vector<int>& groups, std::mt19937& random) {
  int turn = 0;
  for (const int dim : kDims) {
    for (const int rows : kRows) {
      for (const int group : groups) {
        if (group != 0 && dim % group != 0) continue;
        Shape shape;
        shape.format = format;
        shape.dim = dim;
        shape.rows = rows;
        shape.group = group == 0 ? dim : group;
        shape.bits = kPlaneBits[turn % 5];
        const bool may_have_zeros = format == Format::kNibble || format == Format::kPlanes;
        shape.zeros = may_have_zeros && turn % 3 != turn % 2;
        shape.half_type = turn % 2 == 0 ? HalfType::kBF16 : HalfType::kF16;
        const int least = (rows + kPanelRows - 1) / kPanelRows * kPanelRows;
        shape.capacity_rows = turn % 2 == 0 ? least : kBlockRows;
        const int heads = 1 + turn % kHeadTile;
        for (const Side side : {Side::kKey, Side::kValue}) {
          shape.side = side;
          ExpectBlockMatches(shape, heads, random);
          if (testing::Test::HasFatalFailure()) return;
        }
        ++turn;
      }
    }
  }
}

TEST_P(AttendKernels, HalfMatchesDoubleSums) { ForGrid(Format::kHalf, {0}, random_); }

TEST_P(AttendKernels, Fp8MatchesDoubleSums) { ForGrid(Format::kFp8, {0}, random_); }

TEST_P(AttendKernels, Int8MatchesDoubleSums) { ForGrid(Format::kInt8, {0, 8, 16, 32}, random_); }

TEST_P(AttendKernels, NibbleMatchesDoubleSums) {
  ForGrid(Format::kNibble, {0, 8, 16, 24, 32}, random_);
}

TEST_P(AttendKernels, CodebookMatchesDoubleSums) { ForGrid(Format::kCodebook, {0, 32}, random_); }

TEST_P(AttendKernels, PlanesMatchDoubleSums) {
  // Bits take turns as the shapes do.
  ForGrid(Format::kPlanes, {0, 0, 32, 96}, random_);
}

// Every dim and row count that channel takes, for each of its groups.
TEST_P(AttendKernels, ChannelMatchesDoubleSums) {
  int turn = 0;
  for (const int dim : {8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256, 576}) {
    for (const int rows : kRows) {
      for (const int group_rows : {16, 32, 64}) {
        Shape shape;
        shape.format = Format::kChannel;
        shape.dim = shape.group = dim;
        shape.rows = rows;
        shape.group_rows = group_rows;
        shape.bits = 2 + turn % 3;
        shape.zeros = true;
        const int least = (rows + group_rows - 1) / group_rows * group_rows;
        shape.capacity_rows = turn % 2 == 0 ? least : kBlockRows;
        for (const Side side : {Side::kKey, Side::kValue}) {
          shape.side = side;
          ExpectBlockMatches(shape, 1 + turn % kHeadTile, random_);
          if (HasFatalFailure()) return;
        }
        ++turn;
      }
    }
    ++turn;  // bits against group
  }
}

bool HasZeros(Format format) { return format == Format::kNibble || format == Format::kChannel; }

constexpr Format kFormats[] = {Format::kHalf,     Format::kFp8,    Format::kInt8,   Format::kNibble,
                               Format::kCodebook, Format::kPlanes, Format::kChannel};

TEST_P(AttendKernels, EveryRowAndHeadCountMatches) {
  for (const Format format : kFormats) {
    for (int rows = 1; rows <= kBlockRows; ++rows) {
      for (int heads = 1; heads <= kHeadTile; ++heads) {
        Shape shape;
        shape.format = format;
        const int turn = rows / 2 + heads;
        shape.bits = format == Format::kChannel ? 2 + turn % 3 : kPlaneBits[turn % 5];
        shape.side = rows % 2 == 0 ? Side::kKey : Side::kValue;
        shape.dim = 64;
        shape.group = 32;
        shape.zeros = HasZeros(format);
        shape.rows = rows;
        ExpectBlockMatches(shape, heads, random_);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The largest sums there are: every product has the same sign and the largest magnitude. A 32-bit
// overflow would be off by many times the bound.
TEST_P(AttendKernels, LongestRowsOfExtremeCodesDoNotOverflow) {
  struct Case {
    Format format;
    int bits;
    int group;  // 0: the row
  };
  for (const auto& [format, bits, group] :
       {Case{Format::kInt8, 8, 0}, Case{Format::kNibble, 4, 0}, Case{Format::kNibble, 4, 32},
        Case{Format::kCodebook, 4, 0}, Case{Format::kPlanes, 3, 0}, Case{Format::kPlanes, 5, 0}}) {
    for (const int dim : {128, 576, 4096}) {
      Shape shape;
      shape.format = format;
      shape.bits = bits;
      shape.dim = dim;
      shape.group = group == 0 ? dim : group;
      shape.rows = kBlockRows;
      shape.extreme = true;
      const TestBlock keys(shape, random_);
      std::vector<float> q(static_cast<std::size_t>(2 * dim));
      for (int d = 0; d < dim; ++d) {
        const bool up = keys.Code(5, d) > 0.0;
        q[static_cast<std::size_t>(d)] = up ? 7.0F : -7.0F;
        q[static_cast<std::size_t>(dim + d)] = up ? -7.0F : 7.0F;
      }
      ExpectScoresMatch(keys, q, 2);

      shape.side = Side::kValue;
      const TestBlock values(shape, random_);
      ExpectSumsMatch(values, std::vector<float>(2 * kBlockRows, 1.0F), 2);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttendKernels, ScalesOfAnySizeWork) {
  for (const Format format :
       {Format::kInt8, Format::kNibble, Format::kCodebook, Format::kPlanes, Format::kChannel}) {
    for (const float scale : {1e-20F, 1e-3F, 1e20F, 1e30F}) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        Shape shape;
        shape.format = format;
        shape.side = side;
        shape.dim = 64;
        shape.group = 32;
        shape.rows = 40;
        shape.scale = scale;
        shape.zeros = format == Format::kChannel;
        ExpectBlockMatches(shape, 4, random_);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttendKernels, ZeroQueryScoresExactlyZero) {
  for (const Format format : kFormats) {
    Shape shape;
    shape.format = format;
    shape.dim = 96;
    shape.group = 32;
    shape.zeros = HasZeros(format);
    shape.rows = kBlockRows;
    const TestBlock block(shape, random_);
    float logits[kBlockRows];
    std::fill_n(logits, kBlockRows, 5.0F);
    const std::vector<float> q(96, 0.0F);
    Score(block, q.data(), 1, logits);
    for (int r = 0; r < kBlockRows; ++r) ASSERT_EQ(logits[r], 0.0F) << shape.Describe() << r;
  }
}

TEST_P(AttendKernels, ZeroWeightsAddExactlyNothing) {
  for (const Format format : kFormats) {
    Shape shape;
    shape.format = format;
    shape.side = Side::kValue;
    shape.dim = 96;
    shape.group = 32;
    shape.zeros = HasZeros(format);
    shape.rows = kBlockRows;
    const TestBlock block(shape, random_);
    const std::vector<float> weights(kBlockRows, 0.0F);
    std::vector<float> acc(96, 1.5F);
    Accumulate(block, weights.data(), 1, acc.data());
    for (const float a : acc) ASSERT_EQ(a, 1.5F) << shape.Describe();
  }
}

std::vector<std::string> Targets() {
  std::vector<std::string> names;
  for (const auto name : SupportedTargets()) names.emplace_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Targets, AttendKernels, testing::ValuesIn(Targets()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace kvsieve::quant
