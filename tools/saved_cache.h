// Saved caches, as `kvsieve inspect` shows them.
#ifndef KVSIEVE_TOOLS_SAVED_CACHE_H_
#define KVSIEVE_TOOLS_SAVED_CACHE_H_

#include <string>

#include "kvsieve/result.h"

namespace kvsieve::tools {

// Loads all of it, which is the check, and prints what it holds.
Status PrintSavedCache(const std::string& path);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_SAVED_CACHE_H_
