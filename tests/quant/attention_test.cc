// Score and Accumulate of every chain against decode-then-double, in the original basis, for the
// grid of dims, rows and heads, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "codec_variants.h"
#include "kvsieve/codec.h"
#include "quant/lloyd_max.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::EveryCodec;
using quant_test::GaussianRows;
using quant_test::MakeChainOrDie;
using quant_test::OnEveryTarget;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

constexpr int kDims[] = {33, 64, 80, 96, 128, 192, 256};
constexpr int kRowCounts[] = {1, 15, 16, 17, 48, 63, 64};
constexpr double kUnit = 0x1p-24;

constexpr std::string_view kTransformed[] = {"center+int8",
                                             "hadamard+int4",
                                             "center+hadamard(seed=9)+int8",
                                             "center+turbo(bits=4)",
                                             "center+turbo(bits=3)",
                                             "center+q4_0",
                                             "channel_scale+turbo(bits=2)",
                                             "center+channel_scale+int8"};

// Every codec that fits the dim, and some behind transforms.
std::vector<std::string> Chains(int dim, Side side) {
  std::vector<std::string> chains = EveryCodec(dim, side);
  for (const std::string_view text : kTransformed) {
    if (quant_test::MakeChainError(text, dim, side).empty()) chains.emplace_back(text);
  }
  if (dim % 8 == 0) {
    for (const char* text : {"int4(group=8,sym)", "int3(group=8)", "int2(group=8,sym)"}) {
      chains.emplace_back(text);
    }
  }
  return chains;
}

bool UsesIntegers(const Codec& codec) {
  const std::string name = codec.Canonical();
  return codec.path() == KernelPath::kFused && name != "f16" && name != "bf16";
}

double Norm(const float* x, int n) {
  double sum = 0;
  for (int j = 0; j < n; ++j) sum += double{x[j]} * x[j];
  return std::sqrt(sum);
}

// What Score may differ by, over |q| |x| where |x| is the length of the row as the codec holds it
// (decoded, plus the mean that centring took away). A fused integer kernel:
//   - rounds the query to 16 bits: 0.51 / 32639 of its largest element, times sum |x_j|, which is
//     at most sqrt(dim) |x|; groups wider than 514 dims do not occur here;
//   - for codes of up to 4 bits rounds it to a byte: steps of 1/64 of the largest element of a
//   group,
//     at most 5 |q| / sqrt(dim) as queries are Gaussian; errors are independent, six deviations are
//     6 * 0.29 / 64 of it, times |x|;
//   - for a codebook uses 8-bit levels, each off by at most half a step of c_max / 127. Over dims
//     the signs are random, so six deviations are 6 * scale * c_max / 254 with scale <= |x| / 0.7;
//   - sums in f32: two rounded products a group, each at most 3 sqrt(dim) |q| |x| (a zero point
//     alone may be as long as sqrt(dim) times the row's largest element).
// f32 paths sum dim products. Transforms rotate query and rows in f32: log2(dim) + 4 roundings on
// each side, and centring adds a dot product.
double RelativeBound(const Chain& chain) {
  const int dim = chain.dim();
  const double root = std::sqrt(static_cast<double>(dim));
  const bool integer = UsesIntegers(chain.codec());
  double bound = (dim + 8) * kUnit + 2 * (std::log2(dim) + 4) * kUnit;
  if (integer) {
    const int groups = std::max(1, dim / 8);
    bound += 0.51 / 32639 * root + (groups + 6) * kUnit * 3 * root;
    const bool small = chain.codec().row_bytes().codes * 2 <= dim + 1;
    if (small) bound += 6 * 0.29 / 64 * 5 / root;
  }
  if (integer && chain.codec().Canonical().starts_with("turbo")) {
    const auto book = quant::SolveLloydMax(4, dim);
    bound += 6 / 0.7 * book.centroids[15] / 254;
  }
  return bound;
}

double MeanLength(const Stored& stored) {
  return stored.chain->wants_exact_sinks() ? Norm(stored.stats.data(), stored.chain->dim()) : 0.0;
}

// f32 memory for prepared queries, aligned to 64.
class PreparedQueries {
 public:
  explicit PreparedQueries(std::size_t bytes) : memory_(bytes + 64) {}
  void* get() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::uint8_t> memory_;
};

