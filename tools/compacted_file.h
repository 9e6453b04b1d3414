// The files that `kvsieve compact` writes, as `kvsieve inspect` shows them.
#ifndef KVSIEVE_TOOLS_COMPACTED_FILE_H_
#define KVSIEVE_TOOLS_COMPACTED_FILE_H_

#include <string>

namespace kvsieve::tools {

// Prints rows and dimensions per layer and returns true when `path` is such a file: safetensors
// with positions, tiers, k and v of each layer.{i}.head.{h} and nothing else. Prints nothing
// otherwise.
bool PrintCompactedFile(const std::string& path);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_COMPACTED_FILE_H_
