// Saved caches in files.
//
//   SaveCache(*cache, "model 7b, system prompt 3", "prefix.kvs");
//   auto cache = LoadCache("prefix.kvs", "model 7b, system prompt 3", {});
#ifndef KVSIEVE_EVAL_STATE_FILE_H_
#define KVSIEVE_EVAL_STATE_FILE_H_

#include <optional>
#include <string>
#include <string_view>

#include "kvsieve/cache.h"
#include "kvsieve/result.h"
#include "kvsieve/saved_state.h"

namespace kvsieve::eval {

// Writes to a temporary name, then renames: the file is complete, on the disk, or as it was.
Status SaveCache(const Cache& cache, std::string_view identity, const std::string& path);

// Cache::FromState and Cache::Load of a file. Errors name it; a file that cannot be read leaves
// the cache as it was.
Result<Cache> LoadCache(const std::string& path, std::optional<std::string_view> identity,
                        const CacheOptions& options);
Status LoadCache(const std::string& path, std::optional<std::string_view> identity, Cache& cache);

// The head alone.
Result<StateInfo> ReadStateInfo(const std::string& path);

// Whether the file can be read and begins as a saved cache does.
bool IsSavedCache(const std::string& path);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_STATE_FILE_H_
