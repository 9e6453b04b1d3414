// Sizes, values, and the properties every codec has: bytes do not depend on how rows arrive, on
// the target, or on where a row lies.
#include "kvsieve/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "codec_variants.h"
#include "format_oracle.h"
#include "kvsieve/str_cat.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::Block;
using quant_test::EveryCodec;
using quant_test::GaussianRows;
using quant_test::MakeChainOrDie;
using quant_test::OnEveryTarget;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

constexpr Side kSides[] = {Side::kKey, Side::kValue};

std::vector<float> RowOf(const Rows& rows, std::int64_t r) {
  return {rows.row(r), rows.row(r) + rows.dim()};
}

TEST(CodecSize, RowBytesAtDim128AreThoseOfTheSpec) {
  struct Expected {
    std::string_view chain;
    std::int64_t codes, scales;
  };
  const Expected table[] = {{"f16", 256, 0},
                            {"int8", 128, 2},
                            {"bf16", 256, 0},
                            {"fp8", 128, 0},
                            {"int4", 64, 16},
                            {"int4(group=row)", 64, 4},
                            {"int4(sym)", 64, 8},
                            {"int3", 48, 16},
                            {"int2", 32, 16},
                            {"int3(group=row)", 48, 4},
                            {"int2(group=row,sym)", 32, 2},
                            {"int4(group=row,sym)", 64, 2},
                            {"turbo(bits=1)", 16, 2},
                            {"turbo(bits=2)", 32, 2},
                            {"turbo(bits=3)", 48, 2},
                            {"turbo(bits=4)", 64, 2},
                            {"turbo(bits=5)", 80, 2},
                            {"q8_0", 128, 8},
                            {"q4_0", 64, 8}};
  for (const Side side : kSides) {
    for (const auto& [text, codes, scales] : table) {
      const RowBytes bytes = MakeChainOrDie(text, 128, side)->codec().row_bytes();
      EXPECT_EQ(bytes.codes, codes) << text;
      EXPECT_EQ(bytes.scales, scales) << text;
    }
  }
}

// Values of few bits share bytes across rows; a row's codes are counted in whole bytes.
TEST(CodecSize, BlocksHoldWhatTheirRowsCountForAtAnyDim) {
  for (const Side side : kSides) {
    for (int dim = 1; dim < 140; ++dim) {
      for (const std::string& text : EveryCodec(dim, side)) {
        const auto chain = MakeChainOrDie(text, dim, side);
        const RowBytes row = chain->codec().row_bytes();
        for (const int capacity : {16, 32, 48, 64}) {
          if (capacity % chain->codec().group_rows() != 0) continue;
          ASSERT_GE(static_cast<std::int64_t>(chain->codec().BlockBytes(capacity)),
                    capacity * (row.codes + row.scales))
              << text << " at dim " << dim << ", " << capacity << " rows";
        }
      }
    }
  }
}

TEST(CodecSize, BlocksAreTheirRowsRoundedUpToCacheLines) {
  for (const Side side : kSides) {
    for (const int dim : {16, 64, 80, 128, 256}) {
      for (const std::string& text : EveryCodec(dim)) {
        const auto chain = MakeChainOrDie(text, dim, side);
        const RowBytes row = chain->codec().row_bytes();
        for (const int capacity : {16, 32, 48, 64}) {
          if (capacity % chain->codec().group_rows() != 0) continue;
          const auto bytes = static_cast<std::int64_t>(chain->codec().BlockBytes(capacity));
          EXPECT_EQ(bytes % 64, 0);
          EXPECT_GE(bytes, capacity * (row.codes + row.scales)) << text;
          // One rounding after the codes, one at the end. Single bits are stored for 32 dims of
          // keys or 32 rows of values at a time, so up to 16 of these are room.
          bool single_bits = false;
          for (const char* odd : {"bits=1", "bits=3", "bits=5", "int3"}) {
            single_bits = single_bits || text.find(odd) != std::string::npos;
          }
          std::int64_t room = 0;
          if (single_bits && side == Side::kKey) room = row.codes * (dim % 32) / dim * capacity;
          if (single_bits && side == Side::kValue) room = row.codes * (capacity % 32);
          EXPECT_LT(bytes, capacity * (row.codes + row.scales) + room + 2 * 64) << text;
        }
      }
    }
  }
}

// 70 rows of very different lengths.
Rows SpreadRows(int dim) {
  Rows rows = GaussianRows(70, dim, 5);
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const auto factor = static_cast<float>(std::ldexp(1.0, static_cast<int>(r) % 24 - 14));
    for (int j = 0; j < dim; ++j) rows.row(r)[j] *= factor;
  }
  return rows;
}

