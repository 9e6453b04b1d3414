// The codec that stores groups of rows: values and places against a plain oracle, groups that are
// short or move.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "format_oracle.h"
#include "kvsieve/float16.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::Block;
using quant_test::GaussianRows;
using quant_test::MakeChainError;
using quant_test::MakeChainOrDie;
using quant_test::Rows;
using quant_test::Store;
using quant_test::Stored;

constexpr Side kSides[] = {Side::kKey, Side::kValue};

struct Format {
  int bits, group;
  std::string Text() const {
    return "channel(bits=" + std::to_string(bits) + ",group=" + std::to_string(group) + ")";
  }
};

std::vector<Format> Formats() {
  std::vector<Format> formats;
  for (const int bits : {2, 3, 4}) {
    for (const int group : {16, 32, 64}) formats.push_back({bits, group});
  }
  return formats;
}

double F32(double x) { return static_cast<double>(static_cast<float>(x)); }

// A column of a group: its zero point, scale, and each row's code.
struct Column {
  double zero = 0, scale = 0;
  std::vector<int> codes;

  Column(const Rows& rows, std::int64_t first, std::int64_t end, int channel, int bits) {
    double low = rows.row(first)[channel];
    double high = low;
    for (std::int64_t r = first; r < end; ++r) {
      low = std::min(low, double{rows.row(r)[channel]});
      high = std::max(high, double{rows.row(r)[channel]});
    }
    const int last = (1 << bits) - 1;
    zero = format_oracle::F16Down(low);
    scale = format_oracle::BF16Up(F32(F32(std::max(0.0, high - zero)) / last));
    for (std::int64_t r = first; r < end; ++r) {
      const double steps = F32(F32(rows.row(r)[channel] - zero) / scale);
      codes.push_back(
          scale == 0 ? 0 : static_cast<int>(std::nearbyint(std::clamp(steps, 0.0, double(last)))));
    }
  }
};

// Channels of very different sizes and means, so that a scale in the wrong place shows.
Rows UnevenRows(std::int64_t count, int dim, unsigned seed) {
  Rows rows = GaussianRows(count, dim, seed);
  for (std::int64_t r = 0; r < count; ++r) {
    for (int c = 0; c < dim; ++c) {
      rows.row(r)[c] = std::ldexp(rows.row(r)[c], c % 19 - 12) + static_cast<float>(c % 5);
    }
  }
  return rows;
}

TEST(Channel, ValuesEqualThePlainOracle) {
  for (const Format& format : Formats()) {
    for (const Side side : kSides) {
      for (const int dim : {16, 80, 128}) {
        for (const int count : {64, 37, 1}) {  // whole groups, a short last one
          const Rows rows = UnevenRows(count, dim, 61);
          const Rows decoded = Store(MakeChainOrDie(format.Text(), dim, side), rows).Decode(count);
          for (int first = 0; first < count; first += format.group) {
            const int end = std::min(count, first + format.group);
            for (int c = 0; c < dim; ++c) {
              const Column column(rows, first, end, c, format.bits);
              for (int r = first; r < end; ++r) {
                const double exact = F32(F32(column.codes[r - first] * column.scale) + column.zero);
                ASSERT_EQ(decoded.row(r)[c], exact) << format.Text() << ' ' << r << ' ' << c;
              }
            }
          }
        }
      }
    }
  }
}

// Codes of 16 dims as quant/layout.h has them, 4 bytes a row; then all scales, group by group, then
// all zero points.
TEST(Channel, BytesLieWhereTheFormatSays) {
  constexpr int kDim = 16;
  const Rows rows = UnevenRows(64, kDim, 62);
  const Stored stored = Store(MakeChainOrDie("channel(bits=2,group=32)", kDim, Side::kKey), rows);
  const std::uint8_t* bytes = stored.blocks[0].bytes();
  ASSERT_EQ(stored.blocks[0].size(), 64 * 4 + 2 * 2 * kDim * 2);
  const auto half = [&](int element) {
    return bytes[256 + 2 * element] | bytes[256 + 2 * element + 1] << 8;
  };
  for (int group = 0; group < 2; ++group) {
    for (int c = 0; c < kDim; ++c) {
      const Column column(rows, 32 * group, 32 * group + 32, c, 2);
      EXPECT_EQ(ToFloat(BF16{static_cast<std::uint16_t>(half(group * kDim + c))}), column.scale);
      EXPECT_EQ(ToFloat(F16{static_cast<std::uint16_t>(half((2 + group) * kDim + c))}),
                column.zero);
      for (int r = 0; r < 32; ++r) {
        const int byte = bytes[(32 * group + r) * 4 + c % 4];
        ASSERT_EQ(byte >> 2 * (c / 4) & 3, column.codes[r]) << group << ' ' << c << ' ' << r;
      }
    }
  }
}

