// Cases from the field that concern codecs and transforms, by their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "codec_variants.h"
#include "kvsieve/codec.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::EveryCodec;
using quant_test::GaussianRows;
using quant_test::MakeChainError;
using quant_test::MakeChainOrDie;
using quant_test::NormalizedError;
using quant_test::OnEveryTarget;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

double Dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int j = 0; j < n; ++j) sum += double{a[j]} * b[j];
  return sum;
}

double Length(const float* row, int n) { return std::sqrt(Dot(row, row, n)); }

// f32 memory for prepared queries, aligned to 64.
struct alignas(64) Line {
  std::uint8_t bytes[64];
};
std::vector<Line> PreparedFor(const Codec& codec) {
  return std::vector<Line>(codec.QueryBytes() / 64 + 1);
}

// At most 64 rows behind a chain's transforms, before its codec: what Encode leaves of them.
Rows TransformedRows(const Chain& chain, Rows rows) {
  const std::vector<float> stats(static_cast<std::size_t>(chain.stats_floats()) + 1);
  quant_test::Block block(chain.codec(), kBlockRows);
  const auto count = static_cast<int>(rows.rows());
  EXPECT_TRUE(chain.Encode(stats.data(), rows.row(0), count, block.ref(), 0).ok());
  return rows;
}

// At most kHeadTile queries behind them: what PrepareQueries leaves.
Rows TransformedQueries(const Chain& chain, Rows queries) {
  const std::vector<float> stats(static_cast<std::size_t>(chain.stats_floats()) + 1);
  std::vector<Line> prepared = PreparedFor(chain.codec());
  float bias[kHeadTile];
  chain.PrepareQueries(stats.data(), queries.row(0), static_cast<int>(queries.rows()),
                       prepared.data(), bias);
  return queries;
}

// A Hadamard matrix for 80 dims that was built as 128 x 128: blocks of 16 instead.
TEST(Cases, U35_HadamardOfDim80IsOrthonormal) {
  for (const int dim : {80, 96, 128, 33}) {
    SCOPED_TRACE(dim);
    const auto chain = MakeChainOrDie("hadamard+f16", dim, Side::kKey);
    const Rows keys = GaussianRows(64, dim, 60);
    const Rows queries = GaussianRows(kHeadTile, dim, 59);
    const Rows turned_keys = TransformedRows(*chain, keys);
    const Rows turned_queries = TransformedQueries(*chain, queries);
    EXPECT_NE(turned_keys.values(), keys.values());
    for (int r = 0; r < 64; ++r) {
      // log2(block) + 1 roundings of f32 an element.
      EXPECT_NEAR(Length(turned_keys.row(r), dim) / Length(keys.row(r), dim), 1.0, 1e-5);
      for (int q = 0; q < kHeadTile; ++q) {
        EXPECT_NEAR(Dot(turned_queries.row(q), turned_keys.row(r), dim),
                    Dot(queries.row(q), keys.row(r), dim), 1e-4);
      }
    }
    // No padded dims: 2 bytes an element, and a block is whole lines.
    EXPECT_EQ(chain->codec().row_bytes().codes, 2 * dim);
    EXPECT_LT(chain->codec().BlockBytes(kBlockRows), std::size_t{64} * 2 * (dim + 16));
  }
  EXPECT_EQ(MakeChainOrDie("hadamard+f16", 80, Side::kKey)->codec().BlockBytes(kBlockRows),
            64U * 160);
}

// Scores normalised by another root than the codes: an inner product biased by sqrt(128/80).
TEST(Cases, U36_InnerProductsAreUnbiasedAtDim80) {
  const Rows keys = GaussianRows(1024, 80, 61);
  const Rows queries = GaussianRows(kHeadTile, 80, 58);
  for (const auto text : {"turbo(bits=4)", "int4", "hadamard+int4(sym)", "int8"}) {
    const auto chain = MakeChainOrDie(text, 80, Side::kKey);
    const Stored stored = Store(chain, keys);
    OnEveryTarget([&] {
      Rows scratch = queries;
      std::vector<Line> prepared = PreparedFor(chain->codec());
      float bias[kHeadTile];
      float logits[kHeadTile * kBlockRows];
      chain->PrepareQueries(stored.stats.data(), scratch.row(0), kHeadTile, prepared.data(), bias);
      double estimated_true = 0;
      double true_true = 0;
      for (int r = 0; r < 1024; ++r) {
        if (r % kBlockRows == 0) {
          chain->codec().Score(chain->CodecStats(stored.stats.data()), prepared.data(), kHeadTile,
                               stored.blocks[r / kBlockRows].ref(), kBlockRows, logits, {});
        }
        for (int q = 0; q < kHeadTile; ++q) {
          const double exact = Dot(queries.row(q), keys.row(r), 80);
          estimated_true += exact * (logits[q * kBlockRows + r % kBlockRows] + bias[q]);
          true_true += exact * exact;
        }
      }
      // The mean of estimated / true over 4096 random pairs, each weighted by true^2: a product
      // near zero says nothing. Noise of 0.1 of |q| |k| / sqrt(dim) moves it by 0.1 / sqrt(4096).
      EXPECT_GE(estimated_true / true_true, 0.98) << text;
      EXPECT_LE(estimated_true / true_true, 1.02) << text;
    });
  }
}

