// Calls that make a cache and write to it.
#include <cstddef>
#include <string_view>
#include <utility>

#include "kvsieve/pipeline.h"
#include "lib/capi/args.h"
#include "lib/capi/handles.h"

namespace kvsieve::capi {

Status CheckLayer(const kvs_cache* cache, std::int32_t layer) {
  KVS_RETURN_IF_ERROR(CheckGiven("cache", cache));
  if (layer >= 0 && layer < cache->cache.layers()) return Status::Ok();
  return Status::Invalid(StrCat("layer ", layer, " is outside [0, ", cache->cache.layers(), ")"));
}

Status CheckHead(const kvs_cache* cache, std::int32_t layer, std::int32_t head) {
  KVS_RETURN_IF_ERROR(CheckLayer(cache, layer));
  const int heads = cache->cache.layer(layer).kv_heads;
  if (head >= 0 && head < heads) return Status::Ok();
  return Status::Invalid(StrCat("head ", head, " is outside [0, ", heads, ")"));
}

Result<CacheSettings> ReadSettings(const kvs_cache_args& args) {
  KVS_RETURN_IF_ERROR(CheckReserved("args.reserved", args.reserved));
  if (args.decode_rows != KVS_DECODE_STORED && args.decode_rows != KVS_DECODE_EXACT) {
    return Status::Invalid(StrCat("args.decode_rows is ", args.decode_rows,
                                  ", not KVS_DECODE_STORED or KVS_DECODE_EXACT"));
  }
  CacheSettings settings{.callbacks = std::make_shared<Callbacks>(), .options = {}};
  if (args.allocator != nullptr) {
    KVS_ASSIGN_OR_RETURN(settings.callbacks->allocator, CallerAllocator::Create(args.allocator));
    settings.options.allocator = &*settings.callbacks->allocator;
  }
  if (args.parallel != nullptr) {
    KVS_ASSIGN_OR_RETURN(settings.callbacks->parallel,
                         CallerParallel::Create("args.parallel", args.parallel));
    settings.options.parallel = &*settings.callbacks->parallel;
  }
  settings.options.decode_rows =
      args.decode_rows == KVS_DECODE_EXACT ? DecodeRows::kExact : DecodeRows::kStored;
  return settings;
}

namespace {

Result<Phase> ReadPhase(std::int32_t phase) {
  switch (phase) {
    case KVS_PREFILL:
      return Phase::kPrefill;
    case KVS_DECODE:
      return Phase::kDecode;
    case KVS_VERIFY:
      return Phase::kVerify;
    default:
      return Status::Invalid(
          StrCat("args.phase is ", phase, ", not KVS_PREFILL, KVS_DECODE or KVS_VERIFY"));
  }
}

Result<kvs_cache> Create(const kvs_cache_args* given) {
  kvs_cache_args args;
  KVS_RETURN_IF_ERROR(ReadArgs("args", given, offsetof(kvs_cache_args, allocator), &args));
  KVS_RETURN_IF_ERROR(CheckGiven("args.spec", args.spec));
  KVS_ASSIGN_OR_RETURN(std::vector<LayerSpec> layers, ReadLayers(args.layers, args.layer_count));
  KVS_ASSIGN_OR_RETURN(CacheSettings settings, ReadSettings(args));
  KVS_ASSIGN_OR_RETURN(Pipeline pipeline, Pipeline::Parse(args.spec));
  KVS_ASSIGN_OR_RETURN(Cache cache,
                       Cache::Create(std::make_shared<const Pipeline>(std::move(pipeline)),
                                     std::move(layers), settings.options));
  return kvs_cache{std::move(settings.callbacks), std::move(cache)};
}

Status Append(kvs_cache* cache, const kvs_append_args* given) {
  kvs_append_args args;
  KVS_RETURN_IF_ERROR(ReadArgs(given, &args));
  KVS_RETURN_IF_ERROR(CheckLayer(cache, args.layer));
  const LayerSpec& layer = cache->cache.layer(args.layer);
  KVS_ASSIGN_OR_RETURN(const Phase phase, ReadPhase(args.phase));
  KVS_ASSIGN_OR_RETURN(const auto positions, ReadPositions(args.positions, args.n));
  KVS_ASSIGN_OR_RETURN(const HeadsView keys,
                       ReadRows("args.keys", args.keys, layer.kv_heads, args.n, layer.key_dim));
  HeadsView values;
  if (!layer.value_is_key_prefix) {
    KVS_ASSIGN_OR_RETURN(
        values, ReadRows("args.values", args.values, layer.kv_heads, args.n, layer.value_dim));
  } else if (args.values.data != nullptr) {
    return Status::Invalid("args.values are given, but V of this layer lies in K");
  }
  return cache->cache.Append(args.layer, phase, keys, values, positions);
}

Status Observe(kvs_cache* cache, const kvs_observe_args* given) {
  kvs_observe_args args;
  KVS_RETURN_IF_ERROR(ReadArgs(given, &args));
  KVS_RETURN_IF_ERROR(CheckReserved("args.reserved", args.reserved));
  KVS_RETURN_IF_ERROR(CheckLayer(cache, args.layer));
  const LayerSpec& layer = cache->cache.layer(args.layer);
  KVS_ASSIGN_OR_RETURN(const auto positions, ReadPositions(args.positions, args.n));
  KVS_ASSIGN_OR_RETURN(const HeadsView queries, ReadRows("args.queries", args.queries,
                                                         layer.query_heads, args.n, layer.key_dim));
  return cache->cache.Observe(args.layer, positions, queries);
}

Status TrimCache(kvs_cache* cache, std::int32_t position, std::int32_t allow_inexact,
                 std::int64_t* tokens) {
  KVS_RETURN_IF_ERROR(CheckGiven("cache", cache));
  KVS_RETURN_IF_ERROR(CheckFlag("allow_inexact", allow_inexact));
  const Trim trim = allow_inexact == 1 ? Trim::kAllowInexact : Trim::kExact;
  KVS_ASSIGN_OR_RETURN(const std::int64_t gone, cache->cache.TrimToPosition(position, trim));
  if (tokens != nullptr) *tokens = gone;
  return Status::Ok();
}

}  // namespace
}  // namespace kvsieve::capi

