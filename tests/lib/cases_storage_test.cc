// Cases from the field that concern how rows are stored, seen through a whole cache: faults of
// other systems, restated.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lib/decode_append.h"
#include "lib/prefill_plan.h"
#include "tests/lib/cache_fixture.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve {
namespace {

using cache_test::Attended;
using cache_test::GatherHead;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustAttend;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;

Cache Finished(std::string_view spec, const Prompt& prompt) {
  Cache cache = MustCreate(spec, {prompt.layer});
  cache_test::MustAppend(cache, 0, prompt);
  const Status finished = cache.FinishPrefill();
  EXPECT_TRUE(finished.ok()) << finished.message();
  return cache;
}

// -- U42 ------------------------------------------------------------------------------------------

// One NaN is refused where it comes in, by layer, head and row, or set to zero and counted; either
// way its neighbours are what they would be without it.
TEST(Cases, U42_ANanIsRefusedOrCountedAndItsNeighboursAreClean) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  const Prompt clean = MakePrompt(layer, 70, 1);
  Prompt prompt = clean;
  constexpr std::int64_t kAt = (70 + 33) * 64 + 9;  // head 1, row 33, element 9
  prompt.keys[kAt] = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& codec : quant_test::EveryCodec(64)) {
    SCOPED_TRACE(codec);
    Cache strict = MustCreate("none | kv=" + codec, {layer});
    const std::string before = cache_test::StateOf(strict);
    const Status refused = cache_test::AppendRows(strict, 0, Phase::kPrefill, prompt, 0, 70);
    ASSERT_EQ(refused.error().code, ErrorCode::kNonFinite);
    EXPECT_NE(refused.message().find("head 1"), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find("row 33"), std::string::npos) << refused.message();
    EXPECT_EQ(cache_test::StateOf(strict), before);

    Prompt zeroed = clean;
    zeroed.keys[kAt] = 0.0F;
    const Cache counted = Finished("none | kv=" + codec + " | nonfinite=zero", prompt);
    const Cache expected = Finished("none | kv=" + codec, zeroed);
    EXPECT_NE(counted.ReportLayer(0).note.find("1 NaN or Inf set to 0"), std::string::npos);
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(GatherHead(counted, 0, head).keys, GatherHead(expected, 0, head).keys);
      EXPECT_EQ(GatherHead(counted, 0, head).values, GatherHead(expected, 0, head).values);
    }
  }
}

// -- U44 ------------------------------------------------------------------------------------------

// A rotation is asked for by side and by layer; where it is not, there is none.
TEST(Cases, U44_RotationIsChosenPerLayerAndPerSide) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  Prompt prompt = MakePrompt(layer, 70, 2);
  std::fill(prompt.values.begin(), prompt.values.end(), 2.5F);
  Cache cache = MustCreate(
      "none | k=int8, v=hadamard+int8 | layers(1..1)={k=hadamard+int8, v=int8}, "
      "layers(2..2)={kv=f16}",
      {layer, layer, layer});
  for (int i = 0; i < 3; ++i) cache_test::MustAppend(cache, i, prompt);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Cache plain = Finished("none | kv=int8", prompt);
  const auto rotated = [&](int i, Side side) {
    const oracle::HeadRows rows = GatherHead(cache, i, 0);
    const oracle::HeadRows without = GatherHead(plain, 0, 0);
    return side == Side::kKey ? rows.keys != without.keys : rows.values != without.values;
  };
  EXPECT_FALSE(rotated(0, Side::kKey));
  EXPECT_TRUE(rotated(0, Side::kValue));
  EXPECT_TRUE(rotated(1, Side::kKey));
  EXPECT_FALSE(rotated(1, Side::kValue));
  for (int i = 0; i < 3; ++i) {
    const LayerReport report = cache.ReportLayer(i);
    EXPECT_EQ(report.requested.find("hadamard") != std::string::npos, i < 2) << report.requested;
    const std::vector<float> queries = cache_test::UniformRows(2 * 64, 3);
    // A row of 2.5, rotated, has a largest element of at most 4 deviations of 2.5: steps of
    // 10 / 127, uniform errors, five deviations. All rows are alike, so weights do not matter.
    const double bound = 5 * (4 * 2.5 / 127) / std::sqrt(12.0);
    for (const float x : MustAttend(cache, i, queries, Positions(70, 1)).out) {
      EXPECT_NEAR(x, 2.5F, i == 2 ? 2.5 * 0x1p-11 : bound) << i;
    }
  }
}

