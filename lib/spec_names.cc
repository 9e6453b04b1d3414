#include "lib/spec_names.h"

#include <algorithm>

#include "kvsieve/codec.h"
#include "kvsieve/evict.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

constexpr std::string_view kStoragePresets[] = {"k8v4",    "4bit_nc", "k3v4_nc",
                                                "3bit_nc", "kivi2",   "kivi4"};

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

Status NotAvailable(int column, std::string_view what) {
  return Status::Unsupported(
      StrCat("column ", column, ": ", what, " is not available in this version"));
}

std::span<const std::string_view> StoragePresets() { return kStoragePresets; }

bool IsStoragePreset(std::string_view name) {
  return std::find(std::begin(kStoragePresets), std::end(kStoragePresets), name) !=
         std::end(kStoragePresets);
}

Status CheckEvictPlace(const SpecCall& call) {
  if (FindStage(CodecInfos(), call.name) != nullptr) {
    return CodecWithoutSide(call.column, call.name);
  }
  return Status::Ok();
}

Status CheckSectionPlace(int column, std::string_view name) {
  if (IsStoragePreset(name)) return NotAvailable(column, StrCat("storage preset ", name));
  if (FindStage(CodecInfos(), name) != nullptr) return CodecWithoutSide(column, name);
  if (name == "none" || FindStage(EvictorInfos(), name) != nullptr) {
    return SpecError(column, StrCat("evict stage '", name, "' must come first in the spec"));
  }
  return Status::Ok();
}

}  // namespace kvsieve
