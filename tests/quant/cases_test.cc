// Cases from the field that concern codecs and transforms, by their number.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kvsieve/codec.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::GaussianRows;
using quant_test::MakeChainError;
using quant_test::MakeChainOrDie;
using quant_test::NormalizedError;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

double Dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int j = 0; j < n; ++j) sum += double{a[j]} * b[j];
  return sum;
}

// A Hadamard matrix for 80 dims that was built as 128 x 128: blocks of 16 instead.
TEST(Cases, U35_HadamardOfDim80IsOrthonormal) {
  const auto chain = MakeChainOrDie("hadamard+f16", 80, Side::kKey);
  const Rows rows = GaussianRows(64, 80, 60);
  Rows decoded = Store(chain, rows).Decode(64);
  for (int r = 0; r < 64; ++r) {
    // f16 adds 2^-11 an element at most.
    const double length = std::sqrt(Dot(rows.row(r), rows.row(r), 80));
    const double decoded_length = std::sqrt(Dot(decoded.row(r), decoded.row(r), 80));
    EXPECT_NEAR(decoded_length / length, 1.0, 0x1p-11 + 1e-5);
  }
  EXPECT_EQ(chain->codec().row_bytes().codes, 160);  // no padded dims
}

// Scores normalised by another root than the codes: an inner product biased by sqrt(128/80).
TEST(Cases, U36_InnerProductsAreUnbiasedAtDim80) {
  const Rows keys = GaussianRows(1000, 80, 61);
  const Rows decoded = Store(MakeChainOrDie("turbo(bits=4)", 80, Side::kKey), keys).Decode(1000);
  double ratio = 0;
  for (int r = 0; r < 1000; ++r) {
    // The pair (k, k): its true product is |k|^2, never near zero.
    ratio += Dot(keys.row(r), decoded.row(r), 80) / Dot(keys.row(r), keys.row(r), 80) / 1000;
  }
  EXPECT_GE(ratio, 0.98);
  EXPECT_LE(ratio, 1.02);
}

// Three bits that used four codes.
TEST(Cases, U37_AllCodesAreUsedAndDecodingIsMonotone) {
  const std::pair<std::string_view, std::size_t> levels[] = {
      {"turbo(bits=1)", 2},  {"turbo(bits=2)", 4},    {"turbo(bits=3)", 8}, {"turbo(bits=4)", 16},
      {"turbo(bits=5)", 32}, {"int4(group=row)", 16}, {"int8", 255}};
  // The codec alone, on fifth powers of evenly spread values: they reach 3.3 deviations, past the
  // last threshold of 5 bits (2.98).
  Rows row(1, 4096);
  for (int j = 0; j < 4096; ++j) {
    row.row(0)[j] = static_cast<float>(std::pow((j - 2047.5) / 1024.0, 5));
  }
  for (const auto& [text, count] : levels) {
    const auto chain = MakeChainOrDie(text, 4096, Side::kKey);
    std::vector<float> stats(2);
    quant_test::Block block(chain->codec(), 16);
    ASSERT_TRUE(chain->codec().Learn(row, stats.data()).ok());
    ASSERT_TRUE(chain->codec().Encode(stats.data(), row.row(0), 1, block.ref(), 0).ok());
    std::vector<float> decoded(4096);
    chain->codec().Decode(stats.data(), block.ref(), 0, 1, decoded.data());
    std::set<float> distinct(decoded.begin(), decoded.end());
    EXPECT_EQ(distinct.size(), count) << text;
    for (int j = 1; j < 4096; ++j) ASSERT_LE(decoded[j - 1], decoded[j]) << text;
  }
}

TEST(Cases, U38_AGroupThatDoesNotDivideFailsAtConstruction) {
  const std::string message = MakeChainError("int4(group=64)", 96);
  EXPECT_NE(message.find("64"), std::string::npos);
  EXPECT_NE(message.find("96"), std::string::npos);
  EXPECT_NE(message.find("group=48"), std::string::npos) << message;
  EXPECT_EQ(MakeChainOrDie("int4", 96, Side::kKey)->Canonical(), "int4(group=32,asym)");
}

