#include "kvsieve/encode_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::Prompt;

std::shared_ptr<const Chain> MakeKeyChain(const std::string& text, int dim) {
  const auto pipeline = cache_test::MustParse("none | k=" + text);
  const Result<LayerStore> store = BuildStore(pipeline->main_store(), MakeLayer(1, 1, dim, dim));
  EXPECT_TRUE(store.ok()) << store.message();
  return store->key;
}

// What EncodeRowsTo wrote, in memory of exactly the right size.
struct Encoded {
  std::vector<float> stats;
  std::vector<std::uint8_t> bytes;
};

Encoded MustEncode(const Chain& chain, const HeadsView& rows) {
  const Result<EncodedRowsSize> size = EncodedSize(chain, rows.rows);
  EXPECT_TRUE(size.ok());
  Encoded encoded{std::vector<float>(static_cast<std::size_t>(size->stats_floats), NAN),
                  std::vector<std::uint8_t>(static_cast<std::size_t>(size->bytes), 0xAB)};
  const Result<std::int64_t> saturated = EncodeRowsTo(chain, rows, encoded.stats, encoded.bytes);
  EXPECT_TRUE(saturated.ok()) << saturated.message();
  return encoded;
}

std::vector<float> MustDecode(const Chain& chain, std::int64_t rows, const Encoded& encoded) {
  std::vector<float> decoded(static_cast<std::size_t>(rows * chain.dim()), NAN);
  const Status status = DecodeRowsFrom(chain, rows, encoded.stats, encoded.bytes, decoded);
  EXPECT_TRUE(status.ok()) << status.message();
  return decoded;
}

// Bit by bit what a cache holds of the same rows, whatever their number.
TEST(EncodeRows, DecodeToWhatACacheHolds) {
  for (const int dim : {64, 80}) {
    std::vector<std::string> chains = quant_test::EveryCodec(dim);
    chains.insert(chains.end(), {"center+int8", "center+hadamard+int4", "center+turbo3"});
    const LayerSpec layer = MakeLayer(1, 1, dim, dim);
    for (const std::string& text : chains) {
      const std::shared_ptr<const Chain> chain = MakeKeyChain(text, dim);
      if (chain->codec().group_rows() > 1) continue;  // a cache keeps its last rows exact
      for (const std::int64_t rows : {0, 1, 16, 17, 63, 64, 65, 150}) {
        SCOPED_TRACE(StrCat(text, " of dim ", dim, ", ", rows, " rows"));
        const Prompt prompt = MakePrompt(layer, rows, 1);
        Cache cache = cache_test::MustCreate("none | k=" + text + " | exact_sinks=0", {layer});
        if (rows > 0) cache_test::MustAppend(cache, 0, prompt);
        ASSERT_TRUE(cache.FinishPrefill().ok());
        const Encoded encoded = MustEncode(*chain, prompt.KeyView(0, rows));
        ASSERT_EQ(MustDecode(*chain, rows, encoded), cache_test::GatherHead(cache, 0, 0).keys);
      }
    }
  }
}

TEST(EncodeRows, GroupsOfRowsComeBack) {
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  const std::shared_ptr<const Chain> chain = MakeKeyChain("channel(bits=4,group=32)", 64);
  for (const std::int64_t rows : {1, 31, 32, 33, 64, 97}) {
    const Prompt prompt = MakePrompt(layer, rows, 2);
    const Encoded encoded = MustEncode(*chain, prompt.KeyView(0, rows));
    const std::vector<float> decoded = MustDecode(*chain, rows, encoded);
    // Elements lie in +-sqrt(3): half of a step of 2 sqrt(3) / 15, and bf16 rounds it up by 2^-7.
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      ASSERT_NEAR(decoded[i], prompt.keys[i], 0.1155 * (1 + 0x1p-7)) << i;
    }
  }
}

