// Sizes, errors, and the properties every codec has: bytes do not depend on how rows arrive, on
// the target, or on where the row lies.
#include "kvsieve/codec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::Block;
using quant_test::GaussianRows;
using quant_test::MakeChainError;
using quant_test::MakeChainOrDie;
using quant_test::NormalizedError;
using quant_test::Rows;
using quant_test::Stored;

constexpr std::string_view kAllCodecs[] = {"f16",
                                           "int8",
                                           "int4",
                                           "int4(sym)",
                                           "int4(group=row)",
                                           "int4(group=row,sym)",
                                           "int4(group=8)",
                                           "turbo(bits=1)",
                                           "turbo(bits=2)",
                                           "turbo(bits=3)",
                                           "turbo(bits=4)",
                                           "turbo(bits=5)"};

TEST(CodecSize, RowBytesAtDim128AreThoseOfTheSpec) {
  struct Expected {
    std::string_view chain;
    std::int64_t codes, scales;
  };
  const Expected table[] = {{"f16", 256, 0},          {"int8", 128, 2},
                            {"int4", 64, 16},         {"int4(group=row)", 64, 4},
                            {"int4(sym)", 64, 8},     {"int4(group=row,sym)", 64, 2},
                            {"turbo(bits=1)", 16, 2}, {"turbo(bits=2)", 32, 2},
                            {"turbo(bits=3)", 48, 2}, {"turbo(bits=4)", 64, 2},
                            {"turbo(bits=5)", 80, 2}};
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (const auto& [text, codes, scales] : table) {
      const RowBytes bytes = MakeChainOrDie(text, 128, side)->codec().row_bytes();
      EXPECT_EQ(bytes.codes, codes) << text;
      EXPECT_EQ(bytes.scales, scales) << text;
    }
  }
}

TEST(CodecSize, BlocksHoldTheirRowsInWholeCacheLines) {
  for (const auto text : kAllCodecs) {
    for (const int dim : {16, 64, 80, 128, 256}) {
      const auto chain = MakeChainOrDie(text, dim, Side::kValue);
      const RowBytes row = chain->codec().row_bytes();
      for (const int capacity : {16, 32, 48, 64}) {
        const auto bytes = static_cast<std::int64_t>(chain->codec().BlockBytes(capacity));
        EXPECT_EQ(bytes % 64, 0);
        EXPECT_GE(bytes, capacity * (row.codes + row.scales)) << text;
        EXPECT_LT(bytes, capacity * (row.codes + row.scales) + 2 * 64) << text;
      }
    }
  }
}

// Gaussian rows, dim 128. int8: step s = 2 max / 254, error s^2 / 12, E max^2 of 128 normals is
// 7.0; int4 in groups: looser ceilings that a wrong scale, zero point or nibble breaks at once.
TEST(CodecError, GaussianRowsStayWithinTheFormat) {
  const std::pair<std::string_view, double> ceilings[] = {
      {"f16", 1e-7}, {"int8", 5e-5}, {"int4", 7e-3}, {"int4(sym)", 1.1e-2}, {"turbo", 9.5e-3}};
  const Rows rows = GaussianRows(1024, 128, 1);
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (const auto& [text, ceiling] : ceilings) {
      const Stored stored = quant_test::Store(MakeChainOrDie(text, 128, side), rows);
      EXPECT_LT(NormalizedError(rows, stored.Decode(rows.rows())), ceiling) << text;
    }
  }
}

}  // namespace
}  // namespace kvsieve