// Interleaved groups that spilt into the neighbouring head.
TEST(Cases, U39_TwoHeadsOfDim64DoNotMix) {
  for (const auto text : {"f16", "int8", "int4", "int4(sym)", "turbo(bits=4)"}) {
    const auto chain = MakeChainOrDie(text, 64, Side::kValue);
    for (const float sign : {1.0F, -1.0F}) {
      Rows rows(64, 64);
      for (float& x : rows.values()) x = sign;
      const Stored stored = Store(chain, rows);
      std::vector<float> weights(kBlockRows, 1.0F / 64);
      std::vector<float> out(64);
      chain->codec().Accumulate(stored.stats.data(), weights.data(), 1, stored.blocks[0].ref(), 64,
                                out.data(), {});
      chain->FinishOutput(stored.stats.data(), 1.0F, out.data());
      // The case asks for 1/127 of each element. turbo's error of a constant row is spread over its
      // elements; their mean is the cosine between the row and what is stored, at least 0.99.
      double mean = 0;
      for (const float x : out) {
        mean += x / 64;
        EXPECT_GT(x * sign, 0) << text;
        if (std::string_view(text).starts_with("turbo")) continue;
        EXPECT_NEAR(x, sign, 1.0 / 127) << text;
      }
      EXPECT_NEAR(mean, sign, 0.01) << text;
    }
  }
}

TEST(Cases, U41_ErrorDoesNotDependOnTheLengthOfKeys) {
  const Rows unit = GaussianRows(256, 128, 62);
  for (const auto text : {"turbo(bits=2)", "turbo(bits=3)", "turbo(bits=4)", "int8", "int4(sym)"}) {
    const auto error_at = [&](double norm) {
      Rows rows = unit;
      for (int r = 0; r < 256; ++r) {
        const double length = std::sqrt(Dot(unit.row(r), unit.row(r), 128));
        for (int j = 0; j < 128; ++j) {
          rows.row(r)[j] = static_cast<float>(unit.row(r)[j] * norm / length);
        }
      }
      return NormalizedError(rows, Store(MakeChainOrDie(text, 128, Side::kKey), rows).Decode(256));
    };
    const double at_4 = error_at(4.3);
    EXPECT_NEAR(error_at(778.6) / at_4, 1.0, 0.01) << text;
    EXPECT_NEAR(error_at(1e5) / at_4, 1.0, 0.01) << text;  // past f16: wide scales
  }
}

TEST(Cases, U42_ARowWhoseSumOfSquaresOverflowsF32IsStored) {
  Rows rows = GaussianRows(3, 128, 63);
  for (int j = 0; j < 128; ++j) {
    rows.row(1)[j] = 1e30F;
    rows.row(2)[j] = 0.0F;
  }
  const Stored stored = Store(MakeChainOrDie("turbo(bits=4)", 128, Side::kKey), rows);
  const Rows decoded = stored.Decode(3);
  const double length = std::sqrt(Dot(decoded.row(1), decoded.row(1), 128));
  EXPECT_NEAR(length / 1.1314e31, 1.0, 0x1p-8 + 1e-4);
  for (int j = 0; j < 128; ++j) EXPECT_EQ(decoded.row(2)[j], 0.0F);
  // A neighbour keeps its own codes.
  EXPECT_GT(
      Dot(rows.row(0), decoded.row(0), 128) /
          std::sqrt(Dot(rows.row(0), rows.row(0), 128) * Dot(decoded.row(0), decoded.row(0), 128)),
      0.98);
  // Past f32 the row is refused when it is learnt.
  for (int j = 0; j < 128; ++j) rows.row(1)[j] = 3.4e38F;
  std::vector<float> stats(2);
  EXPECT_FALSE(MakeChainOrDie("turbo", 128, Side::kKey)->Learn(rows, stats.data()).ok());
}