// Any element type and stride, memory without alignment, every target: the same bytes.
TEST(EncodeRows, BytesDependOnTheRowsAlone) {
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  const std::shared_ptr<const Chain> chain = MakeKeyChain("center+int4", 64);
  Prompt prompt = MakePrompt(layer, 90, 3);
  prompt.keys = cache_test::RoundedToF16(prompt.keys);
  const Encoded expected = MustEncode(*chain, prompt.KeyView(0, 90));

  std::vector<F16> wide(90 * 100);
  for (std::size_t i = 0; i < prompt.keys.size(); ++i) {
    wide[i / 64 * 100 + i % 64] = ToF16(prompt.keys[i]);
  }
  HeadsView strided = HeadsView::HeadMajor(wide.data(), 1, 90, 64);
  strided.row_stride = 100;
  cache_test::OnEveryTarget([&] {
    std::vector<float> stats(expected.stats.size());
    std::vector<std::uint8_t> memory(expected.bytes.size() + 1);
    const std::span<std::uint8_t> odd = std::span(memory).subspan(1);
    ASSERT_TRUE(EncodeRowsTo(*chain, strided, stats, odd).ok());
    EXPECT_EQ(stats, expected.stats);
    EXPECT_TRUE(std::equal(odd.begin(), odd.end(), expected.bytes.begin()));
    std::vector<float> decoded(90 * 64);
    ASSERT_TRUE(DecodeRowsFrom(*chain, 90, stats, odd, decoded).ok());
    EXPECT_EQ(decoded, MustDecode(*chain, 90, expected));
  });
}

// Nor do bytes of room hold what an earlier block left.
TEST(EncodeRows, ABlockDoesNotDependOnThoseBeforeIt) {
  const std::shared_ptr<const Chain> chain = MakeKeyChain("int8", 64);
  const Prompt prompt = MakePrompt(MakeLayer(1, 1, 64, 64), 65, 6);
  const Encoded all = MustEncode(*chain, prompt.KeyView(0, 65));
  const Encoded last = MustEncode(*chain, prompt.KeyView(64, 1));
  EXPECT_TRUE(std::equal(last.bytes.rbegin(), last.bytes.rend(), all.bytes.rbegin()));
}

TEST(EncodeRows, ElementsBeyondTheRangeOfACodecAreCounted) {
  const std::shared_ptr<const Chain> chain = MakeKeyChain("fp8", 64);
  std::vector<float> rows(70 * 64, 1.0F);
  rows[3] = 449.0F;
  rows[69 * 64] = -1e9F;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(EncodedSize(*chain, 70)->bytes));
  const Result<std::int64_t> saturated =
      EncodeRowsTo(*chain, HeadsView::HeadMajor(rows.data(), 1, 70, 64), {}, bytes);
  ASSERT_TRUE(saturated.ok()) << saturated.message();
  EXPECT_EQ(*saturated, 2);
}

TEST(EncodeRows, SizesAreThoseOfBlocks) {
  const std::shared_ptr<const Chain> chain = MakeKeyChain("center+int8", 128);
  EXPECT_EQ(EncodedSize(*chain, 0)->bytes, 0);
  EXPECT_EQ(EncodedSize(*chain, 1)->bytes, EncodedSize(*chain, 16)->bytes);
  EXPECT_EQ(EncodedSize(*chain, 64)->bytes, 64 * 130);
  EXPECT_EQ(EncodedSize(*chain, 65)->bytes, 64 * 130 + EncodedSize(*chain, 16)->bytes);
  EXPECT_EQ(EncodedSize(*chain, 65)->stats_floats, 128);
  EXPECT_EQ(EncodedSize(*chain, std::int64_t{1} << 30)->bytes, (std::int64_t{1} << 30) * 130);
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 31, std::int64_t{1} << 62}) {
    EXPECT_NE(EncodedSize(*chain, bad).message().find(StrCat(bad)), std::string::npos);
  }
}

