// What the opaque handles of the C calls hold.
#ifndef KVSIEVE_LIB_CAPI_HANDLES_H_
#define KVSIEVE_LIB_CAPI_HANDLES_H_

#include <memory>
#include <string_view>
#include <utility>

#include "kvsieve/cache.h"
#include "kvsieve/codec.h"
#include "kvsieve/kvsieve_c.h"
#include "kvsieve/result.h"
#include "lib/capi/call.h"
#include "lib/capi/callbacks.h"

struct kvs_cache {
  // Outlive the cache, which gives its memory back through them; shared with forks.
  std::shared_ptr<kvsieve::capi::Callbacks> callbacks;
  kvsieve::Cache cache;
};

struct kvs_scratch {
  kvsieve::AttendScratch scratch;
};

struct kvs_codec {
  std::shared_ptr<const kvsieve::Chain> chain;
};

namespace kvsieve::capi {

// Errors name what is missing or out of range.
Status CheckLayer(const kvs_cache* cache, std::int32_t layer);
Status CheckHead(const kvs_cache* cache, std::int32_t layer, std::int32_t head);

// What kvs_cache_create and its like were given beside the pipeline.
struct CacheSettings {
  std::shared_ptr<Callbacks> callbacks;
  CacheOptions options;  // points into callbacks
};
Result<CacheSettings> ReadSettings(const kvs_cache_args& args);

// Hands a new handle out. `make` returns a Result of what is in it; *handle is NULL on failure.
template <class Handle, class Make>
kvs_result RunCreate(std::string_view name, Handle** handle, Make&& make) noexcept {
  if (handle == nullptr) return Fail(name, KVS_INVALID_ARGUMENT, "the place of the handle is NULL");
  *handle = nullptr;
  return Run(name, [&]() -> Status {
    KVS_ASSIGN_OR_RETURN(Handle made, make());
    *handle = new Handle(std::move(made));
    return Status::Ok();
  });
}

}  // namespace kvsieve::capi

#endif  // KVSIEVE_LIB_CAPI_HANDLES_H_
