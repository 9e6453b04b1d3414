// Rows that break quantizers: zero, constant, one-hot, huge, tiny, not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec_variants.h"
#include "kvsieve/codec.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::Block;
using quant_test::EveryCodec;
using quant_test::GaussianRows;
using quant_test::MakeChainOrDie;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

constexpr Side kSides[] = {Side::kKey, Side::kValue};

Rows ConstantRows(int rows, int dim, float value) {
  Rows result(rows, dim);
  for (float& x : result.values()) x = value;
  return result;
}

double Cosine(const float* a, const float* b, int n) {
  double ab = 0, aa = 0, bb = 0;
  for (int j = 0; j < n; ++j) {
    ab += double{a[j]} * b[j];
    aa += double{a[j]} * a[j];
    bb += double{b[j]} * b[j];
  }
  return ab / std::sqrt(aa * bb);
}

// f16 values and f16 scales end at 65504, and such rows are refused.
bool EndsAtF16(std::string_view text) { return text == "f16" || text == "q8_0" || text == "q4_0"; }

Status LearnAndEncode(const Chain& chain, const Rows& rows) {
  std::vector<float> stats(chain.stats_floats() + 1);
  KVS_RETURN_IF_ERROR(chain.Learn(rows, stats.data()));
  Rows copy = rows;
  Block block(chain.codec(), 64);
  return chain.Encode(stats.data(), copy.row(0), static_cast<int>(rows.rows()), block.ref(), 0);
}

TEST(EdgeRows, ZeroRowsDecodeToZerosAndScoreZero) {
  for (const float zero : {0.0F, -0.0F}) {
    for (const std::string& text : EveryCodec(64)) {
      const Rows rows = ConstantRows(64, 64, zero);
      const Stored stored = Store(MakeChainOrDie(text, 64, Side::kKey), rows);
      const Rows decoded = stored.Decode(64);
      for (const float x : decoded.values()) ASSERT_EQ(x, 0.0F) << text;
      const Chain& chain = *stored.chain;
      Rows query = GaussianRows(1, 64, 50);
      alignas(64) std::uint8_t prepared[8192];
      ASSERT_LE(chain.codec().QueryBytes(), sizeof prepared);
      float bias = 1;
      float logits[kBlockRows];
      chain.PrepareQueries(stored.stats.data(), query.row(0), 1, prepared, &bias);
      chain.codec().Score(stored.stats.data(), prepared, 1, stored.blocks[0].ref(), 64, logits, {});
      EXPECT_EQ(bias, 0.0F);
      for (const float logit : logits) ASSERT_EQ(logit, 0.0F) << text;
    }
  }
}

TEST(EdgeRows, PositiveAndNegativeZeroGiveTheSameBytes) {
  for (const auto text : {"int8", "int4", "int4(sym)", "turbo(bits=2)", "turbo(bits=4)"}) {
    const auto chain = MakeChainOrDie(text, 64, Side::kKey);
    Rows rows = GaussianRows(64, 64, 51);
    for (std::size_t i = 0; i < rows.values().size(); i += 3) rows.values()[i] = 0.0F;
    for (float& x : rows.values()) x = std::fabs(x);  // zero is the smallest
    Rows negative = rows;
    for (float& x : negative.values()) x = x == 0.0F ? -0.0F : x;
    const Stored a = Store(chain, rows);
    const Stored b = Store(chain, negative);
    EXPECT_EQ(std::memcmp(a.blocks[0].bytes(), b.blocks[0].bytes(), a.blocks[0].size()), 0) << text;
  }
}

TEST(EdgeRows, ConstantRowsKeepTheirValueAsym) {
  for (const auto text : {"int4", "int4(group=row)"}) {
    for (const Side side : kSides) {
      for (const float value : {100.0F, -3.5F, 65504.0F}) {  // each an f16 number
        const Rows rows = ConstantRows(3, 128, value);
        const Rows decoded = Store(MakeChainOrDie(text, 128, side), rows).Decode(3);
        for (const float x : decoded.values()) ASSERT_EQ(x, value) << text;
      }
      // Not an f16 number: the zero point lies below by at most 2^-10 of the value, and 15 steps,
      // rounded up by at most 2^-7, lead back.
      const Rows rows = ConstantRows(3, 128, 0.1F);
      const Rows decoded = Store(MakeChainOrDie(text, 128, side), rows).Decode(3);
      for (const float x : decoded.values()) ASSERT_NEAR(x, 0.1F, 0.1 * 0x1p-10 * 0x1p-5) << text;
    }
  }
}

