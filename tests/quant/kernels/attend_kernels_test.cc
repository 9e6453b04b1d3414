// The fused kernels against plain double sums over the same codes, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "block_fixture.h"
#include "kvsieve/targets.h"
#include "quant/kernels.h"

namespace kvsieve::quant {
namespace {

// Half a unit of 16-bit rounding, with 2 % for the f32 product that is rounded.
constexpr double kHalfUnit = 0.51;
// Limits of rounded queries: 16 bits for int8 and, without VNNI, for 5 bits; else one byte
// (kernels_query.h).
constexpr double kQueryLimit = 32639.0;
constexpr double kByteLimit = 127.0;
constexpr double kByteLimitOfPairs = 64.0;
// The smaller of the targets' limits for weights.
constexpr double kWeightLimit = 32767.0;
constexpr double kFloatUnit = 0x1p-24;

constexpr int kPlaneBits[] = {1, 2, 3, 5, 5};

bool FineCodes(const Shape& s) { return s.format == Format::kPlanes && s.bits == 5; }

// Queries in 16 bits, with one scale for the whole row.
bool WideQueries(const Shape& s) {
  return s.format == Format::kInt8 || (FineCodes(s) && !VnniActive());
}

double QueryLimit(const Shape& s) {
  if (WideQueries(s)) return std::min(kQueryLimit, 0x1p31 / (128.0 * s.group) - 1.0);
  return s.format == Format::kNibble || VnniActive() ? kByteLimit : kByteLimitOfPairs;
}

std::vector<float> RandomFloats(std::size_t count, float low, float high, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& v : values) v = uniform(random);
  return values;
}

bool IsFloat(Format format) { return format == Format::kHalf || format == Format::kFp8; }

void Score(const TestBlock& block, const float* q, int heads, float* logits) {
  const Shape& s = block.shape();
  if (IsFloat(s.format)) {
    const GuardedMemory prepared(HalfQueryBytes(s.dim));
    // What was there before must not matter.
    std::memset(prepared.as<>(), 0xFF, HalfQueryBytes(s.dim));
    PrepareHalfQueries(q, heads, s.dim, prepared.as<>());
    const auto score = s.format == Format::kHalf ? ScoreHalf : ScoreFp8;
    return score(block.kernel(), prepared.as<>(), heads, logits);
  }
  const GuardedMemory prepared(IntQueryBytes(s.dim, s.group));
  const auto prepare = s.format == Format::kInt8     ? PrepareIntQueries
                       : s.format == Format::kNibble ? PrepareNibbleQueries
                       : FineCodes(s)                ? PrepareFineCodebookQueries
                                                     : PrepareCodebookQueries;
  prepare(q, heads, s.dim, s.group, prepared.as<>());
  if (s.format == Format::kInt8) return ScoreInt8(block.kernel(), prepared.as<>(), heads, logits);
  if (s.format == Format::kPlanes) {
    return ScorePlanes(block.kernel(), prepared.as<>(), heads, logits);
  }
  ScoreNibble(block.kernel(), prepared.as<>(), heads, logits);
}

void Accumulate(const TestBlock& block, const float* weights, int heads, float* acc) {
  const Format format = block.shape().format;
  if (format == Format::kHalf) return AccumulateHalf(block.kernel(), weights, heads, acc);
  if (format == Format::kFp8) return AccumulateFp8(block.kernel(), weights, heads, acc);
  if (format == Format::kInt8) return AccumulateInt8(block.kernel(), weights, heads, acc);
  if (format == Format::kPlanes) return AccumulatePlanes(block.kernel(), weights, heads, acc);
  AccumulateNibble(block.kernel(), weights, heads, acc);
}

// What a logit may differ by. q is off by half a unit of its largest element (of the row, or with
// one byte of the group), which multiplies the value; beside that each group adds two rounded
// products to an f32 sum. half and fp8: one f32 sum of dim products.
double ScoreBound(const TestBlock& block, const float* q, int row) {
  const Shape& s = block.shape();
  const bool grouped = !IsFloat(s.format) && !WideQueries(s);
  const int span = grouped ? s.group : s.dim;
  double products = 0.0, rounding = 0.0;
  for (int first = 0; first < s.dim; first += span) {
    double largest = 0.0, values = 0.0;
    for (int d = first; d < first + span; ++d) {
      largest = std::max(largest, std::fabs(static_cast<double>(q[d])));
      products += std::fabs(q[d]) * (std::fabs(block.Scale(row, d) * block.Code(row, d)) +
                                     std::fabs(block.Zero(row, d)));
      values += std::fabs(block.Value(row, d));
    }
    rounding += kHalfUnit * largest / QueryLimit(s) * values;
  }
  if (IsFloat(s.format)) return (s.dim + 1) * kFloatUnit * products + 1e-37;
  return rounding + (s.dim / s.group + 6) * kFloatUnit * (products + rounding) + 1e-30;
}

void ExpectScoresMatch(const TestBlock& block, const std::vector<float>& q, int heads) {
  const Shape& s = block.shape();
  const GuardedMemory memory(sizeof(float) * kBlockRows * static_cast<std::size_t>(heads));
  float* logits = memory.as<float>();
  Score(block, q.data(), heads, logits);
  for (int h = 0; h < heads; ++h) {
    const float* row_q = q.data() + static_cast<std::ptrdiff_t>(h) * s.dim;
    for (int r = 0; r < s.rows; ++r) {
      double exact = 0.0;
      for (int d = 0; d < s.dim; ++d) exact += row_q[d] * block.Value(r, d);
      ASSERT_NEAR(logits[h * kBlockRows + r], exact, ScoreBound(block, row_q, r))
          << s.Describe() << " head " << h << " of " << heads << " row " << r;
    }
  }
}

// Largest weight * scale of one group: what weights are rounded against.
double LargestScaled(const TestBlock& block, const float* weights, int d) {
  double largest = 0.0;
  for (int r = 0; r < block.shape().rows; ++r) {
    largest = std::max(largest, weights[r] * block.Scale(r, d));
  }
  return largest;
}

void ExpectSumsMatch(const TestBlock& block, const std::vector<float>& weights, int heads) {
  const Shape& s = block.shape();
  const int stride = AccumulatorStride(s.dim);
  const auto floats = static_cast<std::size_t>(heads * stride);
  const GuardedMemory memory(sizeof(float) * floats);
  float* acc = memory.as<float>();
  for (std::size_t i = 0; i < floats; ++i) acc[i] = 0.25F * static_cast<float>(i % 7);
  Accumulate(block, weights.data(), heads, acc);
  for (int h = 0; h < heads; ++h) {
    const float* w = weights.data() + h * kBlockRows;
    for (int d = 0; d < s.dim; ++d) {
      const double before = 0.25 * ((h * stride + d) % 7);
      double exact = before, products = before, codes = 0.0;
      for (int r = 0; r < s.rows; ++r) {
        exact += w[r] * block.Value(r, d);
        products +=
            w[r] * (std::fabs(block.Scale(r, d) * block.Code(r, d)) + std::fabs(block.Zero(r, d)));
        codes += std::fabs(block.Code(r, d));
      }
      // weight * scale is off by half a unit of the group's largest, which multiplies the code.
      const double rounding =
          IsFloat(s.format) ? 0.0 : kHalfUnit * LargestScaled(block, w, d) / kWeightLimit * codes;
      const double bound = rounding + (s.rows + 6) * kFloatUnit * (products + rounding) + 1e-26;
      ASSERT_NEAR(acc[h * stride + d], exact, bound)
          << s.Describe() << " head " << h << " of " << heads << " dim " << d;
    }
  }
}

std::vector<float> RandomWeights(int heads, int rows, std::mt19937& random) {
  std::vector<float> weights(static_cast<std::size_t>(heads * kBlockRows), 0.0F);
  std::uniform_real_distribution<float> exponent(-12.0F, 0.0F);
  for (int h = 0; h < heads; ++h) {
    for (int r = 0; r < rows; ++r) {
      weights[static_cast<std::size_t>(h * kBlockRows + r)] = std::exp(exponent(random));
    }
  }
  return weights;
}

void ExpectBlockMatches(const Shape& shape, int heads, std::mt19937& random) {
  const TestBlock block(shape, random);
  if (shape.side == Side::kKey) {
    const auto floats = static_cast<std::size_t>(heads * shape.dim);
    ExpectScoresMatch(block, RandomFloats(floats, -3.0F, 3.0F, random), heads);
  } else {
    ExpectSumsMatch(block, RandomWeights(heads, shape.rows, random), heads);
  }
}

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

constexpr Format kFormats[] = {Format::kHalf,   Format::kFp8,      Format::kInt8,
                               Format::kNibble, Format::kCodebook, Format::kPlanes};

TEST_P(AttendKernels, EveryRowAndHeadCountMatches) {
  for (const Format format : kFormats) {
    for (int rows = 1; rows <= kBlockRows; ++rows) {
      for (int heads = 1; heads <= kHeadTile; ++heads) {
        Shape shape;
        shape.format = format;
        shape.bits = kPlaneBits[(rows / 2 + heads) % 5];
        shape.side = rows % 2 == 0 ? Side::kKey : Side::kValue;
        shape.dim = 64;
        shape.group = 32;
        shape.zeros = format == Format::kNibble;
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
  };
  for (const auto& [format, bits] :
       {Case{Format::kInt8, 8}, Case{Format::kNibble, 4}, Case{Format::kCodebook, 4},
        Case{Format::kPlanes, 3}, Case{Format::kPlanes, 5}}) {
    for (const int dim : {128, 576, 4096}) {
      Shape shape;
      shape.format = format;
      shape.bits = bits;
      shape.dim = shape.group = dim;
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
  for (const Format format : {Format::kInt8, Format::kNibble, Format::kCodebook, Format::kPlanes}) {
    for (const float scale : {1e-20F, 1e-3F, 1e20F, 1e30F}) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        Shape shape;
        shape.format = format;
        shape.side = side;
        shape.dim = 64;
        shape.group = 32;
        shape.rows = 40;
        shape.scale = scale;
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
    shape.zeros = format == Format::kNibble;
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
    shape.zeros = format == Format::kNibble;
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