// What center took off values is added back once per unit of weight: over stored rows alone, not
// over exact ones beside them.
TEST(Cases, U44_CentredValuesBesideExactOnesComeOutWhole) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Prompt prompt = MakePrompt(layer, 200, 4);
  for (float& v : prompt.values) v += 5.0F;  // a mean that matters
  const std::vector<TokenPos> positions = {199, 120, 3};
  const std::vector<float> queries = cache_test::UniformRows(4 * 3 * 64, 5);
  for (const char* spec :
       {"none | k=f16, v=center+f16 | exact_sinks=4, tail=50",
        "none | k=center+f16, v=center+hadamard+int8 | exact_sinks=0, tail=0",
        "none | k=int8, v=center+channel_scale+int8 | exact_sinks=7, tail=100"}) {
    SCOPED_TRACE(spec);
    const Cache cache = Finished(spec, prompt);
    const std::vector<oracle::HeadRows> held = cache_test::GatherLayer(cache, 0);
    const oracle::Attention exact = oracle::Attend(layer, held, queries, positions);
    cache_test::OnEveryTarget([&] {
      cache_test::ExpectWithinKernelBound(layer, held, queries,
                                          MustAttend(cache, 0, queries, positions), exact);
    });
  }
}

// -- U52 ------------------------------------------------------------------------------------------

// Recall that faded with length: a key that wins by a margin must go on winning. Row h of the
// values is the unit vector h for the planted row of query head h, so that output h is its weight.
struct PlantedKeys {
  static constexpr int kHeads = 16;
  static constexpr int kDim = 128;
  LayerSpec layer = MakeLayer(kHeads, 1, kDim, kDim);
  Prompt prompt;
  std::vector<float> queries;

  explicit PlantedKeys(std::int64_t rows)
      : prompt(MakePrompt(layer, rows, 6)), queries(cache_test::UniformRows(kHeads * kDim, 7)) {
    constexpr double kMargin = 6.0;
    std::fill(prompt.values.begin(), prompt.values.end(), 0.0F);
    for (int h = 0; h < kHeads; ++h) {
      const std::int64_t row = (rows / 3 + std::int64_t{h} * rows / 40);  // over half of the rows
      const float* q = queries.data() + h * kDim;
      double square = 0;
      for (int d = 0; d < kDim; ++d) square += double{q[d]} * q[d];
      // The largest of n logits of deviation 1 is about sqrt(2 ln n).
      const double logit = kMargin + std::sqrt(2 * std::log(static_cast<double>(rows)));
      const double length = logit / (layer.scale * square);
      for (int d = 0; d < kDim; ++d) {
        prompt.keys[row * kDim + d] += static_cast<float>(length * q[d]);
      }
      prompt.values[row * kDim + h] = 1.0F;
    }
  }

  // log(p / (1 - p)) of the planted row of each head, from its weight p.
  static std::array<double, kHeads> LogOdds(const auto& out) {
    std::array<double, kHeads> odds;
    for (int h = 0; h < kHeads; ++h) {
      const double p = out[static_cast<std::size_t>(h * kDim + h)];
      odds[h] = std::log(p / (1 - p));
    }
    return odds;
  }
};

// Deviation of the logits of decoded keys from those of the keys before.
double LogitError(const PlantedKeys& planted, const std::vector<float>& decoded) {
  double sum = 0;
  for (int h = 0; h < PlantedKeys::kHeads; ++h) {
    for (std::size_t at = 0; at < decoded.size(); at += PlantedKeys::kDim) {
      double error = 0;
      for (int d = 0; d < PlantedKeys::kDim; ++d) {
        error += planted.queries[h * PlantedKeys::kDim + d] *
                 (double{decoded[at + d]} - planted.prompt.keys[at + d]);
      }
      sum += std::pow(error * planted.layer.scale, 2);
    }
  }
  return std::sqrt(sum /
                   (PlantedKeys::kHeads * static_cast<double>(decoded.size()) / PlantedKeys::kDim));
}

