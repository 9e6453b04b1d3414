// turbo: its codebooks, its distortion, and what happens at thresholds and at long rows.
#include <gtest/gtest.h>

#include <cmath>

#include "format_oracle.h"
#include "kvsieve/codec.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::Block;
using quant_test::GaussianRows;
using quant_test::MakeChainOrDie;
using quant_test::NormalizedError;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

constexpr Side kSides[] = {Side::kKey, Side::kValue};
constexpr std::string_view kTurbo[] = {"turbo(bits=1)", "turbo(bits=2)", "turbo(bits=3)",
                                       "turbo(bits=4)", "turbo(bits=5)"};

std::vector<float> RowOf(const Rows& rows, std::int64_t r) {
  return {rows.row(r), rows.row(r) + rows.dim()};
}

Rows DecodeRotated(const std::shared_ptr<const Chain>& chain, const Rows& rotated) {
  // The codec alone, without the rotation that MakeChain puts before it.
  std::vector<float> stats(1);
  Rows decoded(rotated.rows(), rotated.dim());
  Block block(chain->codec(), 64);
  EXPECT_TRUE(chain->codec().Learn(rotated, stats.data()).ok());
  for (std::int64_t first = 0; first < rotated.rows(); first += 64) {
    EXPECT_TRUE(chain->codec().Encode(stats.data(), rotated.row(first), 64, block.ref(), 0).ok());
    chain->codec().Decode(stats.data(), block.ref(), 0, 64, decoded.row(first));
  }
  return decoded;
}

// Published tables for 128 dimensions. Decoded values differ from the oracle's by the six digits
// of its centroids (5e-7 / 0.127), and where those tip the f16 scale by one unit, 2^-10. A row with
// a value that six digits of threshold do not place is left out: 128 values times density 0.4
// times 4e-6 times at most 8 thresholds make such rows 0.2 % of all.
TEST(Turbo, EqualsThePlainOracleAtDim128) {
  const Rows rows = GaussianRows(4096, 128, 10);
  for (int bits = 1; bits <= 4; ++bits) {
    const auto chain = MakeChainOrDie(kTurbo[bits - 1], 128, Side::kKey);
    const Rows decoded = DecodeRotated(chain, rows);
    int undecided = 0;
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      const auto oracle = format_oracle::Turbo128(RowOf(rows, r), bits);
      undecided += oracle.undecided ? 1 : 0;
      for (int j = 0; j < 128 && !oracle.undecided; ++j) {
        ASSERT_NEAR(decoded.row(r)[j], oracle.decoded[j],
                    std::fabs(oracle.decoded[j]) * (0x1p-10 + 5e-6))
            << bits << ' ' << r << ' ' << j;
      }
    }
    EXPECT_LT(undecided, 41);  // 1 %
  }
}

// The distortion of the codes against bare centroids is the published D for dim 128 (bits 1..4);
// the stored form keeps each row's length, which makes it 2 (1 - cos). Over n rows the mean has a
// relative error of about 0.13 / sqrt(n) (a row's D is a mean over 128 coordinates): 0.2 % at
// n = 4096, so 1 % is five deviations.
TEST(Turbo, DistortionIsThePublishedOne) {
  const double published[] = {0.360889, 0.116000, 0.033966, 0.009315};
  const double matched[] = {0.4012, 0.1189, 0.0338, 0.00919, 0.00241};
  const Rows rows = GaussianRows(4096, 128, 11);
  for (int bits = 1; bits <= 5; ++bits) {
    for (const Side side : kSides) {
      const Stored stored = Store(MakeChainOrDie(kTurbo[bits - 1], 128, side), rows);
      const double error = NormalizedError(rows, stored.Decode(rows.rows()));
      EXPECT_NEAR(error, matched[bits - 1], 0.01 * matched[bits - 1]) << bits;
      RecordProperty("nmse_" + std::to_string(bits), std::to_string(error));
    }
    if (bits == 5) continue;
    double raw = 0;
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      raw += format_oracle::Turbo128(RowOf(rows, r), bits).raw_error / 4096;
    }
    EXPECT_NEAR(raw, published[bits - 1], 0.01 * published[bits - 1]) << bits;
  }
}

