#include "kvsieve/pipeline.h"

#include <gtest/gtest.h>
#include <limits>

#include <string>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// Every example of docs/specs.md that this version builds, and one spec per feature.
constexpr const char* kValidSpecs[] = {
    "none | kv=f16",
    "snapkv(budget=512)",
    "snapkv(budget=25%,window=32,sinks=4,pool=max:7) | k=int8, v=int4(group=32) | tail=64",
    "none | k=center+turbo(bits=4), v=turbo(bits=4) | layers(0..1,-2..-1)={kv=f16}",
    "snapkv(budget=60%) | k=center+turbo4, v=turbo4",
    "none | k8v4",
    "4bit_nc",
    "snapkv(budget=25%) | k3v4_nc | tail=64, exact_sinks=4",
    "none | 3bit_nc | layers(0..1,-2..-1)={kv=f16}",
    "snapkv(budget=25%) | kivi2 | exact_sinks=4",
    "none | k=channel(bits=3,group=64), v=int2",
    "kv=int8",
    "| kv=int8",
    "tail=3",
    "none | k=int8 | v=int4",
    "none | kv=int4(group=row,sym)",
    "none | kv=hadamard+int4",
    "none | kv=turbo1 | exact_sinks=0",
    "none | kv=turbo(bits=3,seed=18446744073709551615)",
    "recency(budget=33.3%)",
    "random(budget=10%,seed=7) | nonfinite=zero",
    "output_perturbation(budget=12.5%) | kv=int8",
    "window_attention(budget=512,queries=max,group=sum,pool=avg:5,scope=layer) | schedule=once",
    "snapkv(budget=512,recent=budget/8,protect=[10..20,30..40],ties=high,min_tokens=100)",
    "snapkv(budget=16,over_budget=budget)",
    "snapkv(budget=60%) | k=center+turbo4, v=turbo4 | cold(35%)={k=center+turbo3, v=turbo2}",
    "recency(budget=8x) | kv=int8 | cold(100)={v=int4} | cold(12.5%)={kv=int2} | tail=8",
    "none | kv=int4 | layers(5..6)={k=int8} | layers(-1..-1,0..1)={v=f16} | tail=7",
};

Pipeline Parsed(const std::string& spec) {
  Result<Pipeline> pipeline = Pipeline::Parse(spec);
  EXPECT_TRUE(pipeline.ok()) << spec << ": " << pipeline.message();
  return *std::move(pipeline);
}

std::string Codecs(const StoreSpec& store) {
  return store.key.back().name + "/" + store.value.back().name;
}

TEST(Pipeline, CanonicalParsesToItself) {
  for (const char* spec : kValidSpecs) {
    const Result<Pipeline> pipeline = Pipeline::Parse(spec);
    ASSERT_TRUE(pipeline.ok()) << spec << ": " << pipeline.message();
    const std::string canonical = pipeline->Canonical();
    const Result<Pipeline> again = Pipeline::Parse(canonical);
    ASSERT_TRUE(again.ok()) << canonical << ": " << again.message();
    EXPECT_EQ(again->Canonical(), canonical);
    EXPECT_EQ(again->exact_sinks(), pipeline->exact_sinks());
    EXPECT_EQ(again->tail(), pipeline->tail());
    EXPECT_EQ(again->nonfinite(), pipeline->nonfinite());
    EXPECT_EQ(pipeline->Typed(), spec);
  }
}

// vLLM, turboquant/config.py: a key is dim bytes of fp8, or ceil(dim * bits / 8) and a 2-byte norm;
// a value ceil(dim * bits / 8) and a 2-byte scale and zero point.
TEST(Pipeline, StoragePresetsTakeTheBytesOfTheirOriginals) {
  struct Preset {
    const char* name;
    int key_bits, key_extra, value_bits, slot_at_128;
  };
  const Preset presets[] = {{"k8v4", 8, 0, 4, 196},
                            {"4bit_nc", 4, 2, 4, 134},
                            {"k3v4_nc", 3, 2, 4, 118},
                            {"3bit_nc", 3, 2, 3, 102}};
  ASSERT_EQ(std::size(presets) + 2, StoragePresetInfos().size());  // and KIVI's
  for (const auto& [name, key_bits, key_extra, value_bits, slot_at_128] : presets) {
    for (const int dim : {64, 80, 128, 256}) {
      LayerSpec layer;
      layer.key_dim = layer.value_dim = dim;
      const Result<LayerStore> store = BuildStore(Parsed(name).main_store(), layer);
      ASSERT_TRUE(store.ok()) << name << ": " << store.message();
      const RowBytes key = store->key->codec().row_bytes();
      const RowBytes value = store->value->codec().row_bytes();
      EXPECT_EQ(key.codes + key.scales, dim * key_bits / 8 + key_extra) << name << ' ' << dim;
      EXPECT_EQ(value.codes + value.scales, dim * value_bits / 8 + 4) << name << ' ' << dim;
      if (dim != 128) continue;
      EXPECT_EQ(key.codes + key.scales + value.codes + value.scales, slot_at_128) << name;
    }
  }
}

