// Names that specs are made of: which of them this version builds, which it only knows of, and
// what to say when one stands in the wrong place.
#ifndef KVSIEVE_LIB_SPEC_NAMES_H_
#define KVSIEVE_LIB_SPEC_NAMES_H_

#include <span>
#include <string_view>

#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/stage_info.h"

namespace kvsieve {

// "column 12: cold(...) is not available in this version", code kUnsupported.
Status NotAvailable(int column, std::string_view what);

// Errors for a name that the grammar's vocabulary has and this version's registries lack, or that
// belongs elsewhere (a codec where an evict stage is due). A name that nobody knows is ok here:
// the factory reports it together with its suggestion.
Status CheckEvictName(const SpecCall& call);
Status CheckChainName(const SpecCall& call);

// True for a storage preset such as k8v4, which is a whole section.
bool IsStoragePreset(std::string_view name);

// What is wrong with `name`, alone in a section after the first.
Status MisplacedSection(int column, std::string_view name);

// nullptr when the registry has no stage of that name.
const StageInfo* FindStage(std::span<const StageInfo> infos, std::string_view name);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SPEC_NAMES_H_
