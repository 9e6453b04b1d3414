// What an evictor's spec means: defaults, canonical form, errors.
#include <gtest/gtest.h>

#include <utility>

#include "kvsieve/evict.h"
#include "kvsieve/str_cat.h"
#include "tests/evict/fixtures.h"

namespace kvsieve {
namespace {

using testing::Canonical;
using testing::ErrorOf;
using testing::MustMake;

TEST(EvictSpec, WritesEveryDefaultOut) {
  EXPECT_EQ(Canonical("snapkv(budget=512)"),
            "window_attention(window=32,queries=mean,group=mean,pool=max:7,pool_pad=exclude,"
            "scope=kv_head,causal=true,budget=512,split=uniform,sinks=4,recent=0,"
            "protect_window=true,min_tokens=0,over_budget=protected,ties=low,select=top_k)");
  EXPECT_EQ(Canonical("recency(budget=12.5%,sinks=4)"),
            "recency(budget=12.5%,split=uniform,sinks=4,recent=0,protect_window=true,min_tokens=0,"
            "over_budget=protected,ties=low,select=top_k)");
  EXPECT_EQ(Canonical("random(seed=18446744073709551615,budget=9)")
                .find("random(seed=18446744073709551615,budget=9,"),
            0U);
}

TEST(EvictSpec, CanonicalFormsParseToThemselves) {
  for (const char* spec : {
           "snapkv(budget=512)",
           "snapkv(budget=25%,window=16,sinks=0,recent=budget/8,pool=none)",
           "window_attention(budget=0.000000001%,queries=max,group=sum,pool=avg:5,pool_pad=zero)",
           "output_perturbation(budget=33.333333333%,scope=model,causal=false,ties=high)",
           "window_attention(budget=64,scope=layer,protect=[4..9],protect_window=false)",
           "recency(budget=100%,recent=7,protect=[4..9,20..30],min_tokens=99)",
           "random(seed=9,budget=2,over_budget=budget,select=top_k,split=uniform)",
           "snapkv(budget=64MiB,split=pyramid,select=chunk:16,recent=10%)",
           "snapkv(budget=1.5kB,split=adaptive(floor=0.25,scope=model),select=top_p:0.95)",
           "snapkv(budget=7.5x,split=pyramid(beta=3.5),select=block:64)",
           "recency(budget=auto,split=adaptive,select=threshold:-1e-07)",
           "key_proxy(budget=64,causal=false,pool=none,window=16,queries=max)",
           "key_norm(budget=64,pool=avg:3,scope=layer)",
           "key_diff(budget=64)",
           "lag(budget=64,lag=16,across=score,scope=model)",
           "expected_attention(budget=64,window=8,group=max,pool=max:3,pool_pad=zero)",
           "external(budget=64)",
           "key_proxy(budget=64,select=top_p:0.9)",
           "expected_attention(budget=64,select=top_p:0.9)",
           "mix(0.9*snapkv(window=8),0.1*key_norm(pool=max:3),budget=64)",
           "mix(0.00001*recency,12345.678*lag,budget=64,scope=layer)",
           "mix(1*snapkv,2*output_perturbation,budget=64,select=top_p:0.9)",
       }) {
    const std::string canonical = Canonical(spec);
    EXPECT_EQ(Canonical(canonical), canonical) << spec;
  }
}

TEST(EvictSpec, SizesAndNumbersHaveOneForm) {
  for (const auto& [typed, canonical] : std::initializer_list<std::pair<const char*, const char*>>{
           {"budget=65536kB", "budget=64000KiB"},
           {"budget=1.5MiB", "budget=1536KiB"},
           {"budget=0.5GiB", "budget=512MiB"},
           {"budget=1001B", "budget=1001B"},
           {"budget=8.0x", "budget=8x"},
           {"budget=auto", "budget=auto"},
           {"budget=9%,split=pyramid", "split=pyramid(beta=20)"},
           {"budget=9%,split=adaptive", "split=adaptive(floor=0.2,scope=layer)"},
           {"budget=9%,select=top_p:0.90", "select=top_p:0.9"},
           {"budget=9%,recent=5.0%", "recent=5%"},
       }) {
    const std::string spec = std::string("snapkv(") + typed + ")";
    EXPECT_NE(Canonical(spec).find(canonical), std::string::npos) << Canonical(spec);
  }
}

TEST(EvictSpec, StatesWhatItNeeds) {
  EXPECT_EQ(MustMake("snapkv(budget=10%)")->needs().window_queries, 32);
  EXPECT_FALSE(MustMake("snapkv(budget=10%)")->needs().values);
  EXPECT_TRUE(MustMake("output_perturbation(budget=10%,window=8)")->needs().values);
  EXPECT_EQ(MustMake("recency(budget=9)")->needs().window_queries, 0);
  EXPECT_EQ(MustMake("key_proxy(budget=10%,window=8)")->needs().window_queries, 0);
  EXPECT_EQ(MustMake("key_proxy(budget=10%,window=8)")->needs().window(), 8);
  const ScorerNeeds mixed =
      MustMake("mix(1*snapkv(window=8),1*key_proxy(window=9),2*lag,1*external,budget=10%)")
          ->needs();
  EXPECT_EQ(mixed.window_queries, 8);
  EXPECT_EQ(mixed.window_keys, 9);
  EXPECT_TRUE(mixed.values && mixed.external_scores);
}

struct BadSpec {
  const char* spec;
  const char* message;  // a part of it
};

TEST(EvictSpec, MistakesNameTheColumnAndTheWayOut) {
  for (const BadSpec& bad : std::initializer_list<BadSpec>{
           {"snapkv", "column 1: snapkv needs a budget"},
           {"snapkw(budget=9)", "column 1: unknown evict stage 'snapkw' (did you mean snapkv?)"},
           {"snapkv(budget=512,windw=3)",
            "column 19: unknown option 'windw' of snapkv (did you mean window?)"},
           {"snapkv(budget=512,budget=9)", "column 19: option 'budget' of snapkv is given twice"},
           {"snapkv(budget=512,fast)", "column 19: unknown option 'fast'"},
           {"snapkv(budget=512,seed=1)", "unknown option 'seed'"},
           {"recency(budget=512,window=8)", "unknown option 'window'"},
           {"random(budget=512,pool=none)", "unknown option 'pool'"},
           {"key_proxy(budget=512,group=max)", "column 22: unknown option 'group' of key_proxy"},
           {"mix(budget=512)", "column 1: mix needs terms, such as"},
           {"mix(key_norm,budget=512)",
            "column 5: 'key_norm' is not a term of mix: write 1*key_norm"},
           {"mix(0*key_norm,budget=512)", "column 5: weight '0' is not a number in ["},
           {"mix(-1*key_norm,budget=512)", "column 5: weight '-1' is not a number in ["},
           {"mix(x*key_norm,budget=512)", "column 5: weight 'x' is not a number in ["},
           {"mix(1*key_nrom,budget=512)",
            "column 7: unknown evict stage 'key_nrom' (did you mean key_norm?)"},
           {"mix(1*mix(1*lag),budget=512)", "column 7: a mix cannot be a term of a mix"},
           {"mix(1*waterfill,budget=512)", "column 7: waterfill scores no rows, and cannot be"},
           {"mix(1*key_norm(window=3),budget=512)", "unknown option 'window' of key_norm"},
           {"mix(1*key_norm(budget=9),budget=512)", "unknown option 'budget' of key_norm"},
           {"mix(1*snapkv(scope=layer),budget=512)",
            "column 7: option scope stands after the terms of mix"},
           {"mix(1*snapkv,budget=20)", "budget 20 is smaller than sinks 4 + window 32"},
           {"lag(budget=512,lag=1)", "option lag: 1 is outside [2, 65536]"},
           {"lag(budget=512,across=all)", "option across: unknown value 'all'"},
           {"lag(budget=512,pool=none)", "unknown option 'pool' of lag"},
           {"expected_attention(budget=512,queries=max)", "unknown option 'queries'"},
           {"key_norm(budget=512,window=8)", "unknown option 'window' of key_norm"},
           {"snapkv(budget=0)", "column 15: option budget: 0 rows is outside"},
           {"snapkv(budget=-5)", "column 15: option budget: -5 rows is outside"},
           {"snapkv(budget=0%)", "outside (0, 100]"},
           {"snapkv(budget=100.1%)", "outside (0, 100]"},
           {"snapkv(budget=nan%)", "not a percentage"},
           {"snapkv(budget=nan)", "neither rows (512) nor a percentage (25%)"},
           {"snapkv(budget=64XiB)", "column 15: option budget: '64XiB' is not a size with a unit"},
           {"snapkv(budget=0.25)", "neither rows"},
           {"snapkv(budget=512(3))", "takes no arguments"},
           {"snapkv(budget=-1x)", "not a positive factor"},
           {"snapkv(budget=99999999999999999999)", "too large, the limit is 2147483647"},
           {"snapkv(budget=99999999999)", "outside [1, 2147483647]"},
           {"snapkv(budget=25%,sinks=-1)", "option sinks: -1 is outside"},
           {"snapkv(budget=25%,sinks=many)", "option sinks: 'many' is not an integer"},
           {"snapkv(budget=25%,window=0)", "option window: 0 is outside [1, 65536]"},
           {"snapkv(budget=25%,pool=max:8)", "'8' is not an odd number"},
           {"snapkv(budget=25%,pool=max:0)", "'0' is not an odd number"},
           {"snapkv(budget=25%,pool=7)", "option pool: '7' is none of"},
           {"snapkv(budget=25%,pool=none,pool_pad=zero)", "means nothing with pool=none"},
           {"snapkv(budget=25%,queries=median)", "option queries: unknown value 'median'"},
           {"snapkv(budget=25%,scope=head)", "option scope: unknown value 'head'"},
           {"snapkv(budget=25%,causal=yes)", "option causal: unknown value 'yes'"},
           {"snapkv(budget=25%,recent=budget/4)",
            "neither a number of rows nor a percentage (10%) nor budget/8"},
           {"snapkv(budget=25%,recent=0%)", "option recent: "},
           {"snapkv(budget=25%,protect=4..9)", "not a range such as [4..9]"},
           {"snapkv(budget=25%,protect=[4.9])", "not a range such as 4..9"},
           {"snapkv(budget=25%,protect=[9..4])", "0 <= a <= b"},
           {"snapkv(budget=25%,protect=[])", "not a range"},
           {"snapkv(budget=25%,ties=first)", "option ties: unknown value 'first'"},
           {"snapkv(budget=25%,over_budget=error)", "option over_budget: unknown value 'error'"},
           {"snapkv(budget=25%,split=even)", "option split: unknown value 'even'"},
           {"snapkv(budget=25%,split=pyramid(bta=3))", "unknown option 'bta'"},
           {"snapkv(budget=25%,split=pyramid(beta=0.5))", "option beta: 0.5 is outside [1, "},
           {"snapkv(budget=25%,split=adaptive(floor=1.1))", "option floor: 1.1 is outside [0, 1]"},
           {"snapkv(budget=25%,split=adaptive(floor=1e-70))",
            "option floor: 1e-70 is neither 0 nor at least 1e-09"},
           {"snapkv(budget=25%,split=adaptive(scope=head))", "option scope: unknown value 'head'"},
           {"snapkv(budget=25%,split=uniform(3))", "column 33: unknown option '3' of uniform"},
           {"snapkv(budget=25%,select=top_p)", "needs a number"},
           {"snapkv(budget=25%,select=chunk:0)",
            "option select: 0 rows is outside [1, 2147483647]"},
           {"snapkv(budget=25%,select=block:x)", "'block:x' needs a number: block:16"},
           {"snapkv(budget=25%,select=top_p:1.5)", "top_p 1.5 is outside (0, 1]"},
           {"snapkv(budget=25%,select=top_p:0)", "top_p 0 is outside (0, 1]"},
           {"snapkv(budget=25%,select=threshold:nan)", "needs a number: threshold:0.9"},
           {"snapkv(budget=25%,select=top_k:4)", "unknown value 'top_k:4'"},
           {"snapkv(budget=25%,select=best)", "option select: unknown value 'best'"},
           {"random(budget=25%,seed=-1)", "not an integer in [0, 2^64)"},
       }) {
    const Error error = ErrorOf(bad.spec);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << bad.spec;
    EXPECT_NE(error.message.find(bad.message), std::string::npos)
        << bad.spec << "\n  says: " << error.message << "\n  want: " << bad.message;
    EXPECT_EQ(error.message.find("column "), 0U) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
  }
}

TEST(EvictSpec, StagesThatCannotWorkTogetherSayWhy) {
  for (const BadSpec& bad : std::initializer_list<BadSpec>{
           {"snapkv(budget=25%,scope=layer,split=adaptive)",
            "column 37: option split: adaptive gives each head its own rows"},
           {"snapkv(budget=25%,scope=model,split=adaptive(scope=model))",
            "option split: adaptive gives each head its own rows"},
           {"snapkv(budget=25%,scope=model,split=pyramid)",
            "option split: pyramid gives each layer its own rows"},
           {"recency(budget=25%,select=top_p:0.9)",
            "column 27: option select: top_p adds scores up, but those of recency"},
           {"random(budget=25%,select=top_p:0.9)", "are no shares of a whole"},
           {"mix(1*snapkv,1*key_norm,budget=25%,select=top_p:0.9)", "those of mix are no shares"},
       }) {
    const Error error = ErrorOf(bad.spec);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << bad.spec;
    EXPECT_NE(error.message.find(bad.message), std::string::npos) << error.message;
  }
}

TEST(EvictSpec, AConstantBudgetHoldsItsProtectedRowsOrSaysWhatElse) {
  EXPECT_EQ(ErrorOf("snapkv(budget=16)").message,
            "column 15: budget 16 is smaller than sinks 4 + window 32 (option budget); raise it, "
            "or write budget=16%");
  EXPECT_EQ(ErrorOf("snapkv(budget=60,recent=57)").message,
            "column 15: budget 60 is smaller than sinks 4 + recent 57 (option budget); raise it, "
            "or write budget=60%");
  EXPECT_EQ(ErrorOf("recency(budget=3)").message,
            "column 16: budget 3 is smaller than sinks 4 (option budget); raise it, or write "
            "budget=3%");
  for (const char* spec : {"snapkv(budget=36)", "snapkv(budget=16,over_budget=budget)",
                           "snapkv(budget=16,over_budget=protected)", "snapkv(budget=1%)",
                           "snapkv(budget=16,protect_window=false)", "recency(budget=4)"}) {
    EXPECT_NE(MustMake(spec), nullptr);
  }
}

TEST(EvictSpec, EveryStageIsDescribed) {
  ASSERT_FALSE(EvictorInfos().empty());
  for (const StageInfo& info : EvictorInfos()) {
    EXPECT_FALSE(info.summary.empty());
    EXPECT_FALSE(info.formula.empty());
    EXPECT_NE(info.options.find("budget="), std::string_view::npos);
    const std::string terms = info.name == "mix" ? "1*recency," : "";
    EXPECT_NE(MustMake(StrCat(info.name, "(", terms, "budget=50%)")), nullptr);
  }
}

}  // namespace
}  // namespace kvsieve