// Three bits that used four codes.
TEST(Cases, U37_AllCodesAreUsedAndDecodingIsMonotone) {
  const std::pair<std::string_view, std::size_t> levels[] = {
      {"turbo(bits=1)", 2},       {"turbo(bits=2)", 4},        {"turbo(bits=3)", 8},
      {"turbo(bits=4)", 16},      {"turbo(bits=5)", 32},       {"int2(group=row)", 4},
      {"int3(group=row)", 8},     {"int4(group=row)", 16},     {"int2(group=row,sym)", 3},
      {"int3(group=row,sym)", 7}, {"int4(group=row,sym)", 15}, {"int8", 255}};
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
  // channel's groups run over rows: 64 values a channel.
  for (const auto& [text, count] : std::initializer_list<std::pair<std::string_view, std::size_t>>{
           {"channel(bits=2,group=64)", 4}, {"channel(bits=4,group=64)", 16}}) {
    Rows rows(kBlockRows, 32);
    for (int r = 0; r < kBlockRows; ++r) std::fill_n(rows.row(r), 32, static_cast<float>(r));
    const Rows decoded = Store(MakeChainOrDie(text, 32, Side::kKey), rows).Decode(kBlockRows);
    std::set<float> distinct;
    for (int r = 0; r < kBlockRows; ++r) {
      distinct.insert(decoded.row(r)[7]);
      ASSERT_LE(decoded.row(std::max(0, r - 1))[7], decoded.row(r)[7]) << text;
    }
    EXPECT_EQ(distinct.size(), count) << text;
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
  for (const auto text : {"f16", "bf16", "fp8", "int8", "int4", "int4(sym)", "int3", "int2(sym)",
                          "q8_0", "q4_0", "channel", "turbo(bits=4)"}) {
    const auto chain = MakeChainOrDie(text, 64, Side::kValue);
    for (const float sign : {1.0F, -1.0F}) {
      Rows rows(64, 64);
      for (float& x : rows.values()) x = sign;
      const Stored stored = Store(chain, rows);
      std::vector<float> weights(kBlockRows, 1.0F / 64);
      std::vector<float> out(64);
      chain->codec().Accumulate(chain->CodecStats(stored.stats.data()), weights.data(), 1,
                                stored.blocks[0].ref(), 64, out.data(), {});
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

// Rows as long as f16 cannot hold are refused or stored, never as Inf.
TEST(Cases, U41_LongKeysAreFiniteOrRefused) {
  for (const float norm : {1e5F, 1e9F}) {
    Rows rows = GaussianRows(64, 128, 57);
    for (float& x : rows.values()) x *= norm / std::sqrt(128.0F);
    for (const std::string& text : EveryCodec(128, Side::kKey)) {
      const auto chain = MakeChainOrDie(text, 128, Side::kKey);
      std::vector<float> stats(static_cast<std::size_t>(chain->stats_floats()) + 1);
      const Status learnt = chain->Learn(rows, stats.data());
      if (!learnt.ok()) {
        EXPECT_NE(learnt.message().find("row 0"), std::string::npos) << learnt.message();
        continue;
      }
      const Rows decoded = Store(chain, rows).Decode(64);
      for (const float x : decoded.values()) ASSERT_TRUE(std::isfinite(x)) << text;
    }
  }
}

// Every codec stores the row, refuses it by its number, or counts what it cut off.
TEST(Cases, U42_ARowOfHugeElementsIsStoredRefusedOrCounted) {
  Rows rows = GaussianRows(3, 128, 63);
  std::fill_n(rows.row(1), 128, 1e30F);
  std::fill_n(rows.row(2), 128, 0.0F);
  int stored = 0;
  for (const std::string& text : EveryCodec(128, Side::kKey)) {
    const auto chain = MakeChainOrDie(text, 128, Side::kKey);
    std::vector<float> stats(static_cast<std::size_t>(chain->stats_floats()) + 1);
    const Status learnt = chain->Learn(rows, stats.data());
    if (!learnt.ok()) {
      EXPECT_NE(learnt.message().find("row 1"), std::string::npos) << learnt.message();
      continue;
    }
    const Rows decoded = Store(chain, rows).Decode(3);
    for (const float x : decoded.values()) ASSERT_TRUE(std::isfinite(x)) << text;
    if (chain->codec().CountSaturated(rows.row(1), 1) == 0) {
      ++stored;
      // Scales of bf16 round up by 2^-7 at most; a rotated row has the error of its codes too,
      // which a matched norm does not show.
      EXPECT_NEAR(Length(decoded.row(1), 128) / 1.1314e31, 1.0, 0x1p-7 + 1e-4) << text;
    }
    if (chain->codec().group_rows() > 1) continue;  // neighbours share its scales
    for (int j = 0; j < 128; ++j) ASSERT_EQ(decoded.row(2)[j], 0.0F) << text;
    EXPECT_LT(std::fabs(Length(decoded.row(0), 128) / Length(rows.row(0), 128) - 1.0), 0.5) << text;
  }
  EXPECT_GE(stored, 5);
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

// Keys with one channel 50 times as large as the others, and queries; deviation of their logits
// when keys are stored.
struct OutlierChannel {
  Rows keys = GaussianRows(512, 128, 64);
  Rows queries = GaussianRows(32, 128, 65);

  OutlierChannel() {
    for (int r = 0; r < 512; ++r) keys.row(r)[17] *= 50.0F;
  }
  double LogitError(std::string_view chain) const {
    const Rows decoded = Store(MakeChainOrDie(chain, 128, Side::kKey), keys).Decode(512);
    double sum = 0;
    for (int q = 0; q < 32; ++q) {
      for (int r = 0; r < 512; ++r) {
        const double error =
            Dot(queries.row(q), decoded.row(r), 128) - Dot(queries.row(q), keys.row(r), 128);
        sum += error * error / 128;  // logits are scaled by 1 / sqrt(dim)
      }
    }
    return std::sqrt(sum / (32 * 512));
  }
};

// The report's figures, on another draw of rows. Its 8-bit groups are of 64 dims, q8_0's of 32.
TEST(Cases, U40_KeysLoseTheirLogitsBelowEightBits) {
  const OutlierChannel rows;
  EXPECT_NEAR(rows.LogitError("int3(group=64)"), 1.33, 0.133);
  EXPECT_NEAR(rows.LogitError("int4(group=64)"), 0.82, 0.082);
  EXPECT_LT(rows.LogitError("q8_0"), 2 * 0.041);
}

// Plain 4-bit groups of 64 lose such rows, rotated ones do not.
TEST(Cases, U43_HadamardRescuesKeysWithAnOutlierChannel) {
  const OutlierChannel rows;
  const double rotated = rows.LogitError("hadamard+int4(group=64)");
  EXPECT_GE(rows.LogitError("int4(group=64)"), 3 * rotated);
  EXPECT_NEAR(rotated, 0.23, 0.023);  // the report's, on another draw
  // The rotation itself costs nothing: f32 products before and after it.
  const auto chain = MakeChainOrDie("hadamard+f16", 128, Side::kKey);
  Rows some(64, 128);
  std::copy_n(rows.keys.row(0), some.values().size(), some.row(0));
  const Rows turned_keys = TransformedRows(*chain, some);
  Rows few(kHeadTile, 128);
  std::copy_n(rows.queries.row(0), few.values().size(), few.row(0));
  const Rows turned_queries = TransformedQueries(*chain, few);
  for (int q = 0; q < kHeadTile; ++q) {
    for (int r = 0; r < 64; ++r) {
      const double size = Length(few.row(q), 128) * Length(some.row(r), 128);
      EXPECT_NEAR(Dot(turned_queries.row(q), turned_keys.row(r), 128) / size,
                  Dot(few.row(q), some.row(r), 128) / size, 1e-5);
    }
  }
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
    // f16 rounds by 2^-12 of an element of at most 4 deviations, likewise, and the weights too.
    const double f16_bound = 5 * 4 * (4 * 2.5 * 0x1p-12) + 10 * 0x1p-12;
    const bool f16 = chain->codec().Canonical() == "f16";
    for (const float x : out) EXPECT_NEAR(x, 10.0F, f16 ? f16_bound : 5 * deviation) << text;
  }
}

TEST(Cases, U46_RelativeErrorDoesNotDependOnTheScale) {
  const Rows rows = GaussianRows(256, 128, 66);
  for (const std::string_view text :
       {"int8", "int4", "int4(sym)", "int3", "int2", "q8_0", "q4_0", "channel", "channel(bits=4)",
        "turbo(bits=3)", "turbo(bits=4)"}) {
    const auto error_at = [&](float factor) {
      Rows scaled = rows;
      for (float& x : scaled.values()) x *= factor;
      return NormalizedError(scaled,
                             Store(MakeChainOrDie(text, 128, Side::kKey), scaled).Decode(256));
    };
    const double at_one = error_at(1.0F);
    // Scales round differently by at most 2^-7 (bf16 up): the error's square by 2^-6. q8_0's f16
    // scale of 2e-5 is subnormal, off by up to 2^-25 / 2e-5 = 1.5e-3, uniformly: for elements of
    // deviation 1 that adds 1.5e-3^2 / 3 to its square, (2.5 / 127)^2 / 12 = 3.2e-5.
    const double bound = text == "q8_0" ? 0x1p-5 : 0x1p-6;
    EXPECT_NEAR(error_at(1e-3F) / at_one, 1.0, bound) << text;
    EXPECT_NEAR(error_at(1e3F) / at_one, 1.0, bound) << text;
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
