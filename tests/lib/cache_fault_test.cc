// Wrong calls: one line that says what to do, and nothing has changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve {
namespace {

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::MustCreate;
using cache_test::Positions;
using cache_test::Prompt;
using cache_test::StateOf;
using cache_test::WithReserve;

// The call fails with a message that holds every part, on one line, and leaves the cache alone.
void ExpectRefused(const Cache& cache, const std::function<Status()>& call, ErrorCode code,
                   const std::vector<std::string>& parts) {
  const std::string before = StateOf(cache);
  const Status status = call();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, code) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "'" << status.message() << "' does not name '" << part << "'";
  }
  EXPECT_EQ(StateOf(cache), before);
}

// A cache with some rows, before and after the end of its prompt.
struct Fixture {
  LayerSpec layer;
  Prompt prompt;
  Cache cache;
  explicit Fixture(std::string_view spec = "none | kv=int8 | tail=4")
      : layer(MakeLayer(4, 2, 64, 48)),
        prompt(MakePrompt(layer, 100, 1)),
        cache(MustCreate(spec, {NamedLayer()})) {
    EXPECT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 60).ok());
  }
  LayerSpec NamedLayer() const {
    LayerSpec named = layer;
    named.layer = 17;
    return named;
  }
  Status Append(Phase phase, const HeadsView& keys, const HeadsView& values,
                const std::vector<TokenPos>& positions) {
    return cache.Append(0, phase, keys, values, positions);
  }
};

TEST(CacheErrors, AppendNamesWhatDoesNotFit) {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    Fixture f;
    if (phase == Phase::kDecode) {
      ASSERT_TRUE(f.cache.FinishPrefill().ok());
    }
    const HeadsView keys = f.prompt.KeyView(60, 5);
    const HeadsView values = f.prompt.ValueView(60, 5);
    const std::vector<TokenPos> positions = Positions(60, 5);
    const auto refused = [&](const HeadsView& k, const HeadsView& v, const std::vector<TokenPos>& p,
                             const std::vector<std::string>& parts) {
      ExpectRefused(
          f.cache, [&] { return f.Append(phase, k, v, p); }, ErrorCode::kInvalidArgument, parts);
    };
    HeadsView bad = keys;
    bad.heads = 3;
    refused(bad, values, positions, {"layer 17", "keys", "[3, 5, 64]", "[2, 5, 64]"});
    bad = values;
    bad.dim = 64;
    refused(keys, bad, positions, {"layer 17", "values", "[2, 5, 64]", "[2, 5, 48]"});
    bad = keys;
    bad.rows = 4;
    refused(bad, values, positions, {"keys", "[2, 4, 64]", "[2, 5, 64]"});
    bad = keys;
    bad.data = nullptr;
    refused(bad, values, positions, {"keys", "null"});
    refused(keys, values, {60, 61, 61, 62, 63}, {"layer 17", "position 61", "row 2", "62"});
    refused(keys, values, {59, 60, 61, 62, 63}, {"position 59", "row 0", "60"});
    refused(keys, values, {60, 61, 62, 63, 2147483647}, {"position 2147483647", "row 4"});
    bad = keys;
    bad.type = ElementType::kBF16;
    refused(bad, values, positions, {"layer 17", "bf16/f32", "f32/f32"});
    bad = keys;
    bad.row_stride = 63;
    refused(bad, values, positions, {"keys", "row_stride 63", "64"});
    bad = values;
    bad.head_stride = -48;
    refused(keys, bad, positions, {"values", "head_stride -48", "48"});
    for (const int index : {-1, 1}) {
      ExpectRefused(f.cache, [&] { return f.cache.Append(index, phase, keys, values, positions); },
                    ErrorCode::kInvalidArgument, {std::to_string(index), "[0, 1)"});
    }
  }
}

TEST(CacheErrors, NonFiniteRowsAreNamed) {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Fixture f;
      if (phase == Phase::kDecode) {
        ASSERT_TRUE(f.cache.FinishPrefill().ok());
      }
      const auto refused = [&](const std::vector<std::string>& parts) {
        ExpectRefused(
            f.cache, [&] { return cache_test::AppendRows(f.cache, 0, phase, f.prompt, 60, 20); },
            ErrorCode::kNonFinite, parts);
      };
      float& key = f.prompt.keys[(100 + 63) * 64 + 63];  // head 1, row 3 of the append
      const float good = std::exchange(key, bad);
      refused({"layer 17", "keys", "head 1", "row 3, element 63: NaN", "nonfinite=zero"});
      key = good;
      f.prompt.values[(0 + 79) * 48] = bad;
      refused({"layer 17", "values", "head 0", "row 19"});
      f.prompt.values[(0 + 79) * 48] = 0.0F;
      EXPECT_TRUE(cache_test::AppendRows(f.cache, 0, phase, f.prompt, 60, 20).ok());
    }
  }
}

