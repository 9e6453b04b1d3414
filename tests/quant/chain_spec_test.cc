// Which chains can be built, how they are written, and what is said about the others.
#include <gtest/gtest.h>

#include <algorithm>

#include "kvsieve/codec.h"
#include "quant_test_util.h"

namespace kvsieve {
namespace {

using quant_test::MakeChainError;
using quant_test::MakeChainOrDie;
using quant_test::ParseChain;

std::string Outline(std::string_view text) {
  const auto outline = OutlineChain(ParseChain(text));
  return outline.ok() ? outline->canonical : "error: " + outline.message();
}

TEST(ChainSpec, CanonicalWritesOutWhatMattersForBytes) {
  const std::pair<std::string_view, std::string_view> table[] = {
      {"f16", "f16"},
      {"int8", "int8"},
      {"int4(sym,group=32)", "int4(group=32,sym)"},
      {"int4(group=row)", "int4(group=row,asym)"},
      {"int3(group=16)", "int3(group=16,asym)"},
      {"int2(sym,group=row)", "int2(group=row,sym)"},
      {"turbo", "turbo(bits=4,seed=0,norm=matched)"},
      {"center+turbo(bits=3,seed=18446744073709551615)",
       "center+turbo(bits=3,seed=18446744073709551615,norm=matched)"},
      {"hadamard+int8", "hadamard(seed=0)+int8"},
      {"center+channel_scale+q4_0", "center+channel_scale+q4_0"},
      {"center+hadamard(seed=5)+f16", "center+hadamard(seed=5)+f16"}};
  for (const auto& [text, canonical] : table) {
    EXPECT_EQ(Outline(text), canonical);
    EXPECT_EQ(Outline(Outline(text)), canonical);  // reads back as itself
    EXPECT_EQ(MakeChainOrDie(text, 128, Side::kKey)->Canonical(), canonical);
  }
}

TEST(ChainSpec, TheDefaultGroupIsResolvedWhenDimIsKnown) {
  EXPECT_EQ(Outline("int4"), "int4(asym)");
  const std::pair<int, std::string_view> table[] = {
      {128, "int4(group=32,asym)"}, {80, "int4(group=16,asym)"},  {96, "int4(group=32,asym)"},
      {40, "int4(group=8,asym)"},   {72, "int4(group=24,asym)"},  {33, "int4(group=row,asym)"},
      {36, "int4(group=row,asym)"}, {112, "int4(group=16,asym)"}, {8, "int4(group=8,asym)"}};
  for (const auto& [dim, canonical] : table) {
    EXPECT_EQ(MakeChainOrDie("int4", dim, Side::kValue)->Canonical(), canonical) << dim;
  }
}

TEST(ChainSpec, OutlineKnowsWhetherSinksShouldStayExact) {
  EXPECT_TRUE(OutlineChain(ParseChain("center+int8"))->wants_exact_sinks);
  EXPECT_FALSE(OutlineChain(ParseChain("hadamard+int8"))->wants_exact_sinks);
  EXPECT_TRUE(MakeChainOrDie("center+turbo", 64, Side::kKey)->wants_exact_sinks());
  EXPECT_FALSE(MakeChainOrDie("turbo", 64, Side::kKey)->wants_exact_sinks());
}

TEST(ChainSpec, StatisticsAreCountedStageByStage) {
  EXPECT_EQ(MakeChainOrDie("int8", 128, Side::kKey)->stats_floats(), 0);
  EXPECT_EQ(MakeChainOrDie("center+int8", 128, Side::kKey)->stats_floats(), 128);
  EXPECT_EQ(MakeChainOrDie("center+turbo", 128, Side::kKey)->stats_floats(), 129);
}

TEST(ChainSpec, MistakesNameColumnValueAndRemedy) {
  struct Case {
    std::string_view text;
    int dim;
    std::vector<std::string_view> parts;
  };
  const Case cases[] = {
      {"int9", 64, {"column 1", "int9", "did you mean int"}},
      {"centre+int8", 64, {"column 1", "centre", "did you mean center"}},
      {"center+trubo", 64, {"column 8", "did you mean turbo"}},
      {"center", 64, {"column 1", "center is a transform", "center+int8"}},
      {"int8+center", 64, {"column 1", "int8 is a codec"}},
      {"center+center+int8", 64, {"column 8", "twice"}},
      {"channel_scale(by=2)+int8", 64, {"column 15", "by"}},
      {"hadamard+turbo", 64, {"column 1", "turbo already rotates"}},
      {"hadamard+center+turbo(bits=3)", 64, {"column 1", "already rotates"}},
      {"turbo", 33, {"column 1", "33", "at least 16", "is 1"}},
      {"center+turbo", 72, {"column 8", "72", "is 8"}},
      {"turbo(bits=6)", 64, {"column 12", "6", "[1, 5]"}},
      {"turbo(bits=four)", 64, {"column 12", "four"}},
      {"turbo(norm=raw)", 64, {"column 12", "raw", "matched"}},
      {"turbo(sed=1)", 64, {"column 7", "did you mean seed"}},
      {"int4(group=64)", 96, {"column 12", "64", "96", "group=48"}},
      {"int4(group=20)", 80, {"column 12", "20", "multiple of 8", "80", "group=16"}},
      {"int4(group=32)", 33, {"column 12", "32", "33", "group=row"}},
      {"int4(group=4)", 64, {"column 12", "4", "multiple of 8 from 8 to 4096"}},
      {"int4(group=col)", 64, {"column 12", "col", "row"}},
      {"int4(sym,asym)", 64, {"either sym or asym"}},
      {"int2(sym,asym)", 64, {"int2 is either sym or asym"}},
      {"int3(group=64)", 96, {"column 12", "int3 group 64", "96", "group=48"}},
      {"int4(symm)", 64, {"column 6", "did you mean sym"}},
      {"int8(group=32)", 64, {"column 6", "group", "no options"}},
      {"f16(3)", 64, {"column 5"}},
      {"int8", 0, {"dim 0", "4096"}},
      {"int8", 5000, {"dim 5000", "4096"}}};
  for (const auto& [text, dim, parts] : cases) {
    const std::string message = MakeChainError(text, dim);
    EXPECT_FALSE(message.empty()) << text;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    for (const auto part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << text << " said: " << message;
    }
  }
}

TEST(ChainSpec, RegistriesDescribeEveryStage) {
  std::vector<std::string_view> names;
  for (const auto infos : {CodecInfos(), TransformInfos()}) {
    for (const StageInfo& info : infos) {
      names.push_back(info.name);
      EXPECT_FALSE(info.summary.empty());
      EXPECT_FALSE(info.formula.empty());
    }
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{"f16", "bf16", "fp8", "int8", "int4", "int3",
                                                  "int2", "turbo", "q8_0", "q4_0", "channel",
                                                  "center", "hadamard", "channel_scale"}));
}

TEST(ChainSpec, EveryCodecSaysWhichKernelsServeIt) {
  for (const auto text : {"f16", "bf16", "fp8", "int8", "int4", "int4(sym)", "turbo(bits=1)",
                          "turbo(bits=2)", "turbo(bits=3)", "turbo(bits=4)", "turbo(bits=5)",
                          "q8_0", "q4_0", "int3", "int2(sym)", "channel"}) {
    EXPECT_EQ(MakeChainOrDie(text, 64, Side::kKey)->codec().path(), KernelPath::kFused);
  }
  for (const auto text : {"int3(group=16)", "int2(group=8)"}) {
    EXPECT_EQ(MakeChainOrDie(text, 64, Side::kKey)->codec().path(), KernelPath::kPortable);
  }
  EXPECT_EQ(MakeChainOrDie("q4_0", 64, Side::kValue)->codec().path(), KernelPath::kFused);
  EXPECT_EQ(KernelPathName(KernelPath::kFused), "fused");
  EXPECT_EQ(KernelPathName(KernelPath::kPortable), "portable");
}

}  // namespace
}  // namespace kvsieve
