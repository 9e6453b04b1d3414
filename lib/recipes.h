// Plans with a name, by how much smaller than f16 they make a cache: best(8x).
#ifndef KVSIEVE_LIB_RECIPES_H_
#define KVSIEVE_LIB_RECIPES_H_

#include <string>
#include <string_view>

#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"

namespace kvsieve {

inline constexpr std::string_view kRecipe = "best";

// The spec that `best(8x)` stands for. Errors point at the call.
Result<std::string> ExpandRecipe(const SpecCall& call);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_RECIPES_H_
