#include "lib/spec_names.h"

#include <algorithm>

#include "kvsieve/codec.h"
#include "kvsieve/evict.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// The vocabulary of docs/specs.md beyond what the registries build. A registry that learns a name
// wins over these lists.
constexpr std::string_view kPlannedEvictors[] = {
    "key_proxy",          "key_norm",         "key_diff", "lag",
    "expected_attention", "external",         "mix",      "waterfill",
    "snapkv_paper",       "snapkv_reference", "snapkv_d", "velox_snapkv",
    "sharp_snapkv",       "kvpress_snapkv",
};
constexpr std::string_view kPlannedCodecs[] = {"bf16",    "fp8",  "int3", "int2",
                                               "channel", "q8_0", "q4_0"};
constexpr std::string_view kPlannedTransforms[] = {"channel_scale"};
constexpr std::string_view kStoragePresets[] = {"k8v4",    "4bit_nc", "k3v4_nc",
                                                "3bit_nc", "kivi2",   "kivi4"};

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsEvictor(std::string_view name) {
  return FindStage(EvictorInfos(), name) != nullptr || Contains(kPlannedEvictors, name);
}

bool IsCodec(std::string_view name) {
  return FindStage(CodecInfos(), name) != nullptr || Contains(kPlannedCodecs, name);
}

}  // namespace

Status NotAvailable(int column, std::string_view what) {
  return Status::Unsupported(
      StrCat("column ", column, ": ", what, " is not available in this version"));
}

Status CheckEvictName(const SpecCall& call) {
  if (FindStage(EvictorInfos(), call.name) != nullptr) return Status::Ok();
  if (Contains(kPlannedEvictors, call.name)) {
    return NotAvailable(call.column, StrCat("evict stage ", call.name));
  }
  if (IsCodec(call.name)) {
    return SpecError(call.column, StrCat("'", call.name,
                                         "' is a codec, not an evict stage: write kv=", call.name));
  }
  return Status::Ok();
}

Status CheckChainName(const SpecCall& call) {
  if (FindStage(CodecInfos(), call.name) != nullptr) return Status::Ok();
  if (FindStage(TransformInfos(), call.name) != nullptr) return Status::Ok();
  if (Contains(kPlannedCodecs, call.name)) {
    return NotAvailable(call.column, StrCat("codec ", call.name));
  }
  if (Contains(kPlannedTransforms, call.name)) {
    return NotAvailable(call.column, StrCat("transform ", call.name));
  }
  if (IsStoragePreset(call.name)) {
    return SpecError(call.column,
                     StrCat("'", call.name, "' is a storage preset: it stands alone as a section"));
  }
  return Status::Ok();
}

bool IsStoragePreset(std::string_view name) { return Contains(kStoragePresets, name); }

Status MisplacedSection(int column, std::string_view name) {
  if (IsStoragePreset(name)) return NotAvailable(column, StrCat("storage preset ", name));
  if (name == "none" || IsEvictor(name)) {
    return SpecError(column, StrCat("evict stage '", name, "' must come first in the spec"));
  }
  if (IsCodec(name)) {
    return SpecError(column, StrCat("'", name, "' is a codec: write kv=", name));
  }
  return SpecError(column, StrCat("unknown section '", name, "'", Suggest(name, kStoragePresets)));
}

const StageInfo* FindStage(std::span<const StageInfo> infos, std::string_view name) {
  const auto found = std::find_if(infos.begin(), infos.end(),
                                  [name](const StageInfo& info) { return info.name == name; });
  return found == infos.end() ? nullptr : &*found;
}

}  // namespace kvsieve