TEST(Cases, U52_ThePlantedKeyKeepsItsMarginAtAnyLength) {
  for (const char* keys : {"int8", "q8_0", "int4", "hadamard+int4", "q4_0", "turbo4", "turbo3",
                           "center+turbo3", "channel(bits=4)"}) {
    double first_error = 0;
    for (const std::int64_t rows : {256, 512, 1024, 2048, 4096}) {
      SCOPED_TRACE(StrCat(keys, ", ", rows, " rows"));
      const PlantedKeys planted(rows);
      Cache cache = MustCreate(StrCat("none | k=", keys, ", v=f16"), {planted.layer});
      // Half as prompt, half while decoding.
      ASSERT_TRUE(
          cache_test::AppendRows(cache, 0, Phase::kPrefill, planted.prompt, 0, rows / 2).ok());
      ASSERT_TRUE(cache.FinishPrefill().ok());
      for (std::int64_t first = rows / 2; first < rows; first += 128) {
        ASSERT_TRUE(
            cache_test::AppendRows(cache, 0, Phase::kDecode, planted.prompt, first, 128).ok());
      }
      const std::vector<TokenPos> position = {static_cast<TokenPos>(rows)};
      const auto exact = PlantedKeys::LogOdds(
          oracle::Attend(planted.layer, planted.prompt.Heads(), planted.queries, position).out);
      const auto found = PlantedKeys::LogOdds(MustAttend(cache, 0, planted.queries, position).out);
      double loss = 0;
      for (int h = 0; h < PlantedKeys::kHeads; ++h) loss += (exact[h] - found[h]) / 16;
      const double error = LogitError(planted, GatherHead(cache, 0, 0).keys);
      if (first_error == 0) first_error = error;
      // The error of a row's logit does not know how many rows there are.
      EXPECT_NEAR(error / first_error, 1.0, 0.15);
      // Noise of deviation s on each logit adds s^2 / 2 to log(sum of exp) over many rows. The
      // planted rows' own errors, at most twice as large for rows twice as long and another 0.03 by
      // queries of a byte, remain with their mean over 16 heads: four deviations. f16 weights.
      const double bound = error * error / 2 + 4 * (2 * error + 0.03) / 4 + 1e-3;
      EXPECT_LT(std::fabs(loss), bound) << "margin loss " << loss << ", logit error " << error;
      RecordProperty(StrCat(keys, " ", rows), std::to_string(loss));
    }
  }
}

// -- U63 ------------------------------------------------------------------------------------------

// Counts the rows that go through another codec.
class CountingCodec final : public Codec {
 public:
  explicit CountingCodec(const Codec& inner) : inner_(inner) {}
  std::int64_t encoded_rows() const { return encoded_rows_; }
  std::int64_t learnt() const { return learnt_; }

  std::string Canonical() const override { return inner_.Canonical(); }
  int dim() const override { return inner_.dim(); }
  Side side() const override { return inner_.side(); }
  KernelPath path() const override { return inner_.path(); }
  RowBytes row_bytes() const override { return inner_.row_bytes(); }
  std::size_t BlockBytes(int capacity_rows) const override {
    return inner_.BlockBytes(capacity_rows);
  }
  Status Learn(const RowSource& rows, float* stats) const override {
    ++learnt_;
    return inner_.Learn(rows, stats);
  }
  Status Encode(const float* stats, const float* rows, int count, BlockRef block,
                int first_row) const override {
    encoded_rows_ += count;
    return inner_.Encode(stats, rows, count, block, first_row);
  }
  void Decode(const float* stats, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    inner_.Decode(stats, block, first_row, count, rows);
  }
  void MoveRow(ConstBlockRef from, int from_row, BlockRef to, int to_row) const override {
    inner_.MoveRow(from, from_row, to, to_row);
  }
  std::size_t QueryBytes() const override { return inner_.QueryBytes(); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    inner_.PrepareQueries(q, heads, prepared);
  }
  void Score(const float* stats, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    inner_.Score(stats, prepared, heads, block, rows, logits, ahead);
  }
  void Accumulate(const float* stats, const float* weights, int heads, ConstBlockRef block,
                  int rows, float* acc, Prefetch ahead) const override {
    inner_.Accumulate(stats, weights, heads, block, rows, acc, ahead);
  }

 private:
  const Codec& inner_;
  mutable std::atomic<std::int64_t> encoded_rows_{0};
  mutable std::atomic<std::int64_t> learnt_{0};
};

// A cache that was built once per query head, eight writers to one slice: each row of a KV head is
// encoded once, whoever shares it, by any number of workers.
TEST(Cases, U63_EachRowIsEncodedOncePerKvHead) {
  constexpr int kKvHeads = 4;
  constexpr std::int64_t kRows = 300;
  const auto pipeline = cache_test::MustParse("none | kv=int8");
  for (const int query_heads : {4, 32}) {
    for (const int workers : {1, 4}) {
      SCOPED_TRACE(StrCat(query_heads, " query heads, ", workers, " workers"));
      LayerState layer;
      layer.spec = MakeLayer(query_heads, kKvHeads, 64, 64);
      layer.shape.key_dim = layer.shape.value_dim = 64;
      const Result<LayerStore> inner = BuildStore(pipeline->main_store(), layer.spec);
      ASSERT_TRUE(inner.ok());
      const auto keys = std::make_shared<CountingCodec>(inner->key->codec());
      const auto values = std::make_shared<CountingCodec>(inner->value->codec());
      using Transforms = std::vector<std::shared_ptr<const Transform>>;
      layer.stores.push_back({std::make_shared<Chain>(Transforms{}, keys),
                              std::make_shared<Chain>(Transforms{}, values)});
      const Prompt prompt = MakePrompt(layer.spec, kRows, 8);
      std::int64_t zeroed = 0;
      ASSERT_TRUE(layer.staging
                      .Append(DefaultAllocator(), layer.shape, prompt.KeyView(0, kRows),
                              prompt.ValueView(0, kRows), prompt.positions, NonFinitePolicy::kError,
                              &zeroed)
                      .ok());
      layer.seen.Append(prompt.positions);
      std::vector<LayerState> layers;
      layers.push_back(std::move(layer));
      cache_test::Threads threads(workers);
      PrefillPlan plan(*pipeline, layers, DefaultAllocator(), threads);
      ASSERT_TRUE(plan.Decide(0).ok());
      ASSERT_TRUE(plan.Reserve().ok());
      plan.Commit();
      for (const auto& codec : {keys, values}) {
        EXPECT_EQ(codec->encoded_rows(), kRows * kKvHeads);
        EXPECT_EQ(codec->learnt(), kKvHeads);
      }
      ASSERT_EQ(std::ssize(layers[0].heads), kKvHeads);
      for (const HeadStore& head : layers[0].heads) EXPECT_EQ(head.rows(), kRows);

      const Prompt more = MakePrompt(layers[0].spec, 5, 9, kRows);
      DecodeAppend append(layers[0], DefaultAllocator(), 0, 0);
      ASSERT_TRUE(append
                      .Prepare(more.KeyView(0, 5), more.ValueView(0, 5), more.positions,
                               NonFinitePolicy::kError)
                      .ok());
      append.Commit();
      EXPECT_EQ(keys->encoded_rows(), (kRows + 5) * kKvHeads);
      EXPECT_EQ(values->encoded_rows(), (kRows + 5) * kKvHeads);
    }
  }
}

