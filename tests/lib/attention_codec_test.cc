// Attention over encoded rows against the oracle over the same rows decoded: every kind of store,
// every place where segments meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve {
namespace {

using cache_test::Attended;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAttend;
using cache_test::Positions;
using cache_test::Prompt;

constexpr int kKeyDim = 64;
constexpr int kValueDim = 80;

// Every codec, and some chains, whose kernels work on the codes as they decode. turbo's
// kernels of up to 4 bits round its codebook to 8 bits and are judged by FivePercentRule.
std::vector<std::string> Stores() {
  std::vector<std::string> stores = {"k=int8, v=int4", "k=center+int8, v=hadamard+int4",
                                     "k=hadamard+int8, v=f16", "k=center+turbo5, v=int8"};
  const std::vector<std::string> values = quant_test::EveryCodec(kValueDim, Side::kValue);
  for (const std::string& codec : quant_test::EveryCodec(kKeyDim)) {
    if (codec.starts_with("turbo") && codec != "turbo(bits=5)") continue;
    const bool fits = std::ranges::find(values, codec) != values.end();
    stores.push_back(StrCat("k=", codec, ", v=", fits ? codec : "hadamard+f16"));
  }
  return stores;
}

struct SegmentSizes {
  int sinks, tail;
};
constexpr SegmentSizes kSegments[] = {{0, 0}, {4, 0}, {0, 1}, {4, 64}, {1, 200}};

class StoredAttention : public ::testing::TestWithParam<std::string> {};

// Groups of rows leave a tail that is at least as long as they are.
std::string Spec(const std::string& store, SegmentSizes segments) {
  if (store.find("channel") != store.npos) segments.tail += 64;
  return "none | " + store + " | exact_sinks=" + std::to_string(segments.sinks) +
         ", tail=" + std::to_string(segments.tail);
}

void ExpectOracleOverDecodedRows(const Cache& cache, const std::vector<TokenPos>& positions,
                                 cache_test::QueryRounding rounding) {
  const LayerSpec& layer = cache.layer(0);
  const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
  const std::vector<float> queries = cache_test::UniformRows(
      std::int64_t{layer.query_heads} * std::ssize(positions) * layer.key_dim, 5);
  const oracle::Attention exact = oracle::Attend(layer, heads, queries, positions);
  cache_test::OnEveryTarget([&] {
    const Attended attended = MustAttend(cache, 0, queries, positions);
    cache_test::ExpectWithinKernelBound(layer, heads, queries, attended, exact, rounding);
  });
}

// Rows end in the middle of a panel, at a block's end, behind it; decode rows follow.
TEST_P(StoredAttention, EqualsTheOracleOverDecodedRows) {
  const LayerSpec layer = MakeLayer(6, 2, kKeyDim, kValueDim);
  for (const SegmentSizes segments : kSegments) {
    for (const int rows : {3, 64, 133, 300}) {
      const std::string spec = Spec(GetParam(), segments);
      SCOPED_TRACE(spec + ", " + std::to_string(rows) + " rows");
      Cache cache = cache_test::MustCreate(spec, {layer});
      cache_test::MustAppend(cache, 0, MakePrompt(layer, rows, 1), 50);
      ASSERT_TRUE(cache.FinishPrefill().ok());
      const cache_test::QueryRounding rounding = cache_test::RoundingOf(spec, layer);
      ExpectOracleOverDecodedRows(cache, {rows, rows / 2, 0}, rounding);
      cache_test::MustAppend(cache, 0, MakePrompt(layer, 70, 2, rows), 33, Phase::kDecode);
      ExpectOracleOverDecodedRows(cache, {rows + 69, rows + 10, rows - 1}, rounding);
      if (HasFatalFailure()) return;
    }
  }
}

// Two hundred appends of one row: attention is right at each step, not on the average, and does
// not drift.
TEST_P(StoredAttention, StaysRightAtEachDecodeStep) {
  const LayerSpec layer = MakeLayer(2, 1, kKeyDim, kValueDim);
  Cache cache = cache_test::MustCreate(Spec(GetParam(), {0, 5}), {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 50, 3));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Prompt more = MakePrompt(layer, 200, 4, 50);
  const cache_test::QueryRounding rounding =
      cache_test::RoundingOf(Spec(GetParam(), {0, 5}), layer);
  for (std::int64_t step = 0; step < more.rows(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, more, step, 1).ok());
    const std::vector<oracle::HeadRows> heads = cache_test::GatherLayer(cache, 0);
    const std::vector<TokenPos> position = {more.positions[step]};
    const std::vector<float> queries =
        cache_test::UniformRows(2 * 64, 100 + static_cast<std::uint64_t>(step));
    const oracle::Attention exact = oracle::Attend(layer, heads, queries, position);
    cache_test::ExpectWithinKernelBound(layer, heads, queries,
                                        MustAttend(cache, 0, queries, position), exact, rounding);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, StoredAttention, ::testing::ValuesIn(Stores()));

double MeanRelativeError(const Attended& attended, const oracle::Attention& exact, int dim) {
  double sum = 0.0;
  const std::vector<cache_test::OutputError> errors =
      cache_test::OutputErrors(attended, exact, dim);
  for (const cache_test::OutputError& error : errors) sum += error.relative();
  return sum / static_cast<double>(errors.size());
}

// A kernel may round queries, weights and codebooks only so far that the error against the rows
// before encoding rises by at most 5 % over exact arithmetic on the same codes.
TEST(Attention, KernelsKeepTheFivePercentRule) {
  const LayerSpec layer = MakeLayer(8, 2, 128, 128);
  const Prompt prompt = MakePrompt(layer, 1000, 6);
  const std::vector<TokenPos> positions = Positions(1000, 8);
  const std::vector<float> queries = cache_test::UniformRows(8 * 8 * 128, 7);
  const oracle::Attention original = oracle::Attend(layer, prompt.Heads(), queries, positions);
  std::vector<std::string> stores = {"k=center+turbo4, v=turbo4", "k=int8, v=turbo4"};
  for (const std::string& codec : quant_test::EveryCodec(128))
    stores.push_back(StrCat("kv=", codec));
  for (const std::string& store : stores) {
    SCOPED_TRACE(store);
    Cache cache = cache_test::MustCreate("none | " + store, {layer});
    cache_test::MustAppend(cache, 0, prompt);
    ASSERT_TRUE(cache.FinishPrefill().ok());
    const oracle::Attention decoded =
        oracle::Attend(layer, cache_test::GatherLayer(cache, 0), queries, positions);
    const Attended exact{{decoded.out.begin(), decoded.out.end()}, {}};
    const double codes_alone = MeanRelativeError(exact, original, layer.value_dim);
    cache_test::OnEveryTarget([&] {
      const Attended attended = MustAttend(cache, 0, queries, positions);
      EXPECT_LE(MeanRelativeError(attended, original, layer.value_dim), 1.05 * codes_alone);
    });
  }
}

}  // namespace
}  // namespace kvsieve