// KIVI: groups of 32 with a 2-byte scale and a 2-byte zero point, along tokens for keys, along dims
// for values; the last 128 rows stay as they are, and so do no first ones.
TEST(Pipeline, KiviPresetsTakeTheBytesOfTheirOriginals) {
  for (const auto& [name, bits] : {std::pair{"kivi2", 2}, std::pair{"kivi4", 4}}) {
    const Pipeline pipeline = Parsed(name);
    EXPECT_EQ(pipeline.tail(), 128);
    EXPECT_EQ(pipeline.exact_sinks(), 0);
    for (const int dim : {64, 128, 256}) {
      LayerSpec layer;
      layer.key_dim = layer.value_dim = dim;
      const Result<LayerStore> store = BuildStore(pipeline.main_store(), layer);
      ASSERT_TRUE(store.ok()) << store.message();
      for (const Chain* chain : {store->key.get(), store->value.get()}) {
        EXPECT_EQ(chain->codec().row_bytes().codes, dim * bits / 8);
        EXPECT_EQ(chain->codec().row_bytes().scales, dim / 32 * 4);
      }
    }
  }
}

TEST(Pipeline, OptionsOfTheSpecComeBeforeThoseOfAPreset) {
  EXPECT_EQ(Parsed("none | kivi2 | tail=64").tail(), 64);
  EXPECT_EQ(Parsed("none | tail=64 | kivi2").tail(), 64);
  EXPECT_EQ(Parsed("exact_sinks=4 | kivi4").exact_sinks(), 4);
  EXPECT_EQ(Parsed("exact_sinks=4 | kivi4").tail(), 128);
}

TEST(Pipeline, GroupsOfRowsNeedATailAndKeepFourSinksExact) {
  EXPECT_EQ(Parsed("none | k=channel").tail(), 32);
  EXPECT_EQ(Parsed("none | k=channel(group=16), v=channel(group=64)").tail(), 64);
  EXPECT_EQ(Parsed("none | kv=f16 | layers(0..1)={k=channel}").tail(), 32);
  EXPECT_EQ(Parsed("none | k=channel | tail=100").tail(), 100);
  EXPECT_EQ(Parsed("none | k=channel").exact_sinks(), 4);
  EXPECT_EQ(Parsed("none | k=channel | exact_sinks=0").exact_sinks(), 0);
  EXPECT_TRUE(
      Pipeline::Parse("snapkv(budget=512,select=block:64) | k=channel | schedule=every(64)").ok());
  EXPECT_TRUE(Pipeline::Parse("snapkv(budget=512) | k=channel | schedule=per_chunk").ok());
}

TEST(Pipeline, AStoragePresetIsShortForItsChains) {
  for (const StageInfo& preset : StoragePresetInfos()) {
    EXPECT_EQ(Parsed(StrCat("none | ", preset.name)).Canonical(),
              Parsed(StrCat("none | ", preset.formula)).Canonical());
  }
}

TEST(Pipeline, ADimThatAPresetCannotStorePointsAtItsName) {
  LayerSpec layer;
  layer.key_dim = layer.value_dim = 72;
  const Result<LayerStore> store = BuildStore(Parsed("none | 4bit_nc").main_store(), layer);
  ASSERT_FALSE(store.ok());
  EXPECT_TRUE(store.message().starts_with("column 8: turbo")) << store.message();
}