// -- U66 ------------------------------------------------------------------------------------------

// Any two codecs make a pair: the report shows the path of each side, and attention is right.
TEST(Cases, U66_EveryPairOfCodecsAttendsAndShowsItsPath) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 96);
  const Prompt prompt = MakePrompt(layer, 70, 10);
  const std::vector<float> queries = cache_test::UniformRows(4 * 64, 11);
  const std::vector<std::string> keys = quant_test::EveryCodec(64, Side::kKey);
  const std::vector<std::string> values = quant_test::EveryCodec(96, Side::kValue);
  ASSERT_GE(keys.size() * values.size(), 400U);
  for (const std::string& key : keys) {
    for (const std::string& value : values) {
      const std::string spec = StrCat("none | k=", key, ", v=", value);
      SCOPED_TRACE(spec);
      Cache cache = Finished(spec, prompt);
      cache_test::MustAppend(cache, 0, MakePrompt(layer, 3, 12, 70), 1, Phase::kDecode);
      const LayerReport report = cache.ReportLayer(0);
      const Result<LayerStore> store = BuildStore(cache_test::MustParse(spec)->main_store(), layer);
      ASSERT_TRUE(store.ok());
      EXPECT_EQ(report.key_path, KernelPathName(store->key->codec().path()));
      EXPECT_EQ(report.value_path, KernelPathName(store->value->codec().path()));
      EXPECT_TRUE(report.key_path == "fused" || report.key_path == "portable") << report.key_path;
      const std::vector<oracle::HeadRows> held = cache_test::GatherLayer(cache, 0);
      // turbo4's 8-bit codebook is off by 1/254 of the largest level, below what one byte a dim of
      // the query may be.
      const bool byte = key.starts_with("turbo") ||
                        cache_test::RoundingOf(spec, layer) == cache_test::QueryRounding::kByte;
      const auto rounding =
          byte ? cache_test::QueryRounding::kByte : cache_test::QueryRounding::kSixteenBits;
      const oracle::Attention exact = oracle::Attend(layer, held, queries, Positions(73, 1));
      cache_test::OnEveryTarget([&] {
        const Attended attended = MustAttend(cache, 0, queries, Positions(73, 1));
        cache_test::ExpectWithinKernelBound(layer, held, queries, attended, exact, rounding);
      });
    }
  }
}

// What cannot be stored is refused when the cache is built, by codec and dimension, on either side.
TEST(Cases, U66_APairThatCannotBeStoredIsRefusedWhenItIsBuilt) {
  int refused = 0;
  for (const int dim : {33, 80, 20}) {
    for (const StageInfo& key : CodecInfos()) {
      for (const StageInfo& value : CodecInfos()) {
        const std::string spec = StrCat("none | k=", key.name, ", v=", value.name);
        const Result<Pipeline> pipeline = Pipeline::Parse(spec);
        ASSERT_TRUE(pipeline.ok()) << pipeline.message();
        const Result<Cache> cache = Cache::Create(std::make_shared<const Pipeline>(*pipeline),
                                                  {MakeLayer(2, 1, dim, dim)}, {});
        if (cache.ok()) continue;
        ++refused;
        EXPECT_NE(cache.message().find(StrCat(dim)), std::string::npos) << cache.message();
        EXPECT_NE(cache.message().find("layer 0"), std::string::npos) << cache.message();
      }
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace kvsieve