// One channel 50 times as large: plain 4-bit groups of 64 lose the row, rotated ones do not.
TEST(Cases, U43_HadamardRescuesKeysWithAnOutlierChannel) {
  Rows keys = GaussianRows(512, 128, 64);
  for (int r = 0; r < 512; ++r) keys.row(r)[17] *= 50.0F;
  const Rows queries = GaussianRows(32, 128, 65);
  const auto logit_rmse = [&](std::string_view text) {
    const Rows decoded = Store(MakeChainOrDie(text, 128, Side::kKey), keys).Decode(512);
    double sum = 0;
    for (int q = 0; q < 32; ++q) {
      for (int r = 0; r < 512; ++r) {
        const double error =
            Dot(queries.row(q), decoded.row(r), 128) - Dot(queries.row(q), keys.row(r), 128);
        sum += error * error / 128;  // logits are scaled by 1 / sqrt(dim)
      }
    }
    return std::sqrt(sum / (32 * 512));
  };
  EXPECT_GE(logit_rmse("int4(group=64)"), 3 * logit_rmse("hadamard+int4(group=64)"));
  EXPECT_LT(logit_rmse("hadamard+f16"), 0x1p-11 * 60);  // the rotation itself costs nothing
}

TEST(Cases, U44_RotatedValuesComeOutUnrotated) {
  for (const auto text : {"hadamard+f16", "hadamard+int8", "center+hadamard+int8"}) {
    const auto chain = MakeChainOrDie(text, 128, Side::kValue);
    Rows rows(16, 128);
    for (float& x : rows.values()) x = 2.5F;
    const Stored stored = Store(chain, rows);
    std::vector<float> weights(kBlockRows, 0.0F);
    for (int r = 0; r < 16; ++r) weights[r] = 0.25F;  // sums to 4
    std::vector<float> out(128);
    const int codec_stats = chain->stats_floats() - chain->codec().stats_floats();
    chain->codec().Accumulate(stored.stats.data() + codec_stats, weights.data(), 1,
                              stored.blocks[0].ref(), 16, out.data(), {});
    chain->FinishOutput(stored.stats.data(), 4.0F, out.data());
    // int8 of a rotated constant row: an error uniform over one step, of at most 4 deviations
    // (2.5) / 127, stays as large when rotated back; all 16 rows are alike, so weights of 4 scale
    // it; five deviations.
    const double deviation = 4 * (4 * 2.5 / 127) / std::sqrt(12.0);
    for (const float x : out) EXPECT_NEAR(x, 10.0F, 5 * deviation) << text;
  }
}

TEST(Cases, U46_RelativeErrorDoesNotDependOnTheScale) {
  const Rows rows = GaussianRows(256, 128, 66);
  for (const auto text : {"int8", "int4", "int4(sym)", "turbo(bits=3)", "turbo(bits=4)"}) {
    const auto error_at = [&](float factor) {
      Rows scaled = rows;
      for (float& x : scaled.values()) x *= factor;
      return NormalizedError(scaled,
                             Store(MakeChainOrDie(text, 128, Side::kKey), scaled).Decode(256));
    };
    const double at_one = error_at(1.0F);
    // Scales round differently by at most 2^-7 (bf16 up): the error's square by 2^-6.
    EXPECT_NEAR(error_at(1e-3F) / at_one, 1.0, 0x1p-6) << text;
    EXPECT_NEAR(error_at(1e3F) / at_one, 1.0, 0x1p-6) << text;
  }
}

// Row codecs after any sequence of moves equal a direct encode of the survivors, and old rows are
// never encoded again.
TEST(Cases, U30_RowsThatStayKeepTheirBytes) {
  const auto chain = MakeChainOrDie("center+turbo(bits=3)", 64, Side::kKey);
  const Rows rows = GaussianRows(64, 64, 67);
  const Stored stored = Store(chain, rows);
  quant_test::Block block = stored.blocks[0];
  for (int cycle = 0; cycle < 10; ++cycle) {  // drop five, append five
    Rows again(5, 64);
    std::memcpy(again.row(0), rows.row(59), 5 * 64 * sizeof(float));
    ASSERT_TRUE(chain->Encode(stored.stats.data(), again.row(0), 5, block.ref(), 59).ok());
    EXPECT_EQ(std::memcmp(block.bytes(), stored.blocks[0].bytes(), block.size()), 0);
  }
}

}  // namespace
}  // namespace kvsieve
