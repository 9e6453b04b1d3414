// A cache that was saved and loaded is the cache that was saved: every call gives the same, bit by
// bit, then and later.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kvsieve/saved_state.h"
#include "tests/lib/state_fixture.h"
#include "tests/quant/codec_variants.h"

namespace kvsieve::state_test {
namespace {

using cache_test::MakeLayer;

// Loads into a cache that holds something else, and into a new one.
void ExpectRoundTrip(const Life& life, Stage stage) {
  SCOPED_TRACE(life.spec + ", stage " + std::to_string(static_cast<int>(stage)));
  Cache cache = life.At(stage);
  const Bytes state = Saved(cache);
  Cache loaded = life.At(Stage::kFinished);
  const Status status = LoadBytes(state, loaded);
  ASSERT_TRUE(status.ok()) << status.message();
  MemorySource source(state);
  Result<Cache> made = Cache::FromState(source, "test", life.options);
  ASSERT_TRUE(made.ok()) << made.message();
  ExpectSame(loaded, cache);
  ExpectSame(*made, cache);
  EXPECT_TRUE(Saved(loaded) == state);
  life.GoOn(cache, stage);
  life.GoOn(loaded, stage);
  life.GoOn(*made, stage);
  ExpectSame(loaded, cache);
  ExpectSame(*made, cache);
}

void ExpectRoundTripAtEveryStage(const Life& life) {
  for (const Stage stage : kStages) {
    ExpectRoundTrip(life, stage);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(State, EveryCodecComesBack) {
  for (const std::string& codec : quant_test::EveryCodec(32)) {
    Life life;
    life.spec = "recency(budget=60%) | kv=" + codec;
    for (const Stage stage : {Stage::kFinished, Stage::kTrimmed}) ExpectRoundTrip(life, stage);
    if (HasFatalFailure()) return;
  }
}

class StateOfPipeline : public ::testing::TestWithParam<const char*> {};

TEST_P(StateOfPipeline, ComesBackAtEveryStage) {
  Life life;
  life.spec = GetParam();
  ExpectRoundTripAtEveryStage(life);
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, StateOfPipeline,
    ::testing::Values(
        "none | kv=f16", "none | kv=int8 | exact_sinks=4 | tail=20",
        // Statistics of every transform.
        "none | k=center+turbo4, v=channel_scale+int4 | exact_sinks=0",
        "snapkv(budget=70,window=16) | k=center+hadamard+int3, v=turbo2",
        // Groups of rows, whole and with gaps.
        "none | kv=channel(bits=2,group=16)", "none | k=channel(bits=4,group=64), v=int8",
        "random(budget=90,select=block:16) | k=channel(bits=3,group=16), v=int4 | "
        "schedule=every(16)",
        // Heads that keep different rows.
        "snapkv(budget=40%,window=16,split=adaptive) | kv=q8_0 | tail=10",
        // Rows that an earlier selection left, and evictions to come.
        "random(budget=90) | kv=int8 | tail=30 | schedule=per_chunk",
        "window_attention(budget=90,window=8) | kv=int4 | tail=3 | schedule=every(4)",
        "recency(budget=90) | kv=q4_0 | schedule=every(7)",
        // Rows of several tiers, which interleave.
        "random(budget=90) | kv=int8 | tail=6 | cold(30)={kv=int4} | cold(20)={kv=turbo2}",
        // ... share what their chains learnt, or hold none and learn nothing,
        "random(budget=90) | kv=center+int8 | tail=6 | cold(30)={k=center+turbo3, v=center+int4}",
        "random(budget=90) | kv=int8 | cold(30)={k=center+int4, v=turbo2} | cold(90)={kv=int2}",
        // ... and move to colder ones.
        "key_norm(budget=90) | kv=int8 | cold(30)={k=center+int4, v=int4} | cold(20)={kv=turbo2} | "
        "schedule=every(4) | demote=yes"));

TEST(State, LayersOfManyShapesComeBack) {
  Life life;
  life.spec =
      "recency(budget=70) | k=center+turbo3, v=int4 | tail=5 | layers(0..0,-1..-1)={kv=f16}";
  life.layers = {MakeLayer(4, 2, 32, 32), MakeLayer(6, 3, 64, 16), MakeLayer(4, 2, 48, 40),
                 MakeLayer(1, 1, 16, 16)};
  life.layers[1].sliding_window = 40;
  life.layers[2].softcap = 30.0F;
  for (int i = 0; i < 4; ++i) life.layers[i].layer = 3 * i;
  ExpectRoundTripAtEveryStage(life);
}

TEST(State, LayersWhoseValuesAreInTheirKeysComeBack) {
  Life life;
  life.layers = {MakeLayer(8, 1, 48, 32)};
  life.layers[0].value_is_key_prefix = true;
  for (const char* spec : {"output_perturbation(budget=70,window=8) | kv=center+int8 | tail=20",
                           "recency(budget=90) | kv=f16 | tail=5 | schedule=per_chunk"}) {
    life.spec = spec;
    ExpectRoundTripAtEveryStage(life);
  }
}

TEST(State, ExactRowsComeBackInTheirType) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    Life life;
    life.spec = "snapkv(budget=70,window=16) | kv=int8 | exact_sinks=4 | tail=20";
    life.type = type;
    ExpectRoundTripAtEveryStage(life);
  }
}

TEST(State, DecodeRowsThatStayExactComeBack) {
  Life life;
  life.spec = "recency(budget=70) | kv=int4";
  life.options.decode_rows = DecodeRows::kExact;
  ExpectRoundTripAtEveryStage(life);
}

TEST(State, NanThatWasClearedAndValuesThatSaturatedAreCountedOn) {
  const LayerSpec layer = MakeLayer(2, 1, 32, 32);
  cache_test::Prompt prompt = cache_test::MakePrompt(layer, 20, 2);
  prompt.keys[5] = NAN;
  prompt.values[7] = 1000.0F;  // fp8 ends at 448
  Cache cache = cache_test::MustCreate("none | kv=fp8, nonfinite=zero", {layer});
  cache_test::MustAppend(cache, 0, prompt);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  Cache loaded = cache_test::MustCreate("none | kv=fp8, nonfinite=zero", {layer});
  ASSERT_TRUE(LoadBytes(Saved(cache), loaded).ok());
  EXPECT_EQ(loaded.ReportLayer(0).note, cache.ReportLayer(0).note);
  EXPECT_NE(loaded.ReportLayer(0).note.find("1 NaN"), std::string::npos);
  EXPECT_NE(loaded.ReportLayer(0).note.find("1 values beyond"), std::string::npos);
}

// Queries may be ahead of their rows, and a trim may leave fewer of them than the ring has room
// for.
TEST(State, QueriesAheadOfRowsAndAfterATrimComeBack) {
  Life life;
  life.spec = "snapkv(budget=70,window=16) | kv=int8";
  for (const TokenPos end : {170, 160}) {
    Cache cache = life.At(Stage::kPrompt);
    const std::vector<float> queries = cache_test::UniformRows(4 * 5 * 32, 3);
    ASSERT_TRUE(cache
                    .Observe(0, cache_test::Positions(170, 5),
                             HeadsView::HeadMajor(queries.data(), 4, 5, 32))
                    .ok());
    if (end < 170) {
      ASSERT_TRUE(cache.TrimToPosition(end).ok());
    }
    Cache loaded = life.Empty();
    ASSERT_TRUE(LoadBytes(Saved(cache), loaded).ok());
    EXPECT_TRUE(Saved(loaded) == Saved(cache));
    for (Cache* c : {&cache, &loaded}) {
      const auto count = 200 - c->next_position();
      const cache_test::Prompt rest =
          cache_test::MakePrompt(life.layers[0], count, 9, c->next_position());
      cache_test::MustAppend(*c, 0, rest);
      const std::vector<float> more = cache_test::UniformRows(4 * 25 * 32, 4);
      ASSERT_TRUE(c->Observe(0, cache_test::Positions(175, 25),
                             HeadsView::HeadMajor(more.data(), 4, 25, 32))
                      .ok());
      ASSERT_TRUE(c->FinishPrefill().ok());
    }
    ExpectSame(loaded, cache);
  }
}

// One cache lives on, the other is saved and loaded after every step.
TEST(State, RandomLivesThatAreSavedAndLoadedStayTheSame) {
  for (const char* spec :
       {"none | kv=int4 | tail=7", "recency(budget=60) | k=center+turbo3, v=int8 | tail=5",
        "random(budget=64,select=block:16) | kv=channel(bits=2,group=16) | schedule=every(16)",
        "random(budget=50) | kv=int8 | schedule=per_chunk",
        "window_attention(budget=60,window=8) | kv=f16 | schedule=every(5)"}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(std::string(spec) + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      Life life;
      life.spec = spec;
      if (seed % 2 == 0) life.layers.push_back(life.layers[0]);
      if (seed % 2 == 0) life.layers[1].sliding_window = 30;
      Cache cache = life.Empty();
      Cache reloaded = life.Empty();
      for (int step = 0; step < 40; ++step) {
        const bool decodes = step >= 10;
        const auto gap = static_cast<std::int64_t>(random() % 3 == 0 ? random() % 9 : 0);
        const auto count = static_cast<std::int64_t>(1 + random() % (decodes ? 12 : 40));
        const bool trims = random() % 5 == 0;
        const auto back = static_cast<TokenPos>(random() % 30);
        const std::int64_t first = cache.next_position() + gap;
        for (Cache* c : {&cache, &reloaded}) {
          if (step == 10) {
            ASSERT_TRUE(c->FinishPrefill().ok());
          }
          if (trims) {
            const TokenPos end = std::max(0, c->next_position() - back);
            ASSERT_TRUE(c->TrimToPosition(end, Trim::kAllowInexact).ok());
          }
          life.Step(*c, decodes ? Phase::kDecode : Phase::kPrefill, first, count);
        }
        ASSERT_FALSE(HasFatalFailure());
        const Bytes state = Saved(reloaded);
        ASSERT_TRUE(state == Saved(cache)) << "step " << step;
        ASSERT_TRUE(LoadBytes(state, reloaded).ok());
      }
      ExpectSame(reloaded, cache);
    }
  }
}

// Neither room for more rows nor what rows that went left behind is written.
TEST(State, WhatIsWrittenDependsOnTheRowsAlone) {
  for (const char* spec : {"none | kv=int4 | tail=9", "none | kv=channel(bits=2,group=16)"}) {
    Life life;
    life.spec = spec;
    Cache trimmed = life.At(Stage::kFinished);
    life.Step(trimmed, Phase::kDecode, 200, 57);
    ASSERT_TRUE(trimmed.TrimToPosition(200).ok());
    Cache loaded = life.Empty();
    ASSERT_TRUE(LoadBytes(Saved(trimmed), loaded).ok());
    EXPECT_LT(loaded.Report().resident_bytes(), trimmed.Report().resident_bytes());
    EXPECT_TRUE(Saved(loaded) == Saved(trimmed));
  }
  Life life;
  life.spec = "none | kv=int4";  // no row is encoded twice, so that the trim leaves no trace
  const Cache never = life.At(Stage::kFinished);
  Cache trimmed = life.At(Stage::kFinished);
  life.Step(trimmed, Phase::kDecode, 200, 1);
  ASSERT_TRUE(trimmed.TrimToPosition(200).ok());
  Bytes bytes = Saved(trimmed);
  EXPECT_EQ(bytes.size(), Saved(never).size());
}

TEST(State, CopiesOfACacheSaveTheSame) {
  Life life;
  life.spec = "snapkv(budget=70,window=16) | k=center+turbo4, v=int4 | tail=12";
  for (const Stage stage : kStages) {
    const Cache cache = life.At(stage);
    const Result<Cache> copy = cache.Fork();
    ASSERT_TRUE(copy.ok()) << copy.message();
    EXPECT_TRUE(Saved(*copy) == Saved(cache));
  }
}

TEST(State, TheHeadSaysWhatIsInside) {
  Life life;
  life.spec = "recency(budget=50) | kv=int8 | tail=5";
  life.layers[0].layer = 7;
  const Cache cache = life.At(Stage::kFinished);
  const Bytes state = Saved(cache, "model X, \"prompt\" Y");
  MemorySource source(state);
  const Result<StateInfo> info = ReadStateInfo(source);
  ASSERT_TRUE(info.ok()) << info.message();
  EXPECT_EQ(info->version, kStateVersion);
  EXPECT_EQ(info->bytes, std::ssize(state));
  EXPECT_EQ(info->spec, cache_test::MustParse(life.spec)->Canonical());
  EXPECT_EQ(info->identity, "model X, \"prompt\" Y");
  ASSERT_EQ(info->layers.size(), 1U);
  EXPECT_EQ(info->layers[0].spec.layer, 7);
  ASSERT_EQ(info->layers[0].stores.size(), 1U);
  EXPECT_EQ(info->layers[0].stores[0], "k=int8, v=int8");
  EXPECT_TRUE(info->finished);
  EXPECT_TRUE(info->rows_rounded);
  EXPECT_TRUE(info->rows_dropped);
}

std::string OtherIdentity(std::string_view saved, std::string_view asked) {
  Life life;
  life.spec = "recency(budget=50) | kv=int8";
  const Cache cache = life.At(Stage::kFinished);
  Cache other = life.Empty();
  const Status loaded = LoadBytes(Saved(cache, saved), other, asked);
  EXPECT_FALSE(loaded.ok());
  return std::string(loaded.message());
}

// No state is saved for such a text.
TEST(State, AnIdentityThatIsNoTextIsRefusedAsSavingDoes) {
  EXPECT_EQ(OtherIdentity("model", "model\nX"), "saved state: identity: byte 5 is no text");
  EXPECT_EQ(OtherIdentity("model", std::string_view("model\0", 6)),
            "saved state: identity: byte 5 is no text");
  EXPECT_EQ(OtherIdentity("model", std::string(70'000, 'x')),
            "saved state: identity: 70000 bytes, the limit is 65536");
}

// Cut before a character, not within, and with the place where they begin to differ.
TEST(State, LongIdentitiesAreShortenedInErrors) {
  const std::string common(60'000, 'x');
  EXPECT_EQ(OtherIdentity(common + "A", common + "B"),
            "saved state: identity: saved for '" + std::string(100, 'x') + "...', asked for '" +
                std::string(100, 'x') + "...': byte 60000 differs");
  EXPECT_EQ(OtherIdentity(std::string(99, 'x') + "\xC3\xA4 and more", "B"),
            "saved state: identity: saved for '" + std::string(99, 'x') +
                "...', asked for 'B': byte 0 differs");
  EXPECT_EQ(OtherIdentity(std::string(100, 'x'), "B"),
            "saved state: identity: saved for '" + std::string(100, 'x') + "', asked for 'B'");
}

// An unfinished prompt, f16 rows in f16 and exact rows lose nothing; codes and eviction do.
TEST(State, LossyMeansThatRowsAreRoundedOrGone) {
  struct Case {
    const char* spec;
    ElementType type;
    Stage stage;
    bool rounded;
    bool dropped;
  };
  for (const Case& c : std::vector<Case>{
           {"none | kv=int4", ElementType::kF32, Stage::kPrompt, false, false},
           {"none | kv=f16", ElementType::kF16, Stage::kFinished, false, false},
           {"none | kv=f16", ElementType::kBF16, Stage::kFinished, true, false},
           {"none | kv=bf16", ElementType::kBF16, Stage::kDecoded, false, false},
           {"none | k=f16, v=int8", ElementType::kF16, Stage::kFinished, true, false},
           {"none | k=hadamard+f16, v=f16", ElementType::kF16, Stage::kFinished, true, false},
           {"none | kv=int4 | tail=1000", ElementType::kF32, Stage::kDecoded, false, false},
           {"recency(budget=50) | kv=f16", ElementType::kF16, Stage::kFinished, false, true},
           {"recency(budget=50) | kv=int4 | schedule=per_chunk", ElementType::kF16, Stage::kPrompt,
            false, true}}) {
    SCOPED_TRACE(c.spec);
    Life life;
    life.spec = c.spec;
    life.type = c.type;
    const Bytes state = Saved(life.At(c.stage));
    MemorySource source(state);
    const Result<StateInfo> info = ReadStateInfo(source);
    ASSERT_TRUE(info.ok()) << info.message();
    EXPECT_EQ(info->rows_rounded, c.rounded);
    EXPECT_EQ(info->rows_dropped, c.dropped);
    EXPECT_EQ(info->lossy(), c.rounded || c.dropped);
  }
}

}  // namespace
}  // namespace kvsieve::state_test
