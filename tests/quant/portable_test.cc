// The portable loops against double sums, on every target, for every remainder.
#include "quant/portable.h"

#include <gtest/gtest.h>

#include <cmath>

#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::GaussianRows;
using quant_test::OnEveryTarget;
using quant_test::Rows;

constexpr int kDims[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 80, 96, 128, 192, 256, 576};
constexpr int kCounts[] = {1, 2, 3, 15, 16, 17, 63, 64};

// f32 sums of n products: each product and each of at most n additions rounds by 2^-24 of a
// partial sum that is at most the sum of magnitudes.
double Bound(int terms, double magnitudes) { return (terms + 1) * 0x1p-24 * magnitudes + 1e-30; }

void ExpectScores(const Rows& rows, const Rows& queries, int heads) {
  const auto count = static_cast<int>(rows.rows());
  const int dim = rows.dim();
  std::vector<float> logits(kHeadTile * kBlockRows, -7.0F);
  quant::PortableScore({rows.row(0), count, dim, dim}, queries.row(0), heads, logits.data());
  for (int h = 0; h < kHeadTile; ++h) {
    for (int r = 0; r < kBlockRows; ++r) {
      const float logit = logits[h * kBlockRows + r];
      if (h >= heads || r >= count) {
        ASSERT_EQ(logit, -7.0F) << "wrote past the rows or heads";
        continue;
      }
      double exact = 0, magnitudes = 0;
      for (int j = 0; j < dim; ++j) {
        const double product = double{queries.row(h)[j]} * rows.row(r)[j];
        exact += product;
        magnitudes += std::fabs(product);
      }
      ASSERT_NEAR(logit, exact, Bound(dim, magnitudes)) << dim << ' ' << count << ' ' << heads;
    }
  }
}

std::vector<float> Weights(int count) {
  const Rows random = GaussianRows(kHeadTile, kBlockRows, 22);
  std::vector<float> weights(kHeadTile * kBlockRows);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<int>(i) % kBlockRows < count ? std::fabs(random.values()[i]) : 0;
  }
  return weights;
}

// `accumulate` adds to the sums that it is given.
template <class Accumulate>
void ExpectSums(const Rows& rows, const std::vector<float>& weights, int heads,
                Accumulate accumulate) {
  const auto count = static_cast<int>(rows.rows());
  const int dim = rows.dim();
  const int stride = AccumulatorStride(dim);
  std::vector<float> acc(static_cast<std::size_t>(kHeadTile * stride), 0.5F);
  accumulate(acc.data());
  for (int h = 0; h < kHeadTile; ++h) {
    for (int j = 0; j < stride; ++j) {
      const float sum = acc[h * stride + j];
      if (h >= heads || j >= dim) {
        ASSERT_EQ(sum, 0.5F) << "wrote past the dims or heads";
        continue;
      }
      double exact = 0.5, magnitudes = 0.5;
      for (int r = 0; r < count; ++r) {
        const double product = double{weights[h * kBlockRows + r]} * rows.row(r)[j];
        exact += product;
        magnitudes += std::fabs(product);
      }
      ASSERT_NEAR(sum, exact, Bound(count, magnitudes)) << dim << ' ' << count << ' ' << heads;
    }
  }
}

TEST(Portable, SumsEqualDoubleSumsOnEveryTarget) {
  OnEveryTarget([] {
    for (const int dim : kDims) {
      for (const int count : kCounts) {
        const Rows rows = GaussianRows(count, dim, 20);
        const Rows queries = GaussianRows(kHeadTile, dim, 21);
        const std::vector<float> weights = Weights(count);
        for (int heads = 1; heads <= kHeadTile; ++heads) {
          ExpectScores(rows, queries, heads);
          ExpectSums(rows, weights, heads, [&](float* acc) {
            quant::PortableAccumulate({rows.row(0), count, dim, dim}, weights.data(), heads, acc);
          });
        }
      }
    }
  });
}

// What a codec calls that has no fused kernel.
TEST(Portable, SumsOfACodecAreThoseOfItsDecodedRows) {
  for (const char* text : {"f16", "int8", "int3(group=8)"}) {
    for (const int dim : {16, 80, 256}) {
      const auto chain = quant_test::MakeChainOrDie(text, dim, Side::kValue);
      for (const int count : kCounts) {
        SCOPED_TRACE(text);
        const quant_test::Stored stored = quant_test::Store(chain, GaussianRows(count, dim, 23));
        const Rows decoded = stored.Decode(count);
        const std::vector<float> weights = Weights(count);
        OnEveryTarget([&] {
          for (int heads = 1; heads <= kHeadTile; ++heads) {
            ExpectSums(decoded, weights, heads, [&](float* acc) {
              quant::AccumulateDecoded(chain->codec(), stored.stats.data(), weights.data(), heads,
                                       stored.blocks[0].ref(), count, acc);
            });
          }
        });
      }
    }
  }
}

TEST(Portable, NoRowsChangeNothing) {
  OnEveryTarget([] {
    float logits[kBlockRows] = {};
    float acc[16] = {1.0F};
    const float query[16] = {1.0F};
    quant::PortableScore({nullptr, 0, 16, 16}, query, 1, logits);
    quant::PortableAccumulate({nullptr, 0, 16, 16}, logits, 1, acc);
    EXPECT_EQ(acc[0], 1.0F);
    EXPECT_EQ(logits[0], 0.0F);
  });
}

}  // namespace
}  // namespace kvsieve
