// Specs that must be refused: each with the column that the message points at and words that it
// must contain. Also what a later version will do, which is answered as such.
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/pipeline.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

struct Case {
  std::string spec;
  int column;
  std::vector<std::string_view> words;
};

void ExpectRefused(const Case& c, ErrorCode code) {
  SCOPED_TRACE(c.spec.substr(0, 200));
  const Result<Pipeline> pipeline = Pipeline::Parse(c.spec);
  ASSERT_FALSE(pipeline.ok()) << pipeline->Canonical();
  const std::string& message = pipeline.message();
  EXPECT_EQ(pipeline.error().code, code) << message;
  EXPECT_TRUE(message.starts_with(StrCat("column ", c.column, ": "))) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string_view word : c.words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  }
}

TEST(MalformedSpec, BrokenGrammarPointsAtTheColumn) {
  const Case cases[] = {
      {"", 1, {"empty"}},
      {"   ", 1, {"empty"}},
      {"|", 2, {"expected a store", "end of the spec"}},
      {"none|", 6, {"expected a store", "end of the spec"}},
      {"none | kv=f16 |", 16, {"expected a store"}},
      {"none || kv=f16", 7, {"expected a store", "'|'"}},
      {"none kv=f16", 6, {"expected '|'", "'k'"}},
      {"none | kv=f16 tail=3", 15, {"expected '|'", "'t'"}},
      {"none | kv=f16 garbage", 15, {"expected '|'"}},
      {"none | kv=f16;", 14, {"expected '|'", "';'"}},
      {"none(3)", 6, {"none takes no arguments"}},
      {"none(", 6, {"expected an argument", "end of the spec"}},
      {"(budget=3)", 1, {"expected an evict stage", "'('"}},
      {"=3", 1, {"expected an evict stage"}},
      {"snapkv(budget=512", 18, {"',' or ')'", "snapkv", "end of the spec"}},
      {"snapkv(budget=512 | kv=int8", 19, {"',' or ')'", "'|'"}},
      {"snapkv(budget=512))", 19, {"expected '|'", "')'"}},
      {"snapkv(budget=)", 15, {"expected a value for budget", "')'"}},
      {"snapkv(budget==512)", 15, {"expected a value for budget", "'='"}},
      {"snapkv(=512)", 8, {"expected an argument", "'='"}},
      {"snapkv(,)", 8, {"expected an argument", "','"}},
      {"snapkv(budget=512,)", 19, {"expected an argument", "')'"}},
      {"snapkv(budget=512,,sinks=4)", 19, {"expected an argument", "','"}},
      {"snapkv(budget=512 sinks=4)", 19, {"',' or ')'", "'s'"}},
      {"snapkv(bud get=512)", 12, {"',' or ')'", "'g'"}},
      {"snapkv(1.5=512)", 8, {"'1.5' is not the name of an option"}},
      {"snapkv(max:7=512)", 8, {"'max:7' is not the name of an option"}},
      {"snapkv(pool=max:)", 17, {"after ':'"}},
      {"snapkv(recent=budget/)", 22, {"after '/'"}},
      {"snapkv(protect=[)", 17, {"expected a row number"}},
      {"snapkv(protect=[1.5])", 18, {"expected '..'"}},
      {"snapkv(protect=[1..])", 20, {"expected a row number"}},
      {"snapkv(protect=[1..2)", 21, {"expected ']'"}},
      {"snapkv(protect=[1..2,])", 22, {"expected a row number"}},
      {"snapkv(split=adaptive(floor=0.2)", 33, {"',' or ')'", "end of the spec"}},
      {"none | kv", 10, {"expected '='", "kv"}},
      {"none | kv=", 11, {"expected a codec", "end of the spec"}},
      {"none | kv=+int8", 11, {"expected a codec", "'+'"}},
      {"none | kv=center+", 18, {"expected a codec", "end of the spec"}},
      {"none | kv=int8+", 16, {"expected a codec"}},
      {"none | kv=int8,", 16, {"expected a store"}},
      {"none | kv=int4(group=32", 24, {"',' or ')'", "int4"}},
      {"none | =int8", 8, {"expected a store", "'='"}},
      {"none | kv:int8", 10, {"expected '='", "':'"}},
      {"none | tail", 12, {"expected '='", "tail"}},
      {"none | tail=", 13, {"expected a number of rows"}},
      {"none | schedule=per_chunk", 8, {"schedule=per_chunk", "needs an evict stage"}},
      {"none | schedule=every(64)", 8, {"schedule=every(64)", "needs an evict stage"}},
      {"recency(budget=25%) | schedule=every(64)", 23, {"every(64)", "number of rows"}},
      {"snapkv(budget=64,scope=model) | schedule=per_chunk", 33, {"scope=model", "all layers"}},
      {"snapkv(budget=64,split=pyramid) | schedule=per_chunk", 35, {"split=pyramid", "all layers"}},
      {"snapkv(budget=64) | schedule=every", 35, {"every(n)"}},
      {"snapkv(budget=64) | schedule=every(0)", 36, {"[1, "}},
      {"snapkv(budget=64) | schedule=every(x)", 36, {"number of tokens"}},
      {"key_norm(budget=64) | schedule=every(4) | demote=yes", 43, {"demote=yes needs cold(...)"}},
      {"key_norm(budget=64) | cold(9)={kv=int4} | demote=yes", 43, {"needs schedule=every(n)"}},
      {"key_norm(budget=64,select=block:32) | cold(9)={k=channel} | schedule=every(4), demote=yes",
       80,
       {"codec channel"}},
      {"none | demote=maybe", 15, {"demote", "'maybe'"}},
      {"none | demote=no | demote=no", 20, {"demote is given twice"}},
      {"none | schedule=", 17, {"expected a value for schedule"}},
      {"none | nonfinite=(", 18, {"expected a value for nonfinite", "'('"}},
      {"none | layers={kv=f16}", 14, {"expected '('", "layers"}},
      {"none | layers()={kv=f16}", 15, {"expected a layer number"}},
      {"none | layers(0)={kv=f16}", 16, {"'..' in a layer range", "0..0"}},
      {"none | layers(0..)={kv=f16}", 18, {"expected a layer number"}},
      {"none | layers(0..1={kv=f16}", 19, {"expected ')'"}},
      {"none | layers(0..1){kv=f16}", 20, {"expected '='"}},
      {"none | layers(0..1)=kv=f16", 21, {"expected '{'"}},
      {"none | layers(0..1)={kv=f16", 28, {"expected '}'", "end of the spec"}},
      {"none | layers(0..1)={}", 22, {"takes a store"}},
      {"none | layers(0..1)={tail=3}", 22, {"takes a store"}},
      {"none | layers(a..b)={kv=f16}", 15, {"expected a layer number", "'a'"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, MisplacedDuplicateAndUnknownPartsAreNamed) {
  const Case cases[] = {
      {"none | taill=4", 8, {"unknown option 'taill'", "did you mean tail?"}},
      {"none | exactsinks=4", 8, {"unknown option", "did you mean exact_sinks?"}},
      {"taill=4", 1, {"unknown option 'taill'", "did you mean tail?"}},
      {"none | q=int8", 8, {"unknown option 'q'", "did you mean k?"}},
      {"none | k8v5", 8, {"unknown section 'k8v5'", "did you mean k8v4?"}},
      {"none | int8", 8, {"'int8' is a codec", "write kv=int8"}},
      {"int8", 1, {"'int8' is a codec", "write kv=int8"}},
      {"turbo4", 1, {"'turbo4' is a codec", "write kv=turbo4"}},
      {"none | snapkv(budget=512)", 8, {"'snapkv' must come first"}},
      {"kv=int8 | none", 11, {"'none' must come first"}},
      {"none | kv=k8v4", 11, {"unknown codec", "'k8v4'"}},
      {"none | tail=4, kv=int8", 16, {"kv= must come before the options"}},
      {"none | kv=int8 | kv=int8", 18, {"k is given twice"}},
      {"none | k=int8, kv=int4", 16, {"k is given twice"}},
      {"none | v=int8, v=int4", 16, {"v is given twice"}},
      {"none | kv=int8, v=int4", 17, {"v is given twice"}},
      {"none | kv=int8 | k8v4", 18, {"k8v4 stores k and v"}},
      {"none | k8v4 | v=int8", 15, {"v is given twice"}},
      {"none | k8v4, tail=4", 12, {"k8v4 is a whole section"}},
      {"none | tail=4, k8v4", 16, {"k8v4 is a whole section"}},
      {"none | k8v4(bits=3)", 12, {"expected '|' or the end"}},
      {"none | layers(0..1)={k8v4}", 22, {"takes a store"}},
      {"none | kivi2 | tail=31", 16, {"tail", "31 is smaller than the 32 rows"}},
      {"tail=63 | k=channel(group=64)", 1, {"tail", "63 is smaller than the 64 rows"}},
      {"none | kv=f16 | layers(0..1)={k=channel} | tail=0", 44, {"smaller than the 32 rows"}},
      {"snapkv(budget=512) | k=channel | schedule=every(64)", 34, {"select=block:n", "of its 32"}},
      {"snapkv(budget=512,select=block:48) | k=channel | schedule=every(64)",
       50,
       {"select=block:n"}},
      {"snapkv(budget=512,select=chunk:64) | k=channel | schedule=every(64)",
       50,
       {"select=block:n"}},
      {"none | tail=1, tail=1", 16, {"tail is given twice"}},
      {"none | exact_sinks=1 | exact_sinks=1", 24, {"exact_sinks is given twice"}},
      {"none | schedule=once | schedule=once", 24, {"schedule is given twice"}},
      {"none | nonfinite=zero | nonfinite=error", 25, {"nonfinite is given twice"}},
      {"none | layers(0..1)={k=f16,k=int8}", 28, {"k is given twice"}},
      {"none | layers(0..3,2..5)={kv=f16}", 20, {"2..5 overlaps 0..3"}},
      {"none | layers(-4..-1)={kv=f16} | layers(-1..-1)={kv=int8}", 41, {"-1..-1 overlaps -4..-1"}},
      {"none | layers(0..61)={kv=f16} | layers(0..-1)={kv=f16}", 40, {"0..-1 overlaps 0..61"}},
      {"none | layers(2..-1)={kv=f16} | layers(-3..-1)={kv=f16}", 40, {"-3..-1 overlaps 2..-1"}},
      {"none | layers(-2..0,-2..-0)={kv=f16}", 21, {"-2..0 overlaps -2..0"}},
      {"none | layers(3..1)={kv=f16}", 15, {"3..1 runs backwards"}},
      {"none | layers(-1..-2)={kv=f16}", 15, {"-1..-2 runs backwards"}},
      {"none | layers(0..70000)={kv=f16}", 18, {"70000 is outside"}},
      {"none | layers(0..99999999999999999999)={kv=f16}", 18, {"99999999999999999999 is outside"}},
      {"none | tail=64MiB", 13, {"tail", "'64MiB' is not a number of rows"}},
      {"none | tail=1.5", 13, {"tail", "'1.5' is not a number of rows"}},
      {"none | tail=10%", 13, {"tail", "'10%' is not a number of rows"}},
      {"none | tail=-1", 13, {"tail", "-1 is outside [0, "}},
      {"none | exact_sinks=5000000000", 20, {"exact_sinks", "5000000000 is outside"}},
      {"none | tail=99999999999999999999", 13, {"tail", "not a number of rows"}},
      {"none | schedule=onse", 17, {"schedule", "'onse'", "did you mean once?"}},
      {"none | nonfinite=zeros", 18, {"nonfinite", "did you mean zero?"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, StagesRefuseTheirArguments) {
  const Case cases[] = {
      {"snapkw(budget=512)", 1, {"snapkw", "did you mean snapkv?"}},
      {"snapkv", 1, {"budget"}},
      {"snapkv()", 1, {"budget"}},
      {"snapkv(budget=512,windw=32)", 19, {"windw", "did you mean window?"}},
      {"snapkv(budget=512,budget=512)", 19, {"budget", "twice"}},
      {"snapkv(budget=512,window=32,window=16)", 29, {"window", "twice"}},
      {"snapkv(budget=512,sym)", 19, {"sym"}},
      {"snapkv(budget=0)", 15, {"budget"}},
      {"snapkv(budget=0%)", 15, {"0%"}},
      {"snapkv(budget=101%)", 15, {"101%"}},
      {"snapkv(budget=nan)", 15, {"nan"}},
      {"snapkv(budget=64M)", 15, {"64M"}},
      {"snapkv(budget=25 %)", 18, {"',' or ')'"}},
      {"snapkv(budget=512(3))", 15, {"512"}},
      {"snapkv(budget=16,window=32,sinks=4)", 15, {"16", "sinks 4", "window 32"}},
      {"snapkv(budget=512,window=x)", 26, {"window", "'x'"}},
      {"snapkv(budget=512,pool=max:8)", 24, {"pool", "8"}},
      {"snapkv(budget=512,pool=mix:7)", 24, {"pool", "mix"}},
      {"snapkv(budget=512,causal=maybe)", 26, {"causal", "maybe"}},
      {"none | kv=int9", 11, {"int9", "did you mean"}},
      {"none | kv=turbo6", 11, {"turbo6", "turbo1, turbo2", "turbo5"}},
      {"none | kv=turbo(bits=6)", 22, {"bits", "6"}},
      {"none | kv=turbo4(bits=3)", 18, {"bits", "twice"}},
      {"none | kv=turbo4(sed=3)", 18, {"sed", "did you mean seed?"}},
      {"none | kv=int4(grp=32)", 16, {"grp", "did you mean group?"}},
      {"none | kv=int4(group=32,group=16)", 25, {"group", "twice"}},
      {"none | kv=int4(group=x)", 22, {"group", "x", "neither row nor a multiple of 8"}},
      {"none | kv=int4(sym,asym)", 11, {"either sym or asym"}},
      {"none | kv=f16(seed=3)", 15, {"seed", "f16"}},
      {"none | kv=center", 11, {"center"}},
      {"none | kv=int8+int4", 11, {"int8"}},
      {"none | kv=hadamard+turbo4", 11, {"hadamard", "turbo"}},
      {"none | kv=centre+turbo4", 11, {"centre", "did you mean center?"}},
      {"none | layers(0..1)={kv=int9}", 25, {"int9"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, ColdStoresNeedRowsAStoreAndARanking) {
  const Case cases[] = {
      {"none | kv=int8 | cold(35%)={kv=int4}", 18, {"needs an evict stage", "budget=100%"}},
      {"recency(budget=9) | cold={kv=int4}", 25, {"cold(35%)"}},
      {"recency(budget=9) | cold()={kv=int4}", 26, {"option cold", "neither rows"}},
      {"recency(budget=9) | cold(0)={kv=int4}", 26, {"0 rows is outside"}},
      {"recency(budget=9) | cold(120%)={kv=int4}", 26, {"option cold", "120%"}},
      {"recency(budget=9) | cold(3)=kv=int4", 29, {"'{'", "cold(...)"}},
      {"recency(budget=9) | cold(3)={tail=4}", 30, {"takes a store"}},
      {"recency(budget=9) | cold(3)={kv=int9}", 33, {"int9"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, TiersAndThePlanThatNeedsThemComeTogether) {
  const Case cases[] = {
      {"none | tiers=[kv=int8; kv=int4]", 8, {"waterfill"}},
      {"recency(budget=9) | tiers=[kv=int8]", 21, {"waterfill"}},
      {"waterfill(budget=8x)", 1, {"tiers=["}},
      {"waterfill(budget=8x) | kv=int8", 1, {"tiers=["}},
      {"waterfill(budget=25%) | tiers=[kv=int8]", 18, {"option budget", "8x"}},
      {"waterfill | tiers=[kv=int8]", 1, {"option budget", "8x"}},
      {"waterfill(budget=8x,recent=4) | tiers=[kv=int8]", 21, {"recent"}},
      {"waterfill(budget=8x) | kv=f16 | tiers=[kv=int8]", 33, {"holds all stores"}},
      {"waterfill(budget=8x) | tiers=[kv=int8] | cold(3)={kv=int4}", 42, {"cold(...)", "leave"}},
      {"waterfill(budget=8x) | tiers=[k=int8]", 31, {"no v="}},
      {"waterfill(budget=8x) | tiers=[kv=int8; tail=3]", 40, {"takes a store"}},
      {"waterfill(budget=8x) | tiers=kv=int8", 30, {"'['"}},
      {"waterfill(budget=8x) | tiers=[kv=int8, kv=int4]", 40, {"twice"}},
      {"waterfill(budget=8x) | tiers=[kv=int8 | tail=3", 39, {"';'"}},
      {"waterfill(budget=8x) | tiers=[kv=int8] | schedule=every(8)", 42, {"at once"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, ListsHaveALimit) {
  std::string cold = "recency(budget=9)";
  std::string tiers = "waterfill(budget=8x) | tiers=[kv=int8";
  for (int i = 1; i < 16; ++i) {
    if (i > 1) cold += StrCat(" | cold(", i, ")={kv=int4}");
    tiers += "; kv=int4";
  }
  std::string mix = "mix(1*recency";
  for (int i = 1; i < 16; ++i) mix += StrCat(",1*random(seed=", i, ")");
  for (const std::string& most :
       {cold + " | cold(99)={kv=int4}", tiers + "]", mix + ",budget=9)"}) {
    const Result<Pipeline> pipeline = Pipeline::Parse(most);
    EXPECT_TRUE(pipeline.ok()) << pipeline.message();
  }
  cold += " | cold(98)={kv=int4} | cold(99)={kv=int4}";
  ExpectRefused({cold, static_cast<int>(cold.rfind("cold(99)")) + 1, {"15 cold(...) options"}},
                ErrorCode::kInvalidArgument);
  tiers += "; kv=int2]";
  ExpectRefused({tiers, static_cast<int>(tiers.rfind("kv=int2")) + 1, {"more than 16 tiers"}},
                ErrorCode::kInvalidArgument);
  mix += ",1*key_norm,budget=9)";
  ExpectRefused({mix, static_cast<int>(mix.rfind("1*key_norm")) + 1, {"more than 16 terms"}},
                ErrorCode::kInvalidArgument);
  ExpectRefused({"recency(budget=1.0000000001%)", 16, {"1.0000000001%", "more than 9 decimals"}},
                ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, RecipesTakeAFactorAndBringAllStores) {
  const Case cases[] = {
      {"best", 1, {"best(8x)", "2.5x to 32x"}},
      {"best()", 1, {"best(8x)"}},
      {"best(8)", 6, {"best(8x)"}},
      {"best(x)", 6, {"best(8x)"}},
      {"best(2.4x)", 6, {"2.5x"}},
      {"best(32.1x)", 6, {"32x"}},
      {"best(8x,4x)", 1, {"best(8x)"}},
      {"best(budget=8x)", 1, {"best(8x)"}},
      {"best(64MiB)", 6, {"best(8x)"}},
      {"none | best(8x)", 8, {"best", "must come first"}},
      {"best(8x) | kv=int8", 1, {"best(...) brings its own stores", "waterfill"}},
      {"best(8x) | k8v4", 1, {"best(...) brings its own stores"}},
      {"bast(8x)", 1, {"did you mean best?"}},
      {"frob(8x)", 1, {"known: best, window_attention"}},
      {"best(8x) | cold(9)={kv=int8}", 12, {"best(...) brings its own stores"}},
      {"best(8x) | tiers=[kv=int8]", 12, {"best(...) brings its own stores"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, WhatALaterVersionDoesIsNotCalledUnknown) {
  const Case cases[] = {
      {"none | positions=renumber",
       8,
       {"positions=renumber is not supported", "original rotation"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kUnsupported);
}

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(MalformedSpec, AbsurdSizesAreRefused) {
  const Case cases[] = {
      {"none | kv=f16" + std::string(20000, ' '), 16385, {"20013", "16384"}},
      {"none | kv=" + std::string(65, 'a'), 11, {"longer than 64"}},
      {"snapkv(budget=" + Repeat("1:", 40) + "1)", 15, {"longer than 64"}},
      {Repeat("a(", 17), 34, {"deeper than 16"}},
      {Repeat("a(", 8000), 34, {"deeper than 16"}},
      {"none | kv=" + Repeat("center+", 16) + "int8", 123, {"more than 16 stages"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

// The canonical form is a spec itself: reports hold it, and saved caches are read by it.
TEST(MalformedSpec, ACanonicalFormBeyondTheLimitIsRefused) {
  std::string spec = "none | kv=f16";
  for (int i = 0; i < 400; ++i) spec += StrCat("|layers(", i, "..", i, ")={kv=turbo4}");
  ASSERT_LT(spec.size(), 16384);
  ExpectRefused({spec, 1, {"written out", "16384"}}, ErrorCode::kInvalidArgument);
}

TEST(MalformedSpec, OnlyPlainAsciiIsRead) {
  using std::string_literals::operator""s;
  const Case cases[] = {
      {"none\0"s, 5, {"0x00", "ASCII"}},   {"none | kv=f16\x01", 14, {"0x01"}},
      {"none | kv=f16\x7f", 14, {"0x7f"}}, {"none \xe2\x80\x93 kv=f16", 6, {"0xe2"}},
      {"sn\xc3\xa4pkv", 3, {"0xc3"}},
  };
  for (const Case& c : cases) ExpectRefused(c, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvsieve
