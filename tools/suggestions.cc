#include "tools/suggestions.h"

#include <algorithm>
#include <string_view>

#include "kvsieve/pipeline.h"
#include "kvsieve/recommendation.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::tools {
namespace {

struct Measured {
  std::string_view spec;
  double error;
};
// Of `kvsieve compare data/smollm2-135m-small.safetensors`; a test repeats it.
constexpr Measured kMeasured[] = {
    {"none | kv=f16", 0.0000},
    {"none | k=center+hadamard+int8, v=hadamard+int8 | exact_sinks=4", 0.0025},
    {"none | kv=q8_0", 0.0055},
    {"none | kv=int8", 0.0071},
    {"none | k=center+turbo5, v=turbo4 | exact_sinks=4", 0.0297},
    {"none | k=center+turbo4, v=turbo4 | exact_sinks=4", 0.0390},
    {"none | kivi4", 0.0475},
    {"none | k=center+turbo5, v=turbo3 | exact_sinks=4", 0.0543},
    {"none | k8v4", 0.0606},
    {"none | k=center+turbo4, v=turbo3 | exact_sinks=4", 0.0608},
    {"none | 4bit_nc", 0.0741},
    {"snapkv(budget=50%,pool=max:15) | k=center+turbo4, v=turbo4 | exact_sinks=4", 0.1019},
    {"none | k=center+turbo4, v=turbo2 | exact_sinks=4", 0.1142},
    {"none | k3v4_nc", 0.1175},
    {"best(8x)", 0.1262},
    {"none | k=center+turbo3, v=turbo2 | exact_sinks=4", 0.1299},
    {"none | 3bit_nc", 0.1587},
    {"output_perturbation(budget=25%,pool=none)", 0.1860},
    {"key_diff(budget=50%) | k=center+turbo4, v=turbo4 | exact_sinks=4", 0.2241},
    {"none | k=center+turbo3, v=turbo1 | exact_sinks=4", 0.2451},
    {"none | kivi2", 0.2658}};

constexpr std::string_view kPlain[] = {"none | kv=f16", "none | kv=q8_0", "none | kv=int8"};

std::optional<double> ErrorOf(std::string_view spec) {
  for (const Measured& measured : kMeasured) {
    if (measured.spec == spec) return measured.error;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Suggestion> Suggestions() {
  std::vector<Suggestion> suggestions;
  const auto add = [&](std::string spec) {
    const bool known = std::any_of(suggestions.begin(), suggestions.end(),
                                   [&](const Suggestion& one) { return one.spec == spec; });
    if (known) return;
    const std::optional<double> error = ErrorOf(spec);
    suggestions.push_back({std::move(spec), error});
  };
  for (const std::string_view spec : kPlain) add(std::string(spec));
  for (const Recommendation& one : Recommendations()) add(std::string(one.spec));
  for (const StorageRecommendation& one : StorageRecommendations()) add(std::string(one.spec));
  for (const StageInfo& preset : StoragePresetInfos()) add(StrCat("none | ", preset.name));
  std::stable_sort(suggestions.begin(), suggestions.end(),
                   [](const Suggestion& a, const Suggestion& b) {
                     if (!a.error || !b.error) return a.error.has_value() && !b.error;
                     return *a.error < *b.error;
                   });
  return suggestions;
}

}  // namespace kvsieve::tools
