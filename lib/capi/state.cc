// Calls that save a cache and load it.
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "kvsieve/eval/state_file.h"
#include "lib/capi/args.h"
#include "lib/capi/handles.h"

namespace kvsieve::capi {
namespace {

std::optional<std::string_view> IdentityOf(const char* identity) {
  if (identity == nullptr) return std::nullopt;
  return identity;
}

// Of a cache whose pipeline and layers the state holds.
Result<CacheSettings> ReadRestoreArgs(const kvs_cache_args* given) {
  kvs_cache_args args = {};
  if (given != nullptr) {
    KVS_RETURN_IF_ERROR(ReadArgs("args", given, offsetof(kvs_cache_args, allocator), &args));
  }
  if (args.spec != nullptr || args.layers != nullptr || args.layer_count != 0) {
    return Status::Invalid("args.spec and args.layers come from the state: leave them 0");
  }
  return ReadSettings(args);
}

// load(options) returns the cache.
template <class Load>
kvs_result RunRestore(std::string_view name, const kvs_cache_args* args, kvs_cache** cache,
                      Load&& load) {
  return RunCreate(name, cache, [&]() -> Result<kvs_cache> {
    KVS_ASSIGN_OR_RETURN(CacheSettings settings, ReadRestoreArgs(args));
    KVS_ASSIGN_OR_RETURN(Cache restored, load(settings.options));
    return kvs_cache{std::move(settings.callbacks), std::move(restored)};
  });
}

}  // namespace
}  // namespace kvsieve::capi

namespace capi = kvsieve::capi;
using kvsieve::CacheOptions;
using kvsieve::Result;
using kvsieve::Status;

kvs_result kvs_save(const kvs_cache* cache, const char* identity, const kvs_sink* sink) {
  return capi::Run("kvs_save", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("identity", identity));
    KVS_ASSIGN_OR_RETURN(capi::CallerSink to, capi::CallerSink::Create(sink));
    return cache->cache.Save(identity, to);
  });
}

kvs_result kvs_save_file(const kvs_cache* cache, const char* identity, const char* path) {
  return capi::Run("kvs_save_file", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("identity", identity));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("path", path));
    return kvsieve::eval::SaveCache(cache->cache, identity, path);
  });
}

kvs_result kvs_load(kvs_cache* cache, const char* identity, const kvs_source* source) {
  return capi::Run("kvs_load", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    KVS_ASSIGN_OR_RETURN(capi::CallerSource from, capi::CallerSource::Create(source));
    return cache->cache.Load(from, capi::IdentityOf(identity));
  });
}

kvs_result kvs_load_file(kvs_cache* cache, const char* identity, const char* path) {
  return capi::Run("kvs_load_file", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("path", path));
    return kvsieve::eval::LoadCache(path, capi::IdentityOf(identity), cache->cache);
  });
}

kvs_result kvs_cache_restore(const kvs_cache_args* args, const char* identity,
                             const kvs_source* source, kvs_cache** cache) {
  return capi::RunRestore(
      "kvs_cache_restore", args, cache, [&](const CacheOptions& options) -> Result<kvsieve::Cache> {
        KVS_ASSIGN_OR_RETURN(capi::CallerSource from, capi::CallerSource::Create(source));
        return kvsieve::Cache::FromState(from, capi::IdentityOf(identity), options);
      });
}

kvs_result kvs_cache_restore_file(const kvs_cache_args* args, const char* identity,
                                  const char* path, kvs_cache** cache) {
  return capi::RunRestore("kvs_cache_restore_file", args, cache,
                          [&](const CacheOptions& options) -> Result<kvsieve::Cache> {
                            KVS_RETURN_IF_ERROR(capi::CheckGiven("path", path));
                            return kvsieve::eval::LoadCache(path, capi::IdentityOf(identity),
                                                            options);
                          });
}