// The inputs of kHeadTile heads, what must come out [heads, width], and by how much it may differ.
struct Expected {
  Rows inputs;
  std::vector<double> exact;
  std::vector<double> bound;
};

Expected ExpectedScores(const Stored& stored, const Rows& decoded) {
  const int dim = decoded.dim();
  Expected expected{GaussianRows(kHeadTile, dim, 31), {}, {}};
  const double relative = RelativeBound(*stored.chain);
  const double mean = MeanLength(stored);
  for (int h = 0; h < kHeadTile; ++h) {
    const float* q = expected.inputs.row(h);
    for (std::int64_t r = 0; r < decoded.rows(); ++r) {
      double exact = 0;
      for (int j = 0; j < dim; ++j) exact += double{q[j]} * decoded.row(r)[j];
      expected.exact.push_back(exact);
      expected.bound.push_back(relative * Norm(q, dim) * (Norm(decoded.row(r), dim) + 2 * mean) +
                               1e-9);
    }
  }
  return expected;
}

void CheckScores(const Stored& stored, const Expected& expected, int rows, int heads) {
  const Chain& chain = *stored.chain;
  Rows scratch = expected.inputs;
  PreparedQueries prepared(chain.codec().QueryBytes());
  float bias[kHeadTile];
  chain.PrepareQueries(stored.stats.data(), scratch.row(0), heads, prepared.get(), bias);
  std::vector<float> logits(static_cast<std::size_t>(heads) * kBlockRows);
  chain.codec().Score(stored.stats.data() + chain.stats_floats() - chain.codec().stats_floats(),
                      prepared.get(), heads, stored.blocks[0].ref(), rows, logits.data(), {});
  for (int h = 0; h < heads; ++h) {
    for (int r = 0; r < rows; ++r) {
      const int at = h * rows + r;
      ASSERT_NEAR(logits[h * kBlockRows + r] + bias[h], expected.exact[at], expected.bound[at])
          << chain.Canonical() << " dim " << chain.dim() << " rows " << rows << " head " << h
          << " of " << heads;
    }
  }
}

// What an output element may differ by, over the largest weight * |row|. A fused integer kernel
// rounds weight * scale to 16 bits of the block's largest and multiplies codes: 0.51 / 32767 a row
// of the row's range, which is at most twice its largest element (turbo: c_max * scale, below
// that). 8-bit levels: random signs over rows, six deviations over sqrt(rows). f32 sums over rows.
// An inverse rotation spreads an error vector of dim such elements: sqrt(dim) of them in the worst
// case.
double SumBound(const Chain& chain, int rows) {
  const bool integer = UsesIntegers(chain.codec());
  const int dim = chain.dim();
  double bound = 3 * (rows + 8) * rows * kUnit;
  if (integer) bound += 0.51 / 32767 * rows * 2.02;
  if (integer && chain.codec().Canonical().starts_with("turbo")) {
    bound += 6 / 0.7 * quant::SolveLloydMax(4, dim).centroids[15] / 254 * std::sqrt(rows);
  }
  const bool rotated = chain.Canonical().find("hadamard") != std::string::npos ||
                       chain.Canonical().find("turbo") != std::string::npos;
  if (!rotated) return bound;
  return bound * std::sqrt(static_cast<double>(dim)) + rows * (std::log2(dim) + 4) * kUnit;
}

Expected ExpectedSums(const Stored& stored, const Rows& decoded) {
  const auto rows = static_cast<int>(decoded.rows());
  const int dim = decoded.dim();
  Expected expected{GaussianRows(kHeadTile, kBlockRows, 32), {}, {}};
  const double relative = SumBound(*stored.chain, rows);
  const double mean = MeanLength(stored);
  for (int h = 0; h < kHeadTile; ++h) {
    float* w = expected.inputs.row(h);
    double largest = 0;
    for (int r = 0; r < kBlockRows; ++r) {
      w[r] = r < rows ? std::exp(2 * w[r] - 4) : 0.0F;  // spread like a softmax's weights
      if (r < rows) largest = std::max(largest, w[r] * (Norm(decoded.row(r), dim) + 2 * mean));
    }
    for (int j = 0; j < dim; ++j) {
      double exact = 0;
      for (int r = 0; r < rows; ++r) exact += double{w[r]} * decoded.row(r)[j];
      expected.exact.push_back(exact);
      expected.bound.push_back(relative * largest + 1e-12);
    }
  }
  return expected;
}