TEST(CacheErrors, NonFiniteZeroCountsWhatItClears) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    SCOPED_TRACE(ElementName(type));
    const LayerSpec layer = MakeLayer(2, 1, 32, 32);
    Prompt prompt = MakePrompt(layer, 20, 2);
    prompt.keys[5] = NAN;
    prompt.keys[6] = INFINITY;
    prompt.values[15 * 32 + 1] = -INFINITY;
    const cache_test::TypedRows keys(prompt.keys, type);
    const cache_test::TypedRows values(prompt.values, type);
    const auto rows = [&](const cache_test::TypedRows& all, std::int64_t first) {
      HeadsView view = all.HeadMajor(1, 20, 32);
      view.data = view.row(0, first);
      view.rows = 10;
      return view;
    };
    Cache cache = MustCreate("none | kv=f16 | tail=20, nonfinite=zero", {layer});
    ASSERT_TRUE(
        cache.Append(0, Phase::kPrefill, rows(keys, 0), rows(values, 0), Positions(0, 10)).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    EXPECT_NE(cache.ReportLayer(0).note.find("2 NaN or Inf"), std::string::npos);
    ASSERT_TRUE(
        cache.Append(0, Phase::kDecode, rows(keys, 10), rows(values, 10), Positions(10, 10)).ok());
    EXPECT_NE(cache.ReportLayer(0).note.find("3 NaN or Inf"), std::string::npos);
    const oracle::HeadRows stored = cache_test::GatherHead(cache, 0, 0);
    EXPECT_EQ(stored.keys[5], 0.0F);
    EXPECT_EQ(stored.keys[6], 0.0F);
    EXPECT_EQ(stored.values[15 * 32 + 1], 0.0F);
    EXPECT_NE(stored.keys[7], 0.0F);
  }
}

// Sums of what rows hold must stay finite, whatever stores them.
TEST(CacheErrors, RowsBeyondTheLimitOfAllStoresAreNamed) {
  for (const char* nonfinite : {"error", "zero"}) {
    const LayerSpec layer = MakeLayer(2, 1, 32, 32);
    Prompt prompt = MakePrompt(layer, 8, 2);
    Cache cache = MustCreate(StrCat("none | kv=bf16 | tail=8, nonfinite=", nonfinite), {layer});
    prompt.keys[3] = 0x1p96F;
    EXPECT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 4).ok());
    prompt.values[5 * 32 + 1] = nonfinite[0] == 'z' ? -INFINITY : 1.0F;
    prompt.values[5 * 32 + 7] = -0x1.01p96F;
    ExpectRefused(
        cache, [&] { return cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 4, 4); },
        ErrorCode::kInvalidArgument, {"layer 0: values, head 0, row 1, element 7: beyond 2^96"});
  }
}

// 0 would say that nothing is visible.
TEST(CacheErrors, ALogitAboveF32IsNoAnswer) {
  Prompt prompt = MakePrompt(MakeLayer(1, 1, 32, 32), 5, 1);
  Cache cache = MustCreate("none | kv=f16 | tail=5", {prompt.layer});
  std::fill_n(prompt.keys.begin() + 2 * 32, 32, 1e28F);
  cache_test::MustAppend(cache, 0, prompt);
  for (const bool finished : {false, true}) {
    if (finished) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
    }
    const std::vector<float> queries(32, 1e20F);
    const cache_test::Attended attended =
        cache_test::MustAttend(cache, 0, queries, Positions(9, 1));
    EXPECT_TRUE(std::isnan(attended.lse[0]));
    for (const float out : attended.out) EXPECT_TRUE(std::isnan(out));
  }
}