// Signs first: a constant row is spread like any other. H before signs would fail this.
TEST(EdgeRows, ConstantRowsStayCloseUnderTurbo) {
  const double cosine[] = {0.0, 0.90, 0.97, 0.99, 0.995};
  for (int bits = 2; bits <= 5; ++bits) {
    const std::string text = "turbo(bits=" + std::to_string(bits) + ")";
    for (const int dim : {64, 128, 256}) {
      const Rows rows = ConstantRows(1, dim, 2.0F);
      const Rows decoded = Store(MakeChainOrDie(text, dim, Side::kKey), rows).Decode(1);
      EXPECT_GE(Cosine(rows.row(0), decoded.row(0), dim), cosine[bits - 1]) << text << ' ' << dim;
    }
  }
}

// Rotated, all magnitudes of a one-hot row are equal: one centroid, so only the scale rounds.
TEST(EdgeRows, OneHotRowsAreExactUnderTurboUpToTheScale) {
  for (const auto text : {"turbo(bits=1)", "turbo(bits=2)", "turbo(bits=4)", "turbo(bits=5)"}) {
    Rows rows(64, 128);
    for (int r = 0; r < 64; ++r) rows.row(r)[2 * r] = static_cast<float>(r + 1);
    const Rows decoded = Store(MakeChainOrDie(text, 128, Side::kValue), rows).Decode(64);
    for (int r = 0; r < 64; ++r) {
      EXPECT_GT(Cosine(rows.row(r), decoded.row(r), 128), 1 - 1e-6) << text;
      EXPECT_NEAR(decoded.row(r)[2 * r], r + 1, (r + 1) * (0x1p-11 + 1e-5)) << text;
    }
  }
}

TEST(EdgeRows, TheLargestElementNeverNeedsCode128) {
  for (int k = 0; k < 2000; ++k) {
    Rows row(1, 16);
    for (int j = 0; j < 16; ++j) row.row(0)[j] = (j % 2 ? -1.0F : 1.0F) * (1.0F + k * 0x1.3p-11F);
    const float x = Store(MakeChainOrDie("int8", 16, Side::kKey), row).Decode(1).row(0)[0];
    ASSERT_NEAR(x, row.row(0)[0], row.row(0)[0] * (1 + 0x1p-7) / 254 * 1.000001);
  }
}

TEST(EdgeRows, TiesRoundToEven) {
  Rows row(1, 8);
  const float values[] = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 3.5F};  // scale 1
  std::copy(std::begin(values), std::end(values), row.row(0));
  const Rows decoded = Store(MakeChainOrDie("int8", 8, Side::kValue), row).Decode(1);
  const float expected[] = {127.0F, 0.0F, 2.0F, 2.0F, 0.0F, -2.0F, -2.0F, 4.0F};
  for (int j = 0; j < 8; ++j) EXPECT_EQ(decoded.row(0)[j], expected[j]) << j;
}