void CheckSums(const Stored& stored, const Expected& expected, int rows, int heads) {
  const Chain& chain = *stored.chain;
  const int dim = chain.dim();
  const int stride = AccumulatorStride(dim);
  const float* weights = expected.inputs.row(0);
  std::vector<float> acc(static_cast<std::size_t>(heads) * stride, 0.0F);
  chain.codec().Accumulate(
      stored.stats.data() + chain.stats_floats() - chain.codec().stats_floats(), weights, heads,
      stored.blocks[0].ref(), rows, acc.data(), {});
  for (int h = 0; h < heads; ++h) {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += weights[h * kBlockRows + r];
    chain.FinishOutput(stored.stats.data(), sum, acc.data() + h * stride);
    for (int j = 0; j < dim; ++j) {
      const int at = h * dim + j;
      ASSERT_NEAR(acc[h * stride + j], expected.exact[at], expected.bound[at])
          << chain.Canonical() << " dim " << dim << " rows " << rows << " head " << h << " of "
          << heads;
    }
  }
}

using Expect = Expected (*)(const Stored&, const Rows&);
using Check = void (*)(const Stored&, const Expected&, int rows, int heads);

void RunGrid(Side side, Expect expect, Check check) {
  for (const int dim : kDims) {
    for (const std::string& text : Chains(dim, side)) {
      const auto chain = MakeChainOrDie(text, dim, side);
      for (const int rows : kRowCounts) {
        const Stored stored = Store(chain, GaussianRows(rows, dim, 30));
        const Expected expected = expect(stored, stored.Decode(rows));
        OnEveryTarget([&] {
          for (int heads = 1; heads <= kHeadTile; ++heads) check(stored, expected, rows, heads);
        });
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ChainAttention, ScoresEqualDecodeThenDoubleOnEveryTarget) {
  RunGrid(Side::kKey, ExpectedScores, CheckScores);
}

TEST(ChainAttention, SumsEqualDecodeThenDoubleOnEveryTarget) {
  RunGrid(Side::kValue, ExpectedSums, CheckSums);
}

// The 8-bit levels of the fused turbo kernels must not stretch logits: softmax would shift weight
// between these rows and exact ones. The slope of kernel logits over decoded ones, over n = 16384
// pairs: levels add a random error of 0.4 % (its square is 1.3e-5), so the slope deviates by
// 3e-5; 2e-4 allows for six of these and for the normal limit in the levels' weights.
TEST(ChainAttention, TurboLevelsKeepTheGainOfLogits) {
  for (const int dim : {64, 128}) {
    const auto chain = MakeChainOrDie("turbo(bits=4)", dim, Side::kKey);
    double product = 0;
    double square = 0;
    for (unsigned seed = 0; seed < 64; ++seed) {
      const Stored stored = Store(chain, GaussianRows(kBlockRows, dim, 100 + seed));
      const Rows decoded = stored.Decode(kBlockRows);
      const Rows queries = GaussianRows(kHeadTile, dim, 300 + seed);
      Rows scratch = queries;
      PreparedQueries prepared(chain->codec().QueryBytes());
      float bias[kHeadTile];
      std::vector<float> logits(static_cast<std::size_t>(kHeadTile) * kBlockRows);
      chain->PrepareQueries(stored.stats.data(), scratch.row(0), kHeadTile, prepared.get(), bias);
      chain->codec().Score(stored.stats.data(), prepared.get(), kHeadTile, stored.blocks[0].ref(),
                           kBlockRows, logits.data(), {});
      for (int i = 0; i < kHeadTile * kBlockRows; ++i) {
        double exact = 0;
        for (int j = 0; j < dim; ++j) {
          exact += double{queries.row(i / kBlockRows)[j]} * decoded.row(i % kBlockRows)[j];
        }
        product += exact * logits[i];
        square += exact * exact;
      }
    }
    EXPECT_NEAR(product / square, 1.0, 2e-4) << dim;
  }
}

}  // namespace
}  // namespace kvsieve