// fp8 ends at 448. Rows of the tail are not stored by the codec yet.
TEST(CacheErrors, ValuesThatSaturateAreCountedWhenTheyAreStored) {
  const LayerSpec layer = MakeLayer(4, 2, 32, 32);
  Prompt prompt = MakePrompt(layer, 30, 3);
  for (const int row : {0, 7, 19, 25}) {
    prompt.keys[row * 32 + 1] = 449.0F;             // head 0
    prompt.values[(30 + row) * 32 + 2] = -1000.0F;  // head 1
  }
  Cache cache = MustCreate("none | kv=fp8 | tail=5", {layer});
  const auto noted = [&](std::string_view text) {
    return cache.ReportLayer(0).note.find(text) != std::string::npos;
  };
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 20).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  EXPECT_TRUE(noted("4 values beyond")) << cache.ReportLayer(0).note;  // rows 0 and 7
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 20, 4).ok());
  EXPECT_TRUE(noted("4 values beyond")) << cache.ReportLayer(0).note;
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kDecode, prompt, 24, 6).ok());
  EXPECT_TRUE(noted("6 values beyond")) << cache.ReportLayer(0).note;  // row 19 left the tail
}

TEST(CacheErrors, PhasesOutOfOrder) {
  Fixture f("random(budget=16) | kv=f16");
  const auto append = [&](Phase phase) {
    return cache_test::AppendRows(f.cache, 0, phase, f.prompt, 60, 5);
  };
  ExpectRefused(f.cache, [&] { return append(Phase::kDecode); }, ErrorCode::kState,
                {"layer 17", "decode", "FinishPrefill"});
  ExpectRefused(f.cache, [&] { return append(Phase::kVerify); }, ErrorCode::kState,
                {"layer 17", "verify", "FinishPrefill"});
  ASSERT_TRUE(f.cache.FinishPrefill().ok());
  ExpectRefused(f.cache, [&] { return append(Phase::kPrefill); }, ErrorCode::kState,
                {"layer 17", "prefill", "FinishPrefill"});
  ExpectRefused(f.cache, [&] { return f.cache.FinishPrefill(); }, ErrorCode::kState,
                {"FinishPrefill"});
  const std::vector<float> queries(4 * 64);
  ExpectRefused(f.cache,
                [&] {
                  return f.cache.Observe(0, Positions(60, 1),
                                         HeadsView::HeadMajor(queries.data(), 4, 1, 64));
                },
                ErrorCode::kState, {"layer 17", "observe", "FinishPrefill"});
}

TEST(CacheErrors, ObserveNamesWhatDoesNotFit) {
  Fixture f("snapkv(budget=40,window=8) | kv=f16");
  std::vector<float> queries = cache_test::UniformRows(4 * 10 * 64, 3);
  const HeadsView view = HeadsView::HeadMajor(queries.data(), 4, 10, 64);
  const auto observe = [&](const HeadsView& q, const std::vector<TokenPos>& positions) {
    return [&f, q, positions] { return f.cache.Observe(0, positions, q); };
  };
  HeadsView bad = view;
  bad.heads = 2;
  ExpectRefused(f.cache, observe(bad, Positions(50, 10)), ErrorCode::kInvalidArgument,
                {"layer 17", "queries", "[2, 10, 64]", "[4, 10, 64]"});
  ASSERT_TRUE(observe(view, Positions(40, 10))().ok());
  ExpectRefused(f.cache, observe(view, Positions(45, 10)), ErrorCode::kInvalidArgument,
                {"position 45", "50"});
  queries[3 * 640 + 64 * 9] = NAN;
  ExpectRefused(f.cache, observe(view, Positions(50, 10)), ErrorCode::kNonFinite,
                {"layer 17", "queries", "head 3", "row 9"});
  // The last window positions of the prompt (52..59) were never observed.
  ExpectRefused(f.cache, [&] { return f.cache.FinishPrefill(); }, ErrorCode::kInvalidArgument,
                {"52", "59"});
}

