#include "lib/spec_names.h"

#include <algorithm>

#include "kvsieve/codec.h"
#include "kvsieve/evict.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/str_cat.h"
#include "lib/recipes.h"

namespace kvsieve {
namespace {

// vLLM's --kv-cache-dtype turboquant_*: bytes of a key and a value at dim 128 are theirs. KIVI's
// group of 32 and residual of 128 are those of its paper (arXiv:2402.02750).
constexpr StageInfo kStoragePresets[] = {
    {"k8v4", "vLLM's, 196 bytes a row at dim 128: k=fp8, v=int4(group=row)",
     "k=fp8, v=int4(group=row)", ""},
    {"4bit_nc", "vLLM's, 134 bytes a row at dim 128: k=turbo4, v=int4(group=row)",
     "k=turbo4, v=int4(group=row)", ""},
    {"k3v4_nc", "vLLM's, 118 bytes a row at dim 128: k=turbo3, v=int4(group=row)",
     "k=turbo3, v=int4(group=row)", ""},
    {"3bit_nc", "vLLM's, 102 bytes a row at dim 128: k=turbo3, v=int3(group=row)",
     "k=turbo3, v=int3(group=row)", ""},
    {"kivi2",
     "KIVI's, 96 bytes a row at dim 128: 2 bits, keys per channel, the last 128 rows exact",
     "k=channel(bits=2,group=32), v=int2(group=32) | tail=128 | exact_sinks=0", ""},
    {"kivi4",
     "KIVI's, 160 bytes a row at dim 128: 4 bits, keys per channel, the last 128 rows exact",
     "k=channel(bits=4,group=32), v=int4(group=32) | tail=128 | exact_sinks=0", ""}};

// Short forms too, as turbo4 of turbo.
bool IsCodec(std::string_view name) {
  const std::string_view stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
  return FindStage(CodecInfos(), name) != nullptr || FindStage(CodecInfos(), stem) != nullptr;
}

Status CodecWithoutSide(int column, std::string_view name) {
  return SpecError(column, StrCat("'", name, "' is a codec: write kv=", name));
}

}  // namespace

const StageInfo* FindStage(std::span<const StageInfo> infos, std::string_view name) {
  for (const StageInfo& info : infos) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::span<const StageInfo> StoragePresetInfos() { return kStoragePresets; }

std::vector<std::string_view> StoragePresetNames() {
  std::vector<std::string_view> names;
  for (const StageInfo& preset : kStoragePresets) names.push_back(preset.name);
  return names;
}

bool IsStoragePreset(std::string_view name) { return FindStage(kStoragePresets, name) != nullptr; }

Status CheckEvictPlace(const SpecCall& call) {
  if (IsCodec(call.name)) return CodecWithoutSide(call.column, call.name);
  return Status::Ok();
}

Status CheckSectionPlace(int column, std::string_view name) {
  if (IsStoragePreset(name)) {
    return SpecError(column, StrCat(name, " is a whole section: put it behind a '|' of its own"));
  }
  if (IsCodec(name)) return CodecWithoutSide(column, name);
  if (name == "none" || name == kRecipe || FindStage(EvictorInfos(), name) != nullptr ||
      FindStage(PlannerInfos(), name) != nullptr) {
    return SpecError(column, StrCat("evict stage '", name, "' must come first in the spec"));
  }
  return Status::Ok();
}

Status CheckEvictName(const SpecCall& call) {
  std::vector<std::string_view> known = {kRecipe};
  for (const auto infos : {EvictorInfos(), PlannerInfos(), PresetInfos()}) {
    if (FindStage(infos, call.name) != nullptr) return Status::Ok();
    for (const StageInfo& info : infos) known.push_back(info.name);
  }
  return SpecError(call.column,
                   StrCat("unknown evict stage '", call.name, "'", Suggest(call.name, known)));
}

}  // namespace kvsieve