TEST(Turbo, KeepsTheLengthOfEveryRow) {
  for (const int dim : {16, 64, 80, 96, 128, 256}) {
    const Rows rows = GaussianRows(64, dim, 12);
    for (const auto text : kTurbo) {
      const Rows decoded = Store(MakeChainOrDie(text, dim, Side::kKey), rows).Decode(64);
      for (std::int64_t r = 0; r < rows.rows(); ++r) {
        double length = 0, decoded_length = 0;
        for (int j = 0; j < dim; ++j) {
          length += double{rows.row(r)[j]} * rows.row(r)[j];
          decoded_length += double{decoded.row(r)[j]} * decoded.row(r)[j];
        }
        // Half a unit of the f16 scale, 2^-11, and f32 rotation.
        EXPECT_NEAR(std::sqrt(decoded_length / length), 1.0, 0x1p-11 + 1e-5) << text;
      }
    }
  }
}

// A value on a threshold belongs to the upper cell. At 1 bit the threshold is 0 (of either sign);
// with 16 dims and one nonzero coordinate the other 15 sit on it.
TEST(Turbo, TiesGoToTheUpperCell) {
  const auto chain = MakeChainOrDie("turbo(bits=1)", 16, Side::kKey);
  Rows rotated(64, 16);
  for (int r = 0; r < 64; ++r) {
    for (int j = 0; j < 16; ++j) rotated.row(r)[j] = r % 2 == 0 ? 0.0F : -0.0F;
    rotated.row(r)[r % 16] = -1.0F;
  }
  const Rows decoded = DecodeRotated(chain, rotated);
  for (int r = 0; r < 64; ++r) {
    for (int j = 0; j < 16; ++j) {
      EXPECT_EQ(decoded.row(r)[j] > 0, j != r % 16) << r << ' ' << j;
    }
  }
}

TEST(Turbo, AHeadWithLongRowsStoresWideScales) {
  for (const auto text : kTurbo) {
    const auto chain = MakeChainOrDie(text, 128, Side::kKey);
    Rows rows = GaussianRows(64, 128, 13);
    for (int j = 0; j < 128; ++j) rows.row(5)[j] *= 1e5F;  // norm about 1.1e6
    const Stored stored = Store(chain, rows);
    const Rows decoded = stored.Decode(64);
    const Rows plain = Store(chain, GaussianRows(64, 128, 13)).Decode(64);
    for (const int r : {4, 5}) {
      double dot = 0, length = 0, decoded_length = 0;
      for (int j = 0; j < 128; ++j) {
        dot += double{decoded.row(r)[j]} * plain.row(r)[j];
        length += double{plain.row(r)[j]} * plain.row(r)[j];
        decoded_length += double{decoded.row(r)[j]} * decoded.row(r)[j];
      }
      EXPECT_GT(dot / std::sqrt(length * decoded_length), 1 - 1e-5);  // the same codes
      // Half a unit of 8 bits is 2^-8 (bf16), of 11 bits 2^-11 (f16).
      const double factor = r == 5 ? 1e5 : 1.0;
      EXPECT_NEAR(std::sqrt(decoded_length / length) / factor, 1.0, 0x1p-8 + 0x1p-11 + 1e-5);
    }
  }
}

TEST(Turbo, ARowThatCameTooLongForTheHeadIsAnErrorAndWritesNothing) {
  const auto chain = MakeChainOrDie("turbo", 128, Side::kKey);
  const Stored stored = Store(chain, GaussianRows(64, 128, 14));  // f16 scales
  Rows late = GaussianRows(2, 128, 15);
  for (int j = 0; j < 128; ++j) late.row(1)[j] *= 1e5F;
  Block block(chain->codec(), 64);
  const Status status = chain->Encode(stored.stats.data(), late.row(0), 2, block.ref(), 0);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("row 1"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("65504"), std::string::npos) << status.message();
  const Block zeros(chain->codec(), 64);
  EXPECT_EQ(std::memcmp(block.bytes(), zeros.bytes(), block.size()), 0);
}

}  // namespace
}  // namespace kvsieve