// A missing scale that another system took for 1.0, and went on.
TEST(Cases, U47_NullAndShortSpansAreRefusedAndNothingIsWritten) {
  constexpr std::int64_t kRows = 70;
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  const std::shared_ptr<const Chain> chain = MakeKeyChain("center+int8", 64);
  const Prompt prompt = MakePrompt(layer, kRows, 4);
  const HeadsView rows = prompt.KeyView(0, kRows);
  const Encoded good = MustEncode(*chain, rows);

  Encoded out = good;
  std::fill(out.stats.begin(), out.stats.end(), 7.0F);
  std::fill(out.bytes.begin(), out.bytes.end(), 0xAB);
  std::vector<float> decoded(kRows * 64, 7.0F);
  const Encoded out_before = out;
  const std::vector<float> decoded_before = decoded;
  const auto expect_refused = [&](const auto& status, std::string_view name) {
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    EXPECT_EQ(out.stats, out_before.stats);
    EXPECT_EQ(out.bytes, out_before.bytes);
    EXPECT_EQ(decoded, decoded_before);
  };
  const std::span<float> stats(out.stats);
  const std::span<std::uint8_t> bytes(out.bytes);
  const auto one_less = [](auto span) { return span.first(span.size() - 1); };
  const auto null_like = [](auto span) {  // null with a size, as it comes from C
    return decltype(span)(static_cast<decltype(span.data())>(nullptr), span.size());
  };

  expect_refused(EncodeRowsTo(*chain, rows, {}, bytes), "stats: expected 64 elements, got null");
  expect_refused(EncodeRowsTo(*chain, rows, null_like(stats), bytes), "stats");
  expect_refused(EncodeRowsTo(*chain, rows, one_less(stats), bytes), "got 63");
  expect_refused(EncodeRowsTo(*chain, rows, stats, {}), "bytes");
  expect_refused(EncodeRowsTo(*chain, rows, stats, null_like(bytes)), "bytes");
  expect_refused(EncodeRowsTo(*chain, rows, stats, one_less(bytes)), "bytes");
  HeadsView bad_rows = rows;
  bad_rows.data = nullptr;
  expect_refused(EncodeRowsTo(*chain, bad_rows, stats, bytes), "(null)");
  bad_rows = rows;
  bad_rows.dim = 63;
  expect_refused(EncodeRowsTo(*chain, bad_rows, stats, bytes), "expected [1, n, 64]");
  bad_rows = rows;
  bad_rows.row_stride = 63;
  expect_refused(EncodeRowsTo(*chain, bad_rows, stats, bytes), "row_stride 63");
  bad_rows = rows;
  bad_rows.rows = -1;
  expect_refused(EncodeRowsTo(*chain, bad_rows, stats, bytes), "-1 rows");

  const std::span<const float> in_stats(good.stats);
  const std::span<const std::uint8_t> in_bytes(good.bytes);
  const auto decode = [&](std::span<const float> s, std::span<const std::uint8_t> b,
                          std::span<float> r) { return DecodeRowsFrom(*chain, kRows, s, b, r); };
  expect_refused(decode({}, in_bytes, decoded), "stats");
  expect_refused(decode(null_like(in_stats), in_bytes, decoded), "stats");
  expect_refused(decode(one_less(in_stats), in_bytes, decoded), "stats");
  expect_refused(decode(in_stats, {}, decoded), "bytes");
  expect_refused(decode(in_stats, one_less(in_bytes), decoded), "bytes");
  expect_refused(decode(in_stats, in_bytes, {}), "rows");
  expect_refused(decode(in_stats, in_bytes, one_less(std::span(decoded))), "rows");
  std::vector<float> bad_stats = good.stats;
  bad_stats[5] = std::numeric_limits<float>::quiet_NaN();
  expect_refused(decode(bad_stats, in_bytes, decoded), "element 5");
  // Bytes of one codec, read as another: their sizes differ.
  expect_refused(
      DecodeRowsFrom(*MakeKeyChain("center+int4", 64), kRows, in_stats, in_bytes, decoded),
      "bytes");
}

TEST(Cases, U47_ARowThatCannotBeEncodedIsNamedAndNothingIsWritten) {
  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  for (const std::string& text : quant_test::EveryCodec(64)) {
    SCOPED_TRACE(text);
    const std::shared_ptr<const Chain> chain = MakeKeyChain(text, 64);
    Prompt prompt = MakePrompt(layer, 130, 5);
    prompt.keys[101 * 64 + 9] = std::numeric_limits<float>::infinity();
    const EncodedRowsSize size = *EncodedSize(*chain, 130);
    std::vector<float> stats(static_cast<std::size_t>(size.stats_floats), 7.0F);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size.bytes), 0xAB);
    const Result<std::int64_t> encoded = EncodeRowsTo(*chain, prompt.KeyView(0, 130), stats, bytes);
    ASSERT_FALSE(encoded.ok());
    EXPECT_NE(encoded.message().find("row 101"), std::string::npos) << encoded.message();
    EXPECT_TRUE(std::all_of(stats.begin(), stats.end(), [](float x) { return x == 7.0F; }));
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](int b) { return b == 0xAB; }));
  }
}

}  // namespace
}  // namespace kvsieve