namespace capi = kvsieve::capi;
using kvsieve::Status;

kvs_result kvs_cache_create(const kvs_cache_args* args, kvs_cache** cache) {
  return capi::RunCreate("kvs_cache_create", cache, [&] { return capi::Create(args); });
}

void kvs_cache_destroy(kvs_cache* cache) { delete cache; }

kvs_result kvs_fork(const kvs_cache* cache, kvs_cache** fork) {
  return capi::RunCreate("kvs_fork", fork, [&]() -> kvsieve::Result<kvs_cache> {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    KVS_ASSIGN_OR_RETURN(kvsieve::Cache forked, cache->cache.Fork());
    return kvs_cache{cache->callbacks, std::move(forked)};
  });
}

kvs_result kvs_clear(kvs_cache* cache) {
  return capi::Run("kvs_clear", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    cache->cache.Clear();
    return Status::Ok();
  });
}

kvs_result kvs_append(kvs_cache* cache, const kvs_append_args* args) {
  return capi::Run("kvs_append", [&] { return capi::Append(cache, args); });
}

kvs_result kvs_observe(kvs_cache* cache, const kvs_observe_args* args) {
  return capi::Run("kvs_observe", [&] { return capi::Observe(cache, args); });
}

kvs_result kvs_set_external_scores(kvs_cache* cache, int32_t layer, const float* scores,
                                   int64_t count) {
  return capi::Run("kvs_set_external_scores", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckLayer(cache, layer));
    KVS_ASSIGN_OR_RETURN(const auto given, capi::ReadArray("scores", scores, count));
    return cache->cache.SetExternalScores(layer, given);
  });
}

kvs_result kvs_finish_prefill(kvs_cache* cache, int64_t scratch_limit_bytes) {
  return capi::Run("kvs_finish_prefill", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    if (scratch_limit_bytes < 0) {
      return Status::Invalid(kvsieve::StrCat("scratch_limit_bytes is ", scratch_limit_bytes));
    }
    return cache->cache.FinishPrefill(scratch_limit_bytes);
  });
}

kvs_result kvs_evict(kvs_cache* cache, int32_t layer) {
  return capi::Run("kvs_evict", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckLayer(cache, layer));
    return cache->cache.Evict(layer);
  });
}

kvs_result kvs_trim(kvs_cache* cache, int32_t position, int32_t allow_inexact, int64_t* tokens) {
  return capi::Run("kvs_trim",
                   [&] { return capi::TrimCache(cache, position, allow_inexact, tokens); });
}

kvs_result kvs_reserve_speculative(kvs_cache* cache, int64_t n) {
  return capi::Run("kvs_reserve_speculative", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    return cache->cache.ReserveSpeculative(n);
  });
}

kvs_result kvs_can_rollback(const kvs_cache* cache, int64_t n, int32_t* can) {
  return capi::Run("kvs_can_rollback", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("can", can));
    *can = cache->cache.CanRollback(n) ? 1 : 0;
    return Status::Ok();
  });
}

kvs_result kvs_accept(kvs_cache* cache, int64_t n) {
  return capi::Run("kvs_accept", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    return cache->cache.Accept(n);
  });
}

kvs_result kvs_rollback(kvs_cache* cache, int64_t n) {
  return capi::Run("kvs_rollback", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("cache", cache));
    return cache->cache.Rollback(n);
  });
}
