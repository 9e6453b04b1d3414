// Names that specs are made of, beyond what the registries build, and what to say when a name
// stands in the wrong place.
#ifndef KVSIEVE_LIB_SPEC_NAMES_H_
#define KVSIEVE_LIB_SPEC_NAMES_H_

#include <span>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/stage_info.h"

namespace kvsieve {

// nullptr when the registry has no stage of that name.
const StageInfo* FindStage(std::span<const StageInfo> infos, std::string_view name);

// Whole sections with a name, such as k8v4: those of StoragePresetInfos().
std::vector<std::string_view> StoragePresetNames();
bool IsStoragePreset(std::string_view name);

// Errors for a name that is known, but not here; the ok of a name that nobody knows is left to the
// caller to turn into an error with a suggestion.
Status CheckEvictPlace(const SpecCall& call);
Status CheckSectionPlace(int column, std::string_view name);
// Errors for a name that no evict stage has, with the nearest that one has, best(...) included.
Status CheckEvictName(const SpecCall& call);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SPEC_NAMES_H_