TEST(Pipeline, CanonicalWritesEveryDefaultInOneOrder) {
  EXPECT_EQ(Parsed("tail=3 | nonfinite=zero | v=turbo4").Canonical(),
            "none | k=f16, v=turbo(bits=4,seed=0,norm=matched) | exact_sinks=0 | tail=3 | "
            "schedule=once | nonfinite=zero");
  EXPECT_EQ(Parsed("none | kv=f16").Canonical(),
            "none | kv=f16 | exact_sinks=0 | tail=0 | schedule=once | nonfinite=error");
}

TEST(Pipeline, CanonicalSaysWhetherRowsMoveWhereTheyCould) {
  const std::string every = "key_norm(budget=9)|kv=int8|cold(3)={kv=int4}|schedule=every(2)";
  EXPECT_FALSE(Parsed(every).demotes());
  EXPECT_NE(Parsed(every).Canonical().find("every(2) | demote=no | "), std::string::npos);
  const Pipeline demotes = Parsed(StrCat(every, "|demote=yes"));
  EXPECT_TRUE(demotes.demotes());
  EXPECT_NE(demotes.Canonical().find("every(2) | demote=yes | "), std::string::npos);
  EXPECT_EQ(Parsed(demotes.Canonical()).Canonical(), demotes.Canonical());
  EXPECT_EQ(Parsed("key_norm(budget=9)|schedule=every(2)|demote=no").Canonical().find("demote"),
            std::string::npos);
}

TEST(Pipeline, EqualPipelinesHaveEqualCanonicalForms) {
  EXPECT_EQ(Parsed("none | kv=turbo4").Canonical(),
            Parsed("none|v = turbo(bits=4) | k=turbo(seed=0)").Canonical());
  EXPECT_EQ(
      Parsed("none | layers(-2..-1)={kv=f16} | layers(4..5,0..1)={k=int8}").Canonical(),
      Parsed("none | layers(0..1,4..5)={k=int8,v=f16} | layers(-2..-1)={kv=f16}").Canonical());
  EXPECT_EQ(Parsed("snapkv(budget=512)").Canonical(),
            Parsed("window_attention(budget=512,sinks=4,pool=max:7)").Canonical());
}

TEST(Pipeline, CentredChainsKeepFourSinksExactUnlessToldOtherwise) {
  EXPECT_EQ(Parsed("none | k=center+turbo4").exact_sinks(), 4);
  EXPECT_EQ(Parsed("none | v=center+int8").exact_sinks(), 4);
  EXPECT_EQ(Parsed("none | kv=int8 | layers(0..1)={k=center+int8}").exact_sinks(), 4);
  EXPECT_EQ(Parsed("none | k=center+turbo4 | exact_sinks=0").exact_sinks(), 0);
  EXPECT_EQ(Parsed("none | kv=turbo4").exact_sinks(), 0);
  EXPECT_EQ(Parsed("none | kv=int8 | exact_sinks=9").exact_sinks(), 9);
}

TEST(Pipeline, LayerRangesAreInclusiveAndCountFromTheEnd) {
  const Pipeline pipeline = Parsed("none | kv=int8 | layers(0..1,-2..-1)={kv=f16}");
  ASSERT_TRUE(pipeline.CheckLayers(10).ok());
  const bool expected_f16[] = {true, true, false, false, false, false, false, false, true, true};
  for (int layer = 0; layer < 10; ++layer) {
    EXPECT_EQ(Codecs(pipeline.StoreFor(layer, 10, 0)),
              expected_f16[layer] ? "f16/f16" : "int8/int8")
        << layer;
  }
}

TEST(Pipeline, LayerRangesAreCheckedAgainstTheModel) {
  const Pipeline pipeline = Parsed("none | kv=int8 | layers(0..1,-2..-1)={kv=f16}");
  EXPECT_TRUE(pipeline.CheckLayers(3).ok());  // ranges of one option may meet: same store
  EXPECT_TRUE(pipeline.CheckLayers(2).ok());
  ASSERT_FALSE(pipeline.CheckLayers(1).ok());
  EXPECT_NE(pipeline.CheckLayers(1).message().find("0..1"), std::string::npos);
  EXPECT_NE(pipeline.CheckLayers(1).message().find("1 layers"), std::string::npos);

  const Pipeline meeting = Parsed("none | layers(0..1)={kv=f16} | layers(-2..-1)={kv=int8}");
  EXPECT_TRUE(meeting.CheckLayers(4).ok());
  ASSERT_FALSE(meeting.CheckLayers(3).ok());
  EXPECT_NE(meeting.CheckLayers(3).message().find("another layers option"), std::string::npos);

  EXPECT_FALSE(Parsed("none | layers(3..-3)={kv=f16}").CheckLayers(5).ok());  // 3..2
  EXPECT_TRUE(Parsed("none | layers(3..-3)={kv=f16}").CheckLayers(6).ok());
  EXPECT_TRUE(Parsed("none").CheckLayers(0).ok());
}