TEST(EdgeRows, HugeRowsAreStoredOrRefusedNeverInf) {
  Rows rows = GaussianRows(8, 128, 52);
  for (float& x : rows.values()) x *= 1e30F;
  for (const std::string& text : EveryCodec(128)) {
    const auto chain = MakeChainOrDie(text, 128, Side::kKey);
    const Status status = LearnAndEncode(*chain, rows);
    EXPECT_EQ(status.ok(), !EndsAtF16(text)) << text;
    if (!status.ok()) {
      EXPECT_NE(status.message().find("row 0"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("at most"), std::string::npos) << status.message();
      continue;
    }
    const Rows decoded = Store(chain, rows).Decode(8);
    for (const float x : decoded.values()) ASSERT_TRUE(std::isfinite(x)) << text;
    // An f16 zero point saturates, so half of the values clip to it; fp8 clips all.
    const bool asym = text.starts_with("channel") || (text.starts_with("int") && text != "int8" &&
                                                      text.find("sym") == std::string::npos);
    const bool clips = asym || text == "fp8";
    // int2(sym) has one code a sign, which only elements above half of the largest take: for the
    // largest at 3.5 deviations, 8 % of them and a cosine of 0.61; others do better.
    for (int r = 0; r < 8 && !clips; ++r) {
      EXPECT_GT(Cosine(rows.row(r), decoded.row(r), 128), 0.55) << text;
    }
  }
}

// Whatever the size of a row: it is refused by name, or all that it decodes to is finite.
TEST(EdgeRows, RowsNearTheEndOfF32AreRefusedOrDecodeFinite) {
  constexpr float kEnd = std::numeric_limits<float>::max();
  std::vector<std::string> chains = EveryCodec(128);
  for (const char* text : {"hadamard+int8", "hadamard+int4(sym)", "hadamard+bf16", "center+int8",
                           "center+hadamard+int4", "center+turbo(bits=3)"}) {
    chains.emplace_back(text);
  }
  for (const std::string& text : chains) {
    const auto chain = MakeChainOrDie(text, 128, Side::kKey);
    int stored_rows = 0;
    for (float size = 0x1p90F; std::isfinite(size); size *= 1.7F) {
      for (const float largest : {size, kEnd}) {
        for (int pattern = 0; pattern < 4; ++pattern) {
          Rows rows(3, 128);
          for (int r = 0; r < 3; ++r) {
            for (int j = 0; j < 128; ++j) {
              const float each[] = {largest, j % 2 == 0 ? largest : -largest,
                                    j == 5 ? largest : 0.0F, (r + j) % 3 == 0 ? -largest : largest};
              rows.row(r)[j] = each[pattern];
            }
          }
          if (const Status status = LearnAndEncode(*chain, rows); !status.ok()) {
            ASSERT_NE(status.message().find("element"), std::string::npos) << status.message();
            continue;
          }
          ++stored_rows;
          const Rows decoded = Store(chain, rows).Decode(3);
          for (const float x : decoded.values()) {
            ASSERT_TRUE(std::isfinite(x)) << text << " pattern " << pattern << " size " << largest;
          }
        }
      }
    }
    EXPECT_EQ(stored_rows > 20, !EndsAtF16(text)) << text << ' ' << stored_rows;
  }
}

TEST(EdgeRows, TheLargestElementThatAScaleTakesIsNamed) {
  for (const std::string_view text : {"int8", "int4", "int4(sym)"}) {
    const auto chain = MakeChainOrDie(text, 64, Side::kValue);
    Rows rows = GaussianRows(4, 64, 54);
    rows.row(2)[7] = -0x1p112F;
    EXPECT_TRUE(LearnAndEncode(*chain, rows).ok()) << text;
    rows.row(2)[7] = std::nextafter(-0x1p112F, -0x1p113F);
    float stats[1];
    Block block(chain->codec(), 64);
    Rows copy = rows;
    // Decode rows come to Encode without Learn.
    for (const Status& status :
         {chain->Learn(rows, stats), chain->Encode(stats, copy.row(0), 4, block.ref(), 0)}) {
      ASSERT_FALSE(status.ok()) << text;
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
      EXPECT_NE(status.message().find("row 2, element 7"), std::string::npos) << status.message();
    }
  }
}

// What is left of rows at the end of f32 minus their mean is small, and rounds up past the end.
TEST(EdgeRows, AMeanNearTheEndOfF32IsRefused) {
  Rows rows(3, 128);
  for (float& x : rows.values()) x = std::numeric_limits<float>::max();
  for (int j = 0; j < 128; ++j) rows.row(1)[j] -= 0x1p109F * static_cast<float>(j % 5);
  const Status status = LearnAndEncode(*MakeChainOrDie("center+int4(sym)", 128, Side::kKey), rows);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("mean"), std::string::npos) << status.message();
}

// Documented: an f16 zero point saturates, so values below -65504 clip to it.
TEST(EdgeRows, AsymClipsBelowTheLargestZeroPoint) {
  Rows row(1, 32);
  for (int j = 0; j < 32; ++j) row.row(0)[j] = -1e5F + 1e4F * static_cast<float>(j);
  const Rows decoded = Store(MakeChainOrDie("int4", 32, Side::kKey), row).Decode(1);
  const double half_step = (2.1e5 + 65504) / 15 * (1 + 0x1p-7) / 2;
  for (int j = 0; j < 32; ++j) {
    EXPECT_NEAR(decoded.row(0)[j], std::fmax(row.row(0)[j], -65504.0F), half_step) << j;
  }
}

