// Presets: other systems' eviction under their own names. A preset is an evict stage with other
// defaults; every key of that stage may still be given.
#ifndef KVSIEVE_EVICT_PRESETS_H_
#define KVSIEVE_EVICT_PRESETS_H_

#include <span>
#include <string_view>

#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/stage_info.h"

namespace kvsieve::evict {

std::span<const StageInfo> Presets();

// `name` as Presets() holds it; empty when it is no preset.
std::string_view PresetName(std::string_view name);

// The evict stage that `name` gives other defaults to; `name` itself when it is no preset.
std::string_view StageOf(std::string_view name);

// `call` with the arguments that its preset stands for where it gives none itself, and without
// those that only the preset knows. Other calls come back as they are.
Result<SpecCall> CompletePreset(SpecCall call);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_PRESETS_H_
