#include "lib/recipes.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kvsieve/pipeline.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// Tiers for factors up to `most`. The figures behind them are in docs/tiers.md.
struct Recipe {
  double most;
  std::string_view tiers;
};

constexpr double kLeastFactor = 2.5;
constexpr Recipe kRecipes[] = {
    {4.5, "k=center+hadamard+int8, v=turbo5; k=center+turbo5, v=turbo4; k=center+turbo4, v=turbo3"},
    {6,
     "k=center+hadamard+int8, v=turbo5; k=center+turbo5, v=turbo4; k=center+turbo4, v=turbo3; "
     "k=center+turbo3, v=turbo2"},
    {11, "k=center+turbo5, v=turbo4; k=center+turbo4, v=turbo3; k=center+turbo3, v=turbo2"},
    {32, "k=center+turbo4, v=turbo3; k=center+turbo3, v=turbo2"},
};

constexpr std::string_view kOptions = "pool=max:7,level=0.5,floor=0.1,follow=256,follow_weight=0.3";

std::string PlanOf(std::string_view factor, std::string_view tiers) {
  return StrCat("waterfill(budget=", factor, ",", kOptions, ") | tiers=[", tiers, "]");
}

}  // namespace

Result<std::string> ExpandRecipe(const SpecCall& call) {
  const double largest = kRecipes[std::size(kRecipes) - 1].most;
  const auto wrong = [&](int column) {
    return SpecError(column, StrCat("best takes how many times smaller than f16: best(8x), from ",
                                    RealText(kLeastFactor), "x to ", RealText(largest), "x"));
  };
  if (call.args.size() != 1 || !call.args.front().is_word()) return wrong(call.column);
  const SpecArg& arg = call.args.front();
  const std::string_view text = arg.value;
  if (!text.ends_with('x') || !arg.call.empty()) return wrong(arg.value_column);
  const Result<double> factor = ParseReal(text.substr(0, text.size() - 1));
  if (!factor.ok() || *factor < kLeastFactor || *factor > largest) return wrong(arg.value_column);
  const auto* recipe = std::find_if(std::begin(kRecipes), std::end(kRecipes),
                                    [&](const Recipe& one) { return *factor <= one.most; });
  return PlanOf(text, recipe->tiers);
}

}  // namespace kvsieve