TEST(Pipeline, ARangeOutsideTheModelDoesNotCrash) {
  const Pipeline pipeline = Parsed("none | kv=int8 | layers(1..65535,-65535..-60000)={kv=f16}");
  EXPECT_EQ(Codecs(pipeline.StoreFor(0, 2, 0)), "int8/int8");
  EXPECT_EQ(Codecs(pipeline.StoreFor(1, 2, 0)), "f16/f16");
}

TEST(Pipeline, BuildStoreUsesEachSidesDimension) {
  LayerSpec layer;
  layer.query_heads = layer.kv_heads = 1;
  layer.key_dim = 64;
  layer.value_dim = 96;
  layer.scale = 0.125F;
  const Pipeline good = Parsed("none | k=int8, v=int4(group=32)");
  const Result<LayerStore> store = BuildStore(good.main_store(), layer);
  ASSERT_TRUE(store.ok()) << store.message();
  EXPECT_EQ(store->key->dim(), 64);
  EXPECT_EQ(store->value->dim(), 96);
  EXPECT_EQ(store->key->side(), Side::kKey);
  EXPECT_EQ(store->value->side(), Side::kValue);

  const Pipeline bad = Parsed("none | k=int8, v=int4(group=40)");
  const Result<LayerStore> failed = BuildStore(bad.main_store(), layer);
  ASSERT_FALSE(failed.ok());
  EXPECT_TRUE(failed.message().starts_with("column 2")) << failed.message();
}

// docs/tiers.md shows them; options may follow.
TEST(Pipeline, RecipesStandForAPlan) {
  const auto best = Pipeline::Parse("best(8x) | tail=16");
  ASSERT_TRUE(best.ok()) << best.message();
  const auto written = Pipeline::Parse(
      "waterfill(budget=8x,pool=max:7,level=0.5,floor=0.1,follow=256,follow_weight=0.3) | tiers=["
      "k=center+turbo5, v=turbo4; k=center+turbo4, v=turbo3; k=center+turbo3, v=turbo2] | tail=16");
  ASSERT_TRUE(written.ok()) << written.message();
  EXPECT_EQ(best->Canonical(), written->Canonical());
}

// Whatever the factor, tiers get smaller, fit the heads of models, and have fused kernels.
TEST(Pipeline, RecipesFitHeadsAndHaveFastKernels) {
  for (const char* spec : {"best(2.5x)", "best(4.5x)", "best(6x)", "best(11x)", "best(32x)"}) {
    SCOPED_TRACE(spec);
    const auto best = Pipeline::Parse(spec);
    ASSERT_TRUE(best.ok()) << best.message();
    for (const int dim : {64, 80, 96, 128, 256}) {
      const LayerSpec layer{.query_heads = 1, .kv_heads = 1, .key_dim = dim, .value_dim = dim};
      std::int64_t larger = std::numeric_limits<std::int64_t>::max();
      for (int tier = 0; tier < best->tiers(); ++tier) {
        const auto store = BuildStore(best->StoreFor(0, 1, tier), layer);
        ASSERT_TRUE(store.ok()) << dim << ": " << store.message();
        std::int64_t bytes = 0;
        for (const Side side : store->sides()) {
          const Codec& codec = store->chain(side).codec();
          bytes += codec.row_bytes().codes + codec.row_bytes().scales;
          if (dim != 80) {
            EXPECT_EQ(codec.path(), KernelPath::kFused) << dim;
          }
        }
        EXPECT_LT(bytes, larger);
        larger = bytes;
      }
    }
  }
}

}  // namespace
}  // namespace kvsieve
