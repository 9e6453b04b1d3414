#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/eval/compare.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

constexpr std::string_view kCentredTurbo[] = {
    "k=center+turbo5, v=turbo5", "k=center+turbo4, v=turbo4", "k=center+turbo3, v=turbo3",
    "k=center+turbo2, v=turbo2"};

// Storage alone, then eviction alone, then both, then plans; each family from large to small.
std::vector<std::string> QuickSpecs() {
  return {"none | kv=f16",
          "none | kv=int8",
          "none | k=int8, v=int4",
          "none | kv=int4",
          "none | kv=hadamard+int4",
          "none | kv=turbo5",
          "none | kv=turbo4",
          "none | kv=turbo3",
          "none | kv=turbo2",
          "none | kv=turbo1",
          "none | k=center+turbo4, v=turbo4",
          "none | k=center+turbo3, v=turbo3",
          "none | k=center+turbo2, v=turbo2",
          "random(budget=25%)",
          "recency(budget=25%)",
          "output_perturbation(budget=25%)",
          "snapkv(budget=50%)",
          "snapkv(budget=25%)",
          "snapkv(budget=10%)",
          "snapkv(budget=25%) | kv=int8",
          "snapkv(budget=50%) | k=center+turbo4, v=turbo4",
          "snapkv(budget=25%) | k=center+turbo4, v=turbo4",
          "snapkv(budget=10%) | k=center+turbo4, v=turbo4",
          "best(4x)",
          "best(8x)",
          "best(16x)"};
}

// The quick grid, then every evict stage at five budgets, with five stores where it is worth it.
std::vector<std::string> FullSpecs() {
  std::vector<std::string> specs = QuickSpecs();
  for (const std::string_view store : kCentredTurbo) specs.push_back(StrCat("none | ", store));
  for (const int percent : {75, 50, 25, 10, 5}) {
    specs.push_back(StrCat("random(budget=", percent, "%)"));
    specs.push_back(StrCat("recency(budget=", percent, "%)"));
    for (const std::string_view options : {"snapkv(budget=", "output_perturbation(budget=",
                                           "output_perturbation(pool=none,budget="}) {
      const std::string evict = StrCat(options, percent, "%)");
      specs.push_back(evict);
      specs.push_back(StrCat(evict, " | kv=int8"));
      specs.push_back(StrCat(evict, " | kv=int4"));
      for (const std::string_view store : kCentredTurbo) {
        specs.push_back(StrCat(evict, " | ", store));
      }
    }
  }
  return specs;
}

}  // namespace

std::vector<std::string> GridSpecs(Grid grid) {
  return grid == Grid::kQuick ? QuickSpecs() : FullSpecs();
}

}  // namespace kvsieve::eval