// bf16 scales have f32's exponents: a tiny row has the error of a plain one. f16 values and turbo's
// f16 scales keep 2^-25 absolute.
TEST(EdgeRows, TinyRowsKeepTheirRelativeError) {
  for (const float size : {1e-6F, 1e-12F, 1e-30F}) {
    Rows rows = GaussianRows(16, 128, 53);
    for (float& x : rows.values()) x *= size;
    for (const auto text : {"int8", "int4(sym)"}) {
      const Rows decoded = Store(MakeChainOrDie(text, 128, Side::kKey), rows).Decode(16);
      for (int r = 0; r < 16; ++r) {
        EXPECT_GT(Cosine(rows.row(r), decoded.row(r), 128), 0.98) << text << size;
      }
    }
    for (const auto text : {"f16", "turbo(bits=4)"}) {
      const Rows decoded = Store(MakeChainOrDie(text, 128, Side::kKey), rows).Decode(16);
      for (std::size_t i = 0; i < rows.values().size(); ++i) {
        // turbo: half a unit of scale times a centroid below 1, and the codes' own error.
        ASSERT_NEAR(decoded.values()[i], rows.values()[i], 0x1p-25 + 0.5 * size * 4) << text;
      }
    }
  }
}

// Also of the rows before: 18 is in the second panel, 3 in the first tile of any codec.
void ExpectRowRefused(const std::string& text, Side side, int bad_row, float bad) {
  SCOPED_TRACE(text + " row " + std::to_string(bad_row));
  const auto chain = MakeChainOrDie(text, 64, side);
  Rows rows = GaussianRows(20, 64, 54);
  const Stored good = Store(chain, rows);
  rows.row(bad_row)[7] = bad;
  std::vector<float> stats(chain->stats_floats() + 1);
  const Status learnt = chain->Learn(rows, stats.data());
  ASSERT_FALSE(learnt.ok());
  EXPECT_EQ(learnt.error().code, ErrorCode::kNonFinite);
  EXPECT_NE(learnt.message().find("row " + std::to_string(bad_row)), std::string::npos)
      << learnt.message();
  Block block(chain->codec(), 64);
  const Block zeros(chain->codec(), 64);
  const Status encoded = chain->Encode(good.stats.data(), rows.row(0), 20, block.ref(), 0);
  ASSERT_FALSE(encoded.ok());
  EXPECT_EQ(std::memcmp(block.bytes(), zeros.bytes(), block.size()), 0);
}

TEST(EdgeRows, NonFiniteRowsAreNamedAndNothingIsWritten) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
    for (const std::string& text : EveryCodec(64)) {
      for (const Side side : kSides) {
        for (const int bad_row : {3, 18}) ExpectRowRefused(text, side, bad_row, bad);
      }
    }
  }
}

TEST(EdgeRows, F16LimitIsExactly65504) {
  const auto chain = MakeChainOrDie("f16", 16, Side::kValue);
  EXPECT_TRUE(LearnAndEncode(*chain, ConstantRows(1, 16, 65504.0F)).ok());
  EXPECT_TRUE(LearnAndEncode(*chain, ConstantRows(1, 16, -65504.0F)).ok());
  EXPECT_FALSE(LearnAndEncode(*chain, ConstantRows(1, 16, 65505.0F)).ok());
}

TEST(EdgeRows, NoRowsAreFine) {
  for (const std::string& text : EveryCodec(64)) {
    const auto chain = MakeChainOrDie(text, 64, Side::kKey);
    EXPECT_TRUE(LearnAndEncode(*chain, Rows(0, 64)).ok()) << text;
  }
}

// A short row's group, or a neighbour in the same byte, must not feel an outlier.
TEST(EdgeRows, AnOutlierTouchesOnlyItsGroup) {
  const auto chain = MakeChainOrDie("int4(group=32)", 128, Side::kKey);
  const Rows rows = GaussianRows(16, 128, 55);
  Rows spiked = rows;
  spiked.row(4)[40] = 1e4F;
  const Rows plain = Store(chain, rows).Decode(16);
  const Rows decoded = Store(chain, spiked).Decode(16);
  for (int r = 0; r < 16; ++r) {
    for (int j = 0; j < 128; ++j) {
      if (r == 4 && j / 32 == 1) continue;
      ASSERT_EQ(decoded.row(r)[j], plain.row(r)[j]) << r << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace kvsieve