TEST(Channel, ARowTakesItsCodesAndItsShareOfTheScales) {
  for (const Format& format : Formats()) {
    for (const int dim : {64, 128}) {
      const auto chain = MakeChainOrDie(format.Text(), dim, Side::kKey);
      const Codec& codec = chain->codec();
      EXPECT_EQ(codec.group_rows(), format.group);
      EXPECT_EQ(codec.row_bytes().codes, dim * format.bits / 8);
      EXPECT_EQ(codec.row_bytes().scales, 4 * dim / format.group);
    }
  }
}

TEST(Channel, AShortGroupIsEncodedFromItsOwnRows) {
  const auto chain = MakeChainOrDie("channel", 64, Side::kKey);
  Rows rows = UnevenRows(45, 64, 63);
  const Rows first = Store(chain, rows).Decode(45);
  for (int c = 0; c < 64; ++c) rows.row(31)[c] = 1e4F;  // the other group's
  const Rows second = Store(chain, rows).Decode(45);
  for (int r = 32; r < 45; ++r) {
    for (int c = 0; c < 64; ++c) EXPECT_EQ(first.row(r)[c], second.row(r)[c]);
  }
}

// Rows that stay move to the front of a group of their own, in a block of another size.
TEST(Channel, MovedRowsDecodeAsBefore) {
  for (const Format& format : Formats()) {
    for (const Side side : kSides) {
      const Rows rows = UnevenRows(64, 80, 64);
      const Stored stored = Store(MakeChainOrDie(format.Text(), 80, side), rows);
      const Rows before = stored.Decode(64);
      const Codec& codec = stored.chain->codec();
      Block target(codec, 64);
      const int last_group = 64 - format.group;
      const int chosen[] = {1, 4, 9, format.group - 1};
      int to = 0;
      for (const int r : chosen) {
        codec.MoveRow(stored.blocks[0].ref(), last_group + r, target.ref(), to++);
      }
      Rows after(4, 80);
      codec.Decode(stored.stats.data(), target.ref(), 0, 4, after.row(0));
      for (int i = 0; i < 4; ++i) {
        for (int c = 0; c < 80; ++c) {
          ASSERT_EQ(after.row(i)[c], before.row(last_group + chosen[i])[c]) << format.Text();
        }
      }
    }
  }
}

TEST(Channel, AConstantChannelKeepsItsValue) {
  Rows rows = GaussianRows(32, 64, 65);
  for (int r = 0; r < 32; ++r) {
    rows.row(r)[5] = 100.0F;  // an f16 number
    rows.row(r)[6] = 0.0F;
    rows.row(r)[7] = -0.0F;
  }
  const Rows decoded = Store(MakeChainOrDie("channel", 64, Side::kKey), rows).Decode(32);
  for (int r = 0; r < 32; ++r) {
    EXPECT_EQ(decoded.row(r)[5], 100.0F);
    EXPECT_EQ(decoded.row(r)[6], 0.0F);
    EXPECT_EQ(decoded.row(r)[7], 0.0F);
  }
}

// The reason for the codec: one channel fifty times as large costs the others nothing.
TEST(Channel, AnOutlierChannelTouchesOnlyItself) {
  const Rows rows = GaussianRows(32, 64, 66);
  Rows spiked = rows;
  for (int r = 0; r < 32; ++r) spiked.row(r)[20] *= 50;
  const auto chain = MakeChainOrDie("channel", 64, Side::kKey);
  const Rows plain = Store(chain, rows).Decode(32);
  const Rows decoded = Store(chain, spiked).Decode(32);
  for (int r = 0; r < 32; ++r) {
    for (int c = 0; c < 64; ++c) {
      if (c == 20) continue;
      EXPECT_EQ(decoded.row(r)[c], plain.row(r)[c]);
    }
  }
}

TEST(Channel, RefusesWhatItCannotStore) {
  EXPECT_EQ(MakeChainError("channel(group=64)", 72, Side::kKey),
            "column 1: channel with group=64 needs a dim that is a multiple of 16, got 72; use "
            "int2(group=row)");
  EXPECT_NE(MakeChainError("channel", 33, Side::kKey).find("multiple of 8"), std::string::npos);
  EXPECT_NE(MakeChainError("channel(bits=5)", 64, Side::kKey).find("bits"), std::string::npos);
  EXPECT_NE(MakeChainError("channel(group=48)", 64, Side::kKey).find("group"), std::string::npos);
}

}  // namespace
}  // namespace kvsieve
