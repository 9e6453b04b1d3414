#include "kernel_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvsieve/targets.h"
#include "quant/kernels.h"

namespace kvsieve::quant {

namespace {

bool IsFloat(Format format) { return format == Format::kHalf || format == Format::kFp8; }

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

bool FineCodes(const Shape& s) { return s.format == Format::kPlanes && s.bits == 5; }

// Queries in 16 bits, with one scale for the whole row.
bool WideQueries(const Shape& s) {
  return s.format == Format::kInt8 || (FineCodes(s) && !VnniActive());
}

double QueryLimit(const Shape& s) {
  if (WideQueries(s)) return std::min(kQueryLimit, 0x1p31 / (128.0 * s.group) - 1.0);
  return s.format == Format::kNibble || VnniActive() ? kByteLimit : kByteLimitOfPairs;
}

}  // namespace

std::vector<float> RandomFloats(std::size_t count, float low, float high, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& v : values) v = uniform(random);
  return values;
}

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
  if (s.format == Format::kChannel) {
    const GuardedMemory prepared(ChannelQueryBytes(s.dim));
    PrepareChannelQueries(q, heads, s.dim, prepared.as<>());
    return ScoreChannel(block.kernel(), prepared.as<>(), heads, logits);
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
  if (format == Format::kChannel) {
    return AccumulateChannel(block.kernel(), weights, heads, acc);
  }
  if (format == Format::kPlanes) return AccumulatePlanes(block.kernel(), weights, heads, acc);
  AccumulateNibble(block.kernel(), weights, heads, acc);
}

namespace {

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

// channel: q times scale is off by half a unit of the largest of 32 dims, which
// multiplies the code less its middle; middles and zero points are f32 sums beside that.
double ChannelScoreBound(const TestBlock& block, const float* q, int row) {
  const Shape& s = block.shape();
  constexpr int kSpan = 32;
  const double middle = 0.5 * ((1 << s.bits) - 1);
  double products = 0.0, rounding = 0.0;
  for (int first = 0; first < s.dim; first += kSpan) {
    double largest = 0.0, codes = 0.0;
    for (int d = first; d < std::min(first + kSpan, s.dim); ++d) {
      const double x = std::fabs(q[d] * block.Scale(row, d));
      largest = std::max(largest, x);
      codes += std::fabs(block.Code(row, d) - middle);
      products += x * (block.Code(row, d) + middle) + std::fabs(q[d] * block.Zero(row, d));
    }
    rounding += kHalfUnit * largest / (s.bits == 4 ? 254 * kByteLimit : kByteLimit) * codes;
  }
  return rounding + (s.dim + 16) * kFloatUnit * (products + rounding) + 1e-28;
}

}  // namespace

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
      const double bound = s.format == Format::kChannel ? ChannelScoreBound(block, row_q, r)
                                                        : ScoreBound(block, row_q, r);
      ASSERT_NEAR(logits[h * kBlockRows + r], exact, bound)
          << s.Describe() << " head " << h << " of " << heads << " row " << r;
    }
  }
}

namespace {

// What rounded weights add to a sum of dim d. weight * scale is off by half a unit of the group's
// largest, which multiplies the code; channel: weight is, of the largest of a group of rows.
double WeightRounding(const TestBlock& block, const float* weights, int d) {
  const Shape& s = block.shape();
  if (IsFloat(s.format)) return 0.0;
  const bool channel = s.format == Format::kChannel;
  const int group_rows = channel ? s.group_rows : kBlockRows;
  double rounding = 0.0;
  for (int first = 0; first < s.rows; first += group_rows) {
    double largest = 0.0, codes = 0.0;
    for (int r = first; r < std::min(first + group_rows, s.rows); ++r) {
      largest = std::max(largest, weights[r] * block.Scale(r, d));
      codes += std::fabs(block.Code(r, d));
    }
    rounding += kHalfUnit * largest / kWeightLimit * codes;
  }
  return rounding;
}

}  // namespace

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
      double exact = before, products = before;
      for (int r = 0; r < s.rows; ++r) {
        exact += w[r] * block.Value(r, d);
        products +=
            w[r] * (std::fabs(block.Scale(r, d) * block.Code(r, d)) + std::fabs(block.Zero(r, d)));
      }
      const double rounding = WeightRounding(block, w, d);
      const double bound = rounding + (s.rows + 6) * kFloatUnit * (products + rounding) + 1e-26;
      ASSERT_NEAR(acc[h * stride + d], exact, bound)
          << s.Describe() << " head " << h << " of " << heads << " dim " << d;
    }
  }
}

namespace {

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

}  // namespace

void ExpectBlockMatches(const Shape& shape, int heads, std::mt19937& random) {
  const TestBlock block(shape, random);
  if (shape.side == Side::kKey) {
    const auto floats = static_cast<std::size_t>(heads * shape.dim);
    ExpectScoresMatch(block, RandomFloats(floats, -3.0F, 3.0F, random), heads);
  } else {
    ExpectSumsMatch(block, RandomWeights(heads, shape.rows, random), heads);
  }
}

}  // namespace kvsieve::quant
