#include "lib/spec_parser.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/spec_call_parser.h"

namespace kvsieve {
namespace {

std::string ChainText(const std::vector<SpecCall>& chain) {
  std::string out;
  for (const SpecCall& call : chain) out += (out.empty() ? "" : "+") + call.ToString();
  return out;
}

TEST(SpecParser, SilentPartsAreF16AndNone) {
  for (const char* spec : {"none", "none | tail=0", "| tail=0", "tail=0", "kv=f16"}) {
    const Result<SpecSyntax> syntax = ParseSpec(spec);
    ASSERT_TRUE(syntax.ok()) << syntax.message();
    EXPECT_FALSE(syntax->evict.has_value()) << spec;
    EXPECT_EQ(ChainText(syntax->store.key), "f16") << spec;
    EXPECT_EQ(ChainText(syntax->store.value), "f16") << spec;
  }
}

TEST(SpecParser, EveryKindOfValueKeepsItsText) {
  const Result<SpecCall> call = ParseCall(
      " stage ( words = top_k , n=-3, x=1e-05, share=12.5%, size=64MiB, pool = max : 7,"
      " recent = budget / 8, protect = [ 1 .. 2 , 40..50 ], split = adaptive( floor = 0.2 ),"
      " sym, 0.9 * window_attention( window = 8 ), key_norm )");
  ASSERT_TRUE(call.ok()) << call.message();
  EXPECT_EQ(call->ToString(),
            "stage(words=top_k,n=-3,x=1e-05,share=12.5%,size=64MiB,pool=max:7,recent=budget/8,"
            "protect=[1..2,40..50],split=adaptive(floor=0.2),sym,0.9*window_attention(window=8),"
            "key_norm)");
}

TEST(SpecParser, ColumnsPointAtKeysAndValues) {
  const Result<SpecSyntax> syntax = ParseSpec("snapkv( budget = 512,sym )");
  ASSERT_TRUE(syntax.ok()) << syntax.message();
  const SpecCall& call = *syntax->evict;
  EXPECT_EQ(call.column, 1);
  EXPECT_EQ(call.args[0].key_column, 9);
  EXPECT_EQ(call.args[0].value_column, 18);
  EXPECT_EQ(call.args[1].key_column, 22);
  EXPECT_TRUE(call.args[1].is_word());
}

TEST(SpecParser, TurboWithADigitIsTurboWithBits) {
  for (const char digit : {'1', '2', '3', '4', '5'}) {
    const Result<std::vector<SpecCall>> chain = ParseChain(std::string("center+turbo") + digit);
    ASSERT_TRUE(chain.ok());
    EXPECT_EQ(ChainText(*chain), std::string("center+turbo(bits=") + digit + ")");
  }
  EXPECT_EQ(ChainText(*ParseChain("turbo4(seed=7)")), "turbo(bits=4,seed=7)");
  EXPECT_EQ(ChainText(*ParseChain("turbo6")), "turbo6");  // the registry refuses it
}

TEST(SpecParser, AnOverrideTakesItsSilentSideFromTheMainStore) {
  const Result<SpecSyntax> syntax =
      ParseSpec("none | layers(0..1)={k=f16} | k=int8, v=int4(group=32)");
  ASSERT_TRUE(syntax.ok()) << syntax.message();
  ASSERT_EQ(syntax->overrides.size(), 1U);
  EXPECT_EQ(ChainText(syntax->overrides[0].store.key), "f16");
  EXPECT_EQ(ChainText(syntax->overrides[0].store.value), "int4(group=32)");
}

TEST(SpecParser, WhiteSpaceIsFree) {
  const Result<SpecSyntax> syntax = ParseSpec(
      "\t snapkv\n( budget = 25% ) |\r\n k = center + turbo4 , v = int8 , tail = 64 |"
      " layers ( 0 .. 1 , -2 .. -1 ) = { kv = f16 } | exact_sinks = 2 | nonfinite = zero ");
  ASSERT_TRUE(syntax.ok()) << syntax.message();
  EXPECT_EQ(ChainText(syntax->store.key), "center+turbo(bits=4)");
  EXPECT_EQ(syntax->tail, 64);
  EXPECT_EQ(syntax->exact_sinks, 2);
  EXPECT_EQ(syntax->nonfinite, NonFinitePolicy::kZero);
  ASSERT_EQ(syntax->overrides[0].ranges.size(), 2U);
  EXPECT_EQ(syntax->overrides[0].ranges[1].first, -2);
  EXPECT_EQ(syntax->overrides[0].ranges[1].last, -1);
}

TEST(SpecParser, SixteenLevelsOfParenthesesAreEnough) {
  std::string spec;
  for (int i = 0; i < kMaxSpecNesting; ++i) spec += "a(";
  spec += 'a' + std::string(kMaxSpecNesting, ')');
  EXPECT_TRUE(ParseSpec(spec).ok());
}

}  // namespace
}  // namespace kvsieve