// Every value equals the one that the format defines: the oracle's double arithmetic rounds where
// the format says so, so nothing is left to tolerate.
TEST(CodecValues, EqualThePlainOracle) {
  for (const Side side : kSides) {
    for (const int dim : {1, 33, 64, 80, 96, 128, 192, 256}) {
      const Rows rows = SpreadRows(dim);
      const Rows f16 = Store(MakeChainOrDie("f16", dim, side), rows).Decode(70);
      const Rows bf16 = Store(MakeChainOrDie("bf16", dim, side), rows).Decode(70);
      const Rows fp8 = Store(MakeChainOrDie("fp8", dim, side), rows).Decode(70);
      const Rows int8 = Store(MakeChainOrDie("int8", dim, side), rows).Decode(70);
      for (std::int64_t r = 0; r < rows.rows(); ++r) {
        const auto row = RowOf(rows, r);
        const auto expect_int8 = format_oracle::Int8(row);
        for (int j = 0; j < dim; ++j) {
          ASSERT_EQ(f16.row(r)[j], format_oracle::F16Nearest(row[j])) << dim << ' ' << r;
          ASSERT_EQ(bf16.row(r)[j], format_oracle::BF16Nearest(row[j])) << dim << ' ' << r;
          ASSERT_EQ(fp8.row(r)[j], format_oracle::Fp8Nearest(row[j])) << dim << ' ' << r;
          ASSERT_EQ(int8.row(r)[j], expect_int8[j]) << dim << ' ' << r << ' ' << j;
        }
      }
    }
  }
}

TEST(CodecValues, GroupsEqualThePlainOracle) {
  for (const Side side : kSides) {
    for (const int dim : {1, 33, 64, 80, 96, 128, 192, 256}) {
      const Rows rows = SpreadRows(dim);
      const int group = dim % 32 == 0 ? 32 : dim == 80 ? 16 : dim;
      for (const int bits : {2, 3, 4}) {
        const std::string name = StrCat("int", bits);
        const Rows asym = Store(MakeChainOrDie(name, dim, side), rows).Decode(70);
        const Rows sym =
            Store(MakeChainOrDie(StrCat(name, "(group=row,sym)"), dim, side), rows).Decode(70);
        for (std::int64_t r = 0; r < rows.rows(); ++r) {
          const auto expect_asym = format_oracle::IntAsym(RowOf(rows, r), bits, group);
          const auto expect_sym = format_oracle::IntSym(RowOf(rows, r), bits, dim);
          for (int j = 0; j < dim; ++j) {
            ASSERT_EQ(asym.row(r)[j], expect_asym[j]) << name << ' ' << dim << ' ' << r << ' ' << j;
            ASSERT_EQ(sym.row(r)[j], expect_sym[j]) << name << ' ' << dim << ' ' << r << ' ' << j;
          }
        }
      }
    }
  }
}

TEST(CodecValues, ErrorIsAtMostHalfAStep) {
  const int dim = 96;
  const Rows rows = GaussianRows(64, dim, 6);
  const Rows int8 = Store(MakeChainOrDie("int8", dim, Side::kKey), rows).Decode(64);
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    float largest = 0;
    for (const float x : RowOf(rows, r)) largest = std::fmax(largest, std::fabs(x));
    // The bf16 scale is at most 2^-7 above max / 127.
    const double half_step = largest / 127.0 * (1 + 0x1p-7) / 2;
    for (int j = 0; j < dim; ++j) {
      ASSERT_LE(std::fabs(double{rows.row(r)[j]} - int8.row(r)[j]), half_step * (1 + 1e-6));
    }
  }
}

// Vector code multiplies by 1 / scale and corrects the product instead of dividing. Quotients next
// to halves would tell, for every mantissa that a bf16 scale can have; below 2^-90 it does divide.
TEST(CodecValues, CodesAreThoseOfAnExactDivision) {
  constexpr int kLimit = 127;
  for (const float unit : {0x1p-9F, 0x1p-95F, 0x1p-131F}) {
    for (int mantissa = 128; mantissa < 256; ++mantissa) {
      const float scale = static_cast<float>(mantissa) * unit;
      Rows rows(5, 128);
      for (int r = 0; r < 5; ++r) {
        rows.row(r)[kLimit] = static_cast<float>(kLimit) * scale;  // so this is the scale
        for (int j = 0; j < kLimit; ++j) {
          float x = (static_cast<float>(j) + 0.5F) * scale;
          for (int step = 2; step < r; ++step) x = std::nextafter(x, 2 * x);
          for (int step = r; step < 2; ++step) x = std::nextafter(x, 0.0F);
          rows.row(r)[j] = j % 3 == 0 ? -x : x;
        }
      }
      const Rows decoded = Store(MakeChainOrDie("int8", 128, Side::kKey), rows).Decode(5);
      for (std::size_t i = 0; i < rows.values().size(); ++i) {
        const float code = std::nearbyint(rows.values()[i] / scale);  // half to even
        ASSERT_EQ(decoded.values()[i], code * scale) << mantissa << ' ' << unit << ' ' << i;
      }
    }
  }
}

TEST(CodecValues, BytesDoNotDependOnHowManyRowsComeAtOnce) {
  for (const Side side : kSides) {
    for (const int dim : {33, 80, 128}) {
      for (const std::string& text : EveryCodec(dim)) {
        const auto chain = MakeChainOrDie(text, dim, side);
        Rows rows = GaussianRows(64, dim, 7);
        std::vector<float> stats(chain->stats_floats() + 1);
        ASSERT_TRUE(chain->Learn(rows, stats.data()).ok());
        Rows copy = rows;
        Block together(chain->codec(), 64);
        ASSERT_TRUE(chain->Encode(stats.data(), copy.row(0), 64, together.ref(), 0).ok());
        Block one_by_one(chain->codec(), 64);
        const int group = chain->codec().group_rows();  // 1, or rows that only come together
        for (int r = 64 - group; r >= 0; r -= group) {  // and in another order
          ASSERT_TRUE(chain->Encode(stats.data(), rows.row(r), group, one_by_one.ref(), r).ok());
        }
        EXPECT_EQ(std::memcmp(together.bytes(), one_by_one.bytes(), together.size()), 0)
            << text << " dim " << dim;
      }
    }
  }
}

TEST(CodecValues, BytesAndDecodedRowsAreTheSameOnEveryTarget) {
  for (const Side side : kSides) {
    for (const int dim : {33, 72, 80, 96, 128, 256}) {
      for (const std::string_view transform : {"", "center+", "hadamard(seed=3)+"}) {
        for (const std::string& text : EveryCodec(dim)) {
          if (transform.starts_with("hadamard") && text.starts_with("turbo")) continue;
          const std::string chain_text = std::string(transform) + text;
          const Rows rows = GaussianRows(100, dim, 8);
          const Stored first = Store(MakeChainOrDie(chain_text, dim, side), rows);
          const Rows decoded = first.Decode(100);
          OnEveryTarget([&] {
            const Stored again = Store(MakeChainOrDie(chain_text, dim, side), rows);
            EXPECT_EQ(again.stats, first.stats) << chain_text;
            for (std::size_t b = 0; b < first.blocks.size(); ++b) {
              ASSERT_EQ(std::memcmp(first.blocks[b].bytes(), again.blocks[b].bytes(),
                                    first.blocks[b].size()),
                        0)
                  << chain_text << " dim " << dim;
            }
            EXPECT_EQ(again.Decode(100).values(), decoded.values()) << chain_text;
          });
        }
      }
    }
  }
}

// Rows that tell how large they are, and count what is read of them.
class BoundedRows final : public RowSource {
 public:
  BoundedRows(const Rows& rows, float bound) : rows_(rows), bound_(bound) {}
  std::int64_t rows() const override { return rows_.rows(); }
  int dim() const override { return rows_.dim(); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    rows_read_ += count;
    rows_.ReadRows(first, count, out);
  }
  float LargestMagnitude() const override { return bound_; }
  std::int64_t rows_read() const { return rows_read_; }

 private:
  const Rows& rows_;
  float bound_;
  mutable std::int64_t rows_read_ = 0;
};

TEST(Learn, ReadsNoRowsThatAreKnownToFit) {
  const Rows rows = GaussianRows(70, 64, 31);
  std::vector<std::string> chains = EveryCodec(64);
  chains.insert(chains.end(), {"hadamard+int8", "hadamard+f16", "hadamard+q8_0"});
  for (const std::string& text : chains) {
    const auto chain = MakeChainOrDie(text, 64, Side::kKey);
    const BoundedRows known(rows, 8.0F);  // of 4480 normal numbers the largest is about 4
    const BoundedRows unknown(rows, std::numeric_limits<float>::infinity());
    std::vector<float> stats(chain->stats_floats() + 1);
    std::vector<float> stats_read(stats.size());
    ASSERT_TRUE(chain->Learn(known, stats.data()).ok());
    ASSERT_TRUE(chain->Learn(unknown, stats_read.data()).ok());
    EXPECT_EQ(known.rows_read(), 0) << text;
    EXPECT_EQ(unknown.rows_read(), 70) << text;
    EXPECT_EQ(stats, stats_read) << text;
  }
  // A transform that learns reads them; the codec behind it does not again.
  const BoundedRows known(rows, 8.0F);
  const auto chain = MakeChainOrDie("center+int8", 64, Side::kKey);
  std::vector<float> stats(chain->stats_floats());
  ASSERT_TRUE(chain->Learn(known, stats.data()).ok());
  EXPECT_EQ(known.rows_read(), 70);
}