TEST(CacheErrors, AttendAndGatherNameWhatDoesNotFit) {
  Fixture f;
  ASSERT_TRUE(f.cache.FinishPrefill().ok());
  const std::vector<float> queries = cache_test::UniformRows(4 * 64, 4);
  std::vector<float> out(4 * 48);
  AttendScratch scratch;
  const HeadsView view = HeadsView::HeadMajor(queries.data(), 4, 1, 64);
  const std::vector<TokenPos> position = {60};
  const auto attend = [&](int index, const HeadsView& q, const AttendParams& params, float* to) {
    return [&, index, q, params, to] {
      return f.cache.Attend(index, position, q, params, scratch, to, nullptr);
    };
  };
  ExpectRefused(f.cache, attend(0, view, {}, nullptr), ErrorCode::kInvalidArgument,
                {"layer 17", "out", "null"});
  ExpectRefused(f.cache, attend(1, view, {}, out.data()), ErrorCode::kInvalidArgument,
                {"1", "[0, 1)"});
  HeadsView bad = view;
  bad.dim = 32;
  ExpectRefused(f.cache, attend(0, bad, {}, out.data()), ErrorCode::kInvalidArgument,
                {"queries", "[4, 1, 32]", "[4, 1, 64]"});
  AttendParams params;
  params.scale = -1.0F;
  ExpectRefused(f.cache, attend(0, view, params, out.data()), ErrorCode::kInvalidArgument,
                {"scale", "-1"});
  params = {};
  params.softcap = NAN;
  ExpectRefused(f.cache, attend(0, view, params, out.data()), ErrorCode::kInvalidArgument,
                {"softcap", "nan"});
  params = {};
  params.sliding_window = -5;
  ExpectRefused(f.cache, attend(0, view, params, out.data()), ErrorCode::kInvalidArgument,
                {"sliding_window", "-5"});

  std::vector<TokenPos> positions(59);
  ExpectRefused(f.cache, [&] { return f.cache.Gather(0, 0, positions, {}, {}); },
                ErrorCode::kInvalidArgument, {"60"});
  ExpectRefused(f.cache, [&] { return f.cache.Gather(0, 2, {}, {}, {}); },
                ErrorCode::kInvalidArgument, {"head 2", "[0, 2)"});
  ExpectRefused(f.cache, [&] { return f.cache.Gather(3, 0, {}, {}, {}); },
                ErrorCode::kInvalidArgument, {"3", "[0, 1)"});
}

TEST(CacheErrors, CreateNamesTheLayer) {
  const auto error_of = [](std::string_view spec, std::vector<LayerSpec> layers) {
    const Result<Cache> cache = Cache::Create(cache_test::MustParse(spec), std::move(layers), {});
    EXPECT_FALSE(cache.ok());
    return cache.ok() ? std::string() : cache.message();
  };
  const auto expect = [](const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  };
  LayerSpec odd = MakeLayer(4, 2, 100, 100);
  odd.layer = 5;
  expect(error_of("none | kv=int4(group=32)", {MakeLayer(4, 2, 64, 64), odd}),
         {"layer 5", "32", "100"});
  expect(error_of("none | kv=f16", {}), {"no layers"});
  expect(error_of("none | kv=f16 | layers(0..3)={kv=int8}", {odd}), {"3"});
  LayerSpec mla = MakeLayer(4, 1, 64, 32);
  mla.value_is_key_prefix = true;
  expect(error_of("none | k=int8, v=int4", {mla}),
         {"layer 0", "column 18", "v=int4", "value_is_key_prefix", "kv=int8"});
  expect(error_of("none | k=int8", {mla}), {"layer 0", "v=f16", "kv=int8"});
  expect(error_of("none | k8v4", {mla}), {"layer 0", "column 8", "kv=fp8"});
  mla.value_dim = 65;
  expect(error_of("none | kv=f16", {mla}), {"layer 0", "65", "64"});
  EXPECT_FALSE(Cache::Create(nullptr, {odd}, {}).ok());
}

// f32 rows that f16 cannot hold: refused when they are encoded, wherever that is.
TEST(CacheErrors, RowsThatTheCodecCannotHoldAreRefused) {
  Fixture f("none | kv=f16 | tail=4");
  f.prompt.keys[30 * 64 + 1] = 1e6F;
  Cache cache = MustCreate("none | kv=f16 | tail=4", {f.NamedLayer()});
  ASSERT_TRUE(cache_test::AppendRows(cache, 0, Phase::kPrefill, f.prompt, 0, 60).ok());
  ExpectRefused(cache, [&] { return cache.FinishPrefill(); }, ErrorCode::kInvalidArgument,
                {"layer 17", "head 0", "65504"});

  Cache decoding = MustCreate("none | kv=f16 | tail=4", {f.NamedLayer()});
  ASSERT_TRUE(cache_test::AppendRows(decoding, 0, Phase::kPrefill, f.prompt, 0, 30).ok());
  ASSERT_TRUE(decoding.FinishPrefill().ok());
  ASSERT_TRUE(cache_test::AppendRows(decoding, 0, Phase::kDecode, f.prompt, 30, 4).ok());
  const std::string before = StateOf(decoding, WithReserve::kNo);
  const Status leaves_the_tail =
      cache_test::AppendRows(decoding, 0, Phase::kDecode, f.prompt, 34, 3);
  ASSERT_FALSE(leaves_the_tail.ok());
  EXPECT_NE(leaves_the_tail.message().find("layer 17: head 0, position 30"), std::string::npos)
      << leaves_the_tail.message();
  EXPECT_EQ(StateOf(decoding, WithReserve::kNo), before);
}

}  // namespace
}  // namespace kvsieve
