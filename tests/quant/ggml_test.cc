// q8_0 and q4_0 against what ggml itself makes of the same rows (golden/ggml.txt).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "format_oracle.h"
#include "kvsieve/codec.h"
#include "quant/code_rows.h"
#include "quant/ggml_block.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::Block;
using quant_test::GaussianRows;
using quant_test::MakeChainError;
using quant_test::MakeChainOrDie;
using quant_test::OnEveryTarget;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

constexpr Side kSides[] = {Side::kKey, Side::kValue};
using Bytes = std::vector<std::uint8_t>;

Bytes FromHex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

struct GoldenRow {
  std::string name;
  std::vector<float> row;
  Bytes q8_0, q4_0;
};

std::vector<GoldenRow> ReadGolden() {
  std::ifstream file(KVS_GGML_GOLDEN);
  std::vector<GoldenRow> golden;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    GoldenRow golden_row;
    std::string row, q8_0, q4_0;
    std::getline(fields, golden_row.name, '\t');
    fields >> row >> q8_0 >> q4_0;
    const Bytes values = FromHex(row);
    golden_row.row.resize(values.size() / sizeof(float));
    std::memcpy(golden_row.row.data(), values.data(), values.size());
    golden_row.q8_0 = FromHex(q8_0);
    golden_row.q4_0 = FromHex(q4_0);
    golden.push_back(std::move(golden_row));
  }
  return golden;
}

// One stored row as ggml lays it out: per block the scale, then 32 codes (block_q8_0), or 16 bytes
// whose low halves are elements 0..15 and whose high halves are 16..31 (block_q4_0).
Bytes GgmlBytes(const quant::BlockLayout& layout, const Block& block, int row_in_block) {
  quant::CodeRow codes;
  quant::LoadCodes(layout, block.ref(), row_in_block, codes);
  Bytes bytes;
  for (int g = 0; g < layout.groups; ++g) {
    const std::uint16_t scale =
        quant::ScalePlane(layout, block.ref())[g * block.ref().capacity_rows + row_in_block];
    bytes.push_back(static_cast<std::uint8_t>(scale));
    bytes.push_back(static_cast<std::uint8_t>(scale >> 8));
    std::uint8_t* q = codes.codes + g * quant::kGgmlBlock;
    if (layout.bits == 4) quant::FlipQ4_0(layout.side, scale, q);
    for (int i = 0; i < (layout.bits == 8 ? 32 : 16); ++i) {
      bytes.push_back(layout.bits == 8 ? q[i] : static_cast<std::uint8_t>(q[i] | q[i + 16] << 4));
    }
  }
  return bytes;
}

TEST(Ggml, BytesEqualThoseOfItsReferenceQuantizers) {
  const std::vector<GoldenRow> golden = ReadGolden();
  ASSERT_GE(golden.size(), 20U);
  OnEveryTarget([&] {
    for (const GoldenRow& expected : golden) {
      const auto dim = static_cast<int>(expected.row.size());
      Rows rows(5, dim);  // not the first row of its block
      std::memcpy(rows.row(3), expected.row.data(), expected.row.size() * sizeof(float));
      for (const Side side : kSides) {
        const Stored q8 = Store(MakeChainOrDie("q8_0", dim, side), rows);
        EXPECT_EQ(GgmlBytes(quant::Q8_0Layout(dim, side), q8.blocks[0], 3), expected.q8_0)
            << expected.name;
        const Stored q4 = Store(MakeChainOrDie("q4_0", dim, side), rows);
        EXPECT_EQ(GgmlBytes(quant::Q4_0Layout(dim, side), q4.blocks[0], 3), expected.q4_0)
            << expected.name;
      }
    }
  });
}

TEST(Ggml, DecodedRowsEqualThePlainOracle) {
  for (const int dim : {32, 64, 96, 128, 256}) {
    Rows rows = GaussianRows(70, dim, 70);
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      const auto factor = static_cast<float>(std::ldexp(1.0, static_cast<int>(r) % 40 - 24));
      for (int j = 0; j < dim; ++j) rows.row(r)[j] *= factor;
    }
    for (const Side side : kSides) {
      const Rows q8 = Store(MakeChainOrDie("q8_0", dim, side), rows).Decode(70);
      const Rows q4 = Store(MakeChainOrDie("q4_0", dim, side), rows).Decode(70);
      for (std::int64_t r = 0; r < rows.rows(); ++r) {
        const std::vector<float> row(rows.row(r), rows.row(r) + dim);
        const std::vector<double> expect_q8 = format_oracle::Q8_0(row);
        const std::vector<double> expect_q4 = format_oracle::Q4_0(row);
        for (int j = 0; j < dim; ++j) {
          ASSERT_EQ(q8.row(r)[j], expect_q8[j]) << dim << ' ' << r << ' ' << j;
          ASSERT_EQ(q4.row(r)[j], expect_q4[j]) << dim << ' ' << r << ' ' << j;
        }
      }
    }
  }
}

// ggml writes an infinite scale for such a block, and NaN when it is read.
TEST(Ggml, ARowWhoseScalePassesF16IsRefused) {
  for (const auto& [text, divisor] : {std::pair{"q8_0", 127.0F}, std::pair{"q4_0", 8.0F}}) {
    const auto chain = MakeChainOrDie(text, 64, Side::kKey);
    for (const float sign : {1.0F, -1.0F}) {
      Rows rows = GaussianRows(4, 64, 71);
      rows.row(2)[40] = sign * divisor * 65504.0F;
      Rows decoded = Store(chain, rows).Decode(4);
      EXPECT_EQ(decoded.row(2)[40], rows.row(2)[40]) << text;
      rows.row(2)[40] = sign * divisor * 65520.0F;
      std::vector<float> stats(1);
      const Status learnt = chain->Learn(rows, stats.data());
      ASSERT_FALSE(learnt.ok()) << text;
      for (const auto part : {"row 2", "element 40", text, "at most", "int8"}) {
        EXPECT_NE(learnt.message().find(part), std::string::npos) << learnt.message();
      }
      Block block(chain->codec(), 16);
      const Block zeros(chain->codec(), 16);
      EXPECT_FALSE(chain->Encode(stats.data(), rows.row(0), 4, block.ref(), 0).ok());
      EXPECT_EQ(std::memcmp(block.bytes(), zeros.bytes(), block.size()), 0) << text;
    }
  }
}

// 1 / scale is Inf there, and what ggml makes of it is undefined.
TEST(Ggml, RowsBelowEveryScaleDecodeToZeros) {
  for (const auto text : {"q8_0", "q4_0"}) {
    Rows rows = GaussianRows(8, 32, 72);
    for (float& x : rows.values()) x *= 1e-39F;
    const Rows decoded = Store(MakeChainOrDie(text, 32, Side::kValue), rows).Decode(8);
    for (const float x : decoded.values()) ASSERT_EQ(x, 0.0F) << text;
  }
}

TEST(Ggml, ADimThatIsNotWholeBlocksNamesACodecThatFits) {
  for (const auto& [text, other] : {std::pair{"q8_0", "int8"}, std::pair{"center+q4_0", "int4"}}) {
    const std::string message = MakeChainError(text, 80);
    const std::string column = std::string(text) == "q8_0" ? "column 1:" : "column 8:";
    for (const std::string_view part : {std::string_view(column), std::string_view("blocks of 32"),
                                        std::string_view("dim 80"), std::string_view(other)}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    EXPECT_EQ(MakeChainError(other, 80), "");
  }
}

}  // namespace
}  // namespace kvsieve