// FNV-1a of a block, from x86-64 with g++ 12: another compiler or machine must write these bytes.
TEST(CodecValues, BytesAreGolden) {
  const std::pair<std::string_view, std::uint64_t> golden[] = {
      {"f16", 11743833536820012598U},
      {"int8", 16233101097827730010U},
      {"int4", 10558750533593095627U},
      {"int4(sym)", 15776899186890658741U},
      {"center+turbo(bits=3)", 12889747774878988500U},
      {"turbo", 15698370923689236545U}};
  // Rows from integers alone: the standard's distributions differ between libraries.
  Rows rows(64, 128);
  std::uint32_t state = 12345;
  for (float& x : rows.values()) {
    state = state * 1664525U + 1013904223U;
    x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-29F;
  }
  for (const auto& [text, expected] : golden) {
    const Stored stored = Store(MakeChainOrDie(text, 128, Side::kKey), rows);
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (std::size_t i = 0; i < stored.blocks[0].size(); ++i) {
      hash = (hash ^ stored.blocks[0].bytes()[i]) * 0x100000001b3U;
    }
    EXPECT_EQ(hash, expected) << text;
  }
}

TEST(MoveRow, CarriesCodesAndScalesBitByBit) {
  for (const Side side : kSides) {
    for (const int dim : {33, 80, 128}) {
      for (const std::string& text : EveryCodec(dim)) {
        const Rows rows = GaussianRows(64, dim, 9);
        const Stored stored = Store(MakeChainOrDie(text, dim, side), rows);
        const Codec& codec = stored.chain->codec();
        if (codec.group_rows() > 1) continue;  // its rows are not what they would be alone
        // Every third row to a smaller block, in reverse, twice so that leftovers would show.
        Block target(codec, 32);
        for (int pass = 0; pass < 2; ++pass) {
          for (int r = 0; r < 21; ++r) {
            codec.MoveRow(stored.blocks[0].ref(), 3 * r + pass, target.ref(), 20 - r);
          }
        }
        Rows survivors(21, dim);
        for (int r = 0; r < 21; ++r) {
          std::memcpy(survivors.row(20 - r), rows.row(3 * r + 1), sizeof(float) * dim);
        }
        Block direct(codec, 32);
        ASSERT_TRUE(
            stored.chain->Encode(stored.stats.data(), survivors.row(0), 21, direct.ref(), 0).ok());
        EXPECT_EQ(std::memcmp(direct.bytes(), target.bytes(), direct.size()), 0)
            << text << " dim " << dim;
      }
    }
  }
}

// -- fp8 ----------------------------------------------------------------------------------------

// A row that holds every finite code's value, and every value half way between two: those go to
// the even code.
TEST(Fp8, EveryCodeDecodesToItselfAndHalvesGoToTheEvenCode) {
  Rows row(1, 253);
  std::vector<float> expected;
  float* x = row.row(0);
  for (int code = 0; code < 127; ++code) {
    const int exponent = std::max(code >> 3, 1);
    const int mantissa = code >> 3 == 0 ? code & 7 : 8 + (code & 7);
    *x++ = std::ldexp(static_cast<float>(mantissa), exponent - 10);
    expected.push_back(x[-1]);
  }
  for (int code = 0; code < 126; ++code) {
    *x++ = (expected[code] + expected[code + 1]) / 2;
    expected.push_back(expected[code % 2 == 0 ? code : code + 1]);
  }
  for (const float sign : {1.0F, -1.0F}) {
    Rows signed_row = row;
    for (float& value : signed_row.values()) value *= sign;
    const Rows decoded = Store(MakeChainOrDie("fp8", 253, Side::kValue), signed_row).Decode(1);
    for (int j = 0; j < 253; ++j) EXPECT_EQ(decoded.row(0)[j], sign * expected[j]) << j;
  }
}

TEST(Fp8, ValuesBeyond448SaturateAndAreCounted) {
  const auto chain = MakeChainOrDie("fp8", 64, Side::kKey);
  Rows rows = GaussianRows(3, 64, 16);
  rows.row(0)[3] = 448.0F;
  rows.row(1)[5] = 449.0F;
  rows.row(2)[7] = -1e30F;
  EXPECT_EQ(chain->codec().CountSaturated(rows.row(0), 3), 2);
  const Rows decoded = Store(chain, rows).Decode(3);
  EXPECT_EQ(decoded.row(0)[3], 448.0F);
  EXPECT_EQ(decoded.row(1)[5], 448.0F);
  EXPECT_EQ(decoded.row(2)[7], -448.0F);
}

}  // namespace
}  // namespace kvsieve
