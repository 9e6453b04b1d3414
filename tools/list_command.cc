// kvsieve list [--json]
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "kvsieve/codec.h"
#include "kvsieve/evict.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/recommendation.h"
#include "kvsieve/targets.h"
#include "tools/context.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

struct ListCommand {
  bool json = false;
};

struct Group {
  const char* title;
  const char* json_key;
  std::span<const StageInfo> infos;
};

constexpr int kTextWidth = 76;
constexpr double kF16Bits = 16;

void PrintText(std::string name, const char* indent, const std::string& text) {
  for (const std::string& line : Wrap(text, kTextWidth)) {
    std::printf("  %-20s %s%s\n", name.c_str(), indent, line.c_str());
    name.clear();
  }
}

void PrintGroup(const Group& group) {
  std::printf("%s\n", group.title);
  for (const StageInfo& info : group.infos) {
    PrintText(std::string(info.name), "", std::string(info.summary));
    if (!info.options.empty()) PrintText("", "  ", std::string(info.options));
  }
  std::printf("\n");
}

void PrintAdvice(std::string_view spec, std::string_view why) {
  std::printf("      %.*s\n", static_cast<int>(spec.size()), spec.data());
  for (const std::string& line : Wrap(std::string(why), kTextWidth)) {
    std::printf("      %s\n", line.c_str());
  }
}

void PrintRecommendations() {
  std::printf("which to take (measured: docs/choosing.md)\n");
  for (const Recommendation& one : Recommendations()) {
    std::printf("  %.*s\n", static_cast<int>(one.when.size()), one.when.data());
    PrintAdvice(one.spec, one.why);
  }
  std::printf("\nwhich store to take at which size (measured: docs/storage.md)\n");
  for (const StorageRecommendation& one : StorageRecommendations()) {
    std::printf("  %.3f bits a value at dim 128, 1/%.1f of f16\n", one.bits, kF16Bits / one.bits);
    PrintAdvice(one.spec, one.why);
  }
  std::printf("\n");
}

nlohmann::ordered_json RecommendationsJson() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Recommendation& one : Recommendations()) {
    out.push_back({{"when", one.when}, {"spec", one.spec}, {"why", one.why}});
  }
  return out;
}

nlohmann::ordered_json StorageRecommendationsJson() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const StorageRecommendation& one : StorageRecommendations()) {
    out.push_back({{"bits", one.bits}, {"spec", one.spec}, {"why", one.why}});
  }
  return out;
}

void PrintTargets() {
  std::printf("SIMD targets (best first)\n");
  for (const std::string_view name : SupportedTargets()) {
    std::printf("  %.*s%s\n", static_cast<int>(name.size()), name.data(),
                name == ActiveTarget() ? "  <- active" : "");
  }
}

nlohmann::ordered_json GroupJson(const Group& group) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const StageInfo& info : group.infos) {
    out.push_back({{"name", info.name},
                   {"summary", info.summary},
                   {"formula", info.formula},
                   {"options", info.options}});
  }
  return out;
}

Status RunList(Context&, const ListCommand& command) {
  const Group groups[] = {
      {"evict stages", "evictors", EvictorInfos()},
      {"evict stages that plan how each row is stored", "planners", PlannerInfos()},
      {"presets: evict stages as other systems have them", "presets", PresetInfos()},
      {"storage presets: whole sections of a spec", "storage_presets", StoragePresetInfos()},
      {"codecs", "codecs", CodecInfos()},
      {"transforms", "transforms", TransformInfos()}};
  if (!command.json) {
    for (const Group& group : groups) PrintGroup(group);
    PrintRecommendations();
    PrintTargets();
    return {};
  }
  nlohmann::ordered_json out;
  for (const Group& group : groups) out[group.json_key] = GroupJson(group);
  out["recommended"] = RecommendationsJson();
  out["recommended_stores"] = StorageRecommendationsJson();
  out["targets"] = SupportedTargets();
  out["active_target"] = ActiveTarget();
  std::printf("%s\n", out.dump(1).c_str());
  return {};
}

}  // namespace

void AddList(CLI::App& app, Context& context) {
  auto options = std::make_shared<ListCommand>();
  CLI::App* command =
      AddCommand(app, context, "list", "Evict stages, presets, codecs, transforms and SIMD targets",
                 options, RunList);
  command->add_flag("--json", options->json, "Print JSON");
}

}  // namespace kvsieve::tools
