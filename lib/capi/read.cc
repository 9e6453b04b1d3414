// Calls that read a cache: attention, rows, positions, bytes.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kvsieve/cache_set.h"
#include "lib/capi/args.h"
#include "lib/capi/handles.h"

namespace kvsieve::capi {
namespace {

// All but the threads.
Result<AttendParams> ReadParams(const kvs_attend_args& args, int query_heads) {
  constexpr std::int32_t kAll =
      KVS_OVERRIDE_SCALE | KVS_OVERRIDE_SOFTCAP | KVS_OVERRIDE_SLIDING_WINDOW;
  if ((args.overrides & ~kAll) != 0) {
    return Status::Invalid(StrCat("args.overrides is ", args.overrides,
                                  ", not a sum of KVS_OVERRIDE_SCALE, SOFTCAP, SLIDING_WINDOW"));
  }
  AttendParams params;
  if ((args.overrides & KVS_OVERRIDE_SCALE) != 0) params.scale = args.scale;
  if ((args.overrides & KVS_OVERRIDE_SOFTCAP) != 0) params.softcap = args.softcap;
  if ((args.overrides & KVS_OVERRIDE_SLIDING_WINDOW) != 0) {
    params.sliding_window = args.sliding_window;
  }
  if (args.sink_logits != nullptr) {
    params.sink_logits = {args.sink_logits, static_cast<std::size_t>(query_heads)};
  }
  return params;
}

Status Attend(const kvs_cache* cache, const kvs_attend_args* given) {
  kvs_attend_args args;
  KVS_RETURN_IF_ERROR(ReadArgs("args", given, offsetof(kvs_attend_args, lse), &args));
  KVS_RETURN_IF_ERROR(CheckReserved("args.reserved", args.reserved));
  KVS_RETURN_IF_ERROR(CheckLayer(cache, args.layer));
  KVS_RETURN_IF_ERROR(CheckGiven("args.scratch", args.scratch));
  const LayerSpec& layer = cache->cache.layer(args.layer);
  KVS_ASSIGN_OR_RETURN(const auto positions, ReadPositions(args.positions, args.n));
  KVS_ASSIGN_OR_RETURN(const HeadsView queries, ReadRows("args.queries", args.queries,
                                                         layer.query_heads, args.n, layer.key_dim));
  if (args.n > 0) KVS_RETURN_IF_ERROR(CheckGiven("args.out", args.out));
  KVS_ASSIGN_OR_RETURN(AttendParams params, ReadParams(args, layer.query_heads));
  std::optional<CallerParallel> parallel;
  if (args.parallel != nullptr) {
    KVS_ASSIGN_OR_RETURN(parallel, CallerParallel::Create("args.parallel", args.parallel));
    params.parallel = &*parallel;
  }
  return cache->cache.Attend(args.layer, positions, queries, params, args.scratch->scratch,
                             args.out, args.lse);
}

Result<std::int64_t> ScratchBytes(const kvs_cache* cache, std::int32_t layer, std::int64_t n,
                                  std::int32_t workers) {
  KVS_RETURN_IF_ERROR(CheckGiven("cache", cache));
  KVS_RETURN_IF_ERROR(CheckRowNumber("n", n));
  KVS_RETURN_IF_ERROR(CheckWorkers("workers", workers));
  return cache->cache.AttendScratchBytes(layer, n, workers);
}

// `rows` of the caller's must be those that there are: it sized buffers by them.
Status CheckRows(const kvs_cache* cache, std::int32_t layer, std::int32_t head, std::int64_t rows) {
  KVS_RETURN_IF_ERROR(CheckHead(cache, layer, head));
  const std::int64_t stored = cache->cache.rows(layer, head);
  if (rows == stored) return Status::Ok();
  return Status::Invalid(StrCat("rows is ", rows, ", kvs_row_count of layer ", layer, ", head ",
                                head, " is ", stored));
}

Status Gather(const kvs_cache* cache, const kvs_gather_args* given) {
  kvs_gather_args args;
  KVS_RETURN_IF_ERROR(ReadArgs("args", given, offsetof(kvs_gather_args, tiers), &args));
  KVS_RETURN_IF_ERROR(CheckRows(cache, args.layer, args.head, args.rows));
  const LayerSpec& layer = cache->cache.layer(args.layer);
  const auto all = [&]<class T>(T* data, int dim) {
    return data != nullptr ? std::span<T>(data, static_cast<std::size_t>(args.rows * dim))
                           : std::span<T>();
  };
  KVS_RETURN_IF_ERROR(cache->cache.Gather(args.layer, args.head, all(args.positions, 1),
                                          all(args.keys, layer.key_dim),
                                          all(args.values, layer.value_dim)));
  if (args.tiers == nullptr) return Status::Ok();
  return cache->cache.RowTiers(args.layer, args.head, all(args.tiers, 1));
}

Status Visible(const kvs_cache* cache, const kvs_visible_args* given) {
  kvs_visible_args args;
  KVS_RETURN_IF_ERROR(ReadArgs(given, &args));
  KVS_RETURN_IF_ERROR(CheckRows(cache, args.layer, args.head, args.rows));
  KVS_ASSIGN_OR_RETURN(const auto positions, ReadPositions(args.positions, args.n));
  KVS_ASSIGN_OR_RETURN(const auto mask, ReadArray("args.mask", args.mask, args.n * args.rows));
  return cache->cache.Visible(args.layer, args.head, positions, mask);
}

kvs_stats_report ToC(const ByteReport& bytes) {
  const auto ratio = [](std::optional<double> value) {
    return value.value_or(std::numeric_limits<double>::quiet_NaN());
  };
  return {.struct_size = sizeof(kvs_stats_report),
          .full_bytes = bytes.full_bytes(),
          .key_full_bytes = bytes.key_full_bytes,
          .value_full_bytes = bytes.value_full_bytes,
          .f16_rows_bytes = bytes.f16_rows_bytes,
          .kept_bytes = bytes.kept_bytes(),
          .key_kept_bytes = bytes.key_kept_bytes,
          .value_kept_bytes = bytes.value_kept_bytes,
          .payload_bytes = bytes.payload_bytes,
          .scale_bytes = bytes.scale_bytes,
          .metadata_bytes = bytes.metadata_bytes,
          .resident_bytes = bytes.resident_bytes(),
          .padding_bytes = bytes.padding_bytes,
          .reserved_bytes = bytes.reserved_bytes,
          .observation_bytes = bytes.observation_bytes,
          .shared_bytes = bytes.shared_bytes,
          .scratch_peak_bytes = bytes.scratch_peak_bytes,
          .tokens_seen = bytes.tokens_seen,
          .rows_kept = bytes.rows_kept,
          .lifetime_tokens = bytes.lifetime_tokens,
          .keep_rate = bytes.keep_rate(),
          .eviction_ratio = ratio(bytes.eviction_ratio()),
          .storage_ratio = ratio(bytes.storage_ratio()),
          .total_ratio = ratio(bytes.total_ratio()),
          .resident_ratio = ratio(bytes.resident_ratio())};
}

Result<ByteReport> Stats(const kvs_cache* cache, std::int32_t layer, std::int32_t head) {
  KVS_RETURN_IF_ERROR(CheckGiven("cache", cache));
  if (layer == -1 && head == -1) return cache->cache.Report();
  if (head == -1) {
    KVS_RETURN_IF_ERROR(CheckLayer(cache, layer));
    return cache->cache.ReportLayer(layer).bytes;
  }
  KVS_RETURN_IF_ERROR(CheckHead(cache, layer, head));
  const LayerReport report = cache->cache.ReportLayer(layer);
  if (report.heads.empty()) {
    return Status(ErrorCode::kState, "single heads are known after kvs_finish_prefill");
  }
  return report.heads[static_cast<std::size_t>(head)];
}

Result<ByteReport> StatsOfBatch(const kvs_cache* const* given, std::int64_t count) {
  KVS_ASSIGN_OR_RETURN(const auto handles, ReadArray("caches", given, count));
  std::vector<const Cache*> caches;
  for (const kvs_cache* handle : handles) {
    if (handle == nullptr) {
      return Status::Invalid(StrCat("caches[", caches.size(), "] is NULL"));
    }
    caches.push_back(&handle->cache);
  }
  return TotalReport(caches);
}

// Writes what `read` gives, as much of it as the caller knows.
template <class Read>
Status WriteReport(kvs_stats_report* report, Read&& read) {
  KVS_RETURN_IF_ERROR(CheckStructSize(
      {"report", sizeof(*report), 2 * sizeof(size_t), alignof(kvs_stats_report)}, report));
  KVS_ASSIGN_OR_RETURN(const ByteReport bytes, read());
  const std::size_t size = report->struct_size;
  kvs_stats_report known = ToC(bytes);
  known.struct_size = size;
  std::memset(static_cast<void*>(report), 0, size);
  std::memcpy(static_cast<void*>(report), &known, std::min(size, sizeof(known)));
  return Status::Ok();
}

Result<std::string> LayerText(const kvs_cache* cache, std::int32_t layer, std::int32_t which) {
  KVS_RETURN_IF_ERROR(CheckLayer(cache, layer));
  const LayerReport report = cache->cache.ReportLayer(layer);
  switch (which) {
    case KVS_TEXT_REQUESTED:
      return report.requested;
    case KVS_TEXT_APPLIED:
      return report.applied;
    case KVS_TEXT_KEY_PATH:
      return report.key_path;
    case KVS_TEXT_VALUE_PATH:
      return report.value_path;
    case KVS_TEXT_NOTE:
      return report.note;
    default:
      return Status::Invalid(StrCat("which is ", which, ", not one of KVS_TEXT_..."));
  }
}

// Sets *value to what `read` gives of a cache.
template <class Value, class Read>
kvs_result RunRead(std::string_view name, const kvs_cache* cache, Value* value, Read&& read) {
  return Run(name, [&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckGiven("cache", cache));
    KVS_RETURN_IF_ERROR(CheckGiven("the place of the answer", value));
    *value = read(cache->cache);
    return Status::Ok();
  });
}

}  // namespace
}  // namespace kvsieve::capi

namespace capi = kvsieve::capi;
using kvsieve::Cache;
using kvsieve::Status;

kvs_result kvs_attend(const kvs_cache* cache, const kvs_attend_args* args) {
  return capi::Run("kvs_attend", [&] { return capi::Attend(cache, args); });
}

kvs_result kvs_scratch_create(void* memory, size_t bytes, kvs_scratch** scratch) {
  return capi::RunCreate("kvs_scratch_create", scratch, [&]() -> kvsieve::Result<kvs_scratch> {
    if (memory == nullptr && bytes == 0) return kvs_scratch{};
    KVS_RETURN_IF_ERROR(capi::CheckGiven("memory", memory));
    return kvs_scratch{kvsieve::AttendScratch({static_cast<std::byte*>(memory), bytes})};
  });
}

void kvs_scratch_destroy(kvs_scratch* scratch) { delete scratch; }

kvs_result kvs_attend_scratch_bytes(const kvs_cache* cache, int32_t layer, int64_t n,
                                    int32_t workers, size_t* bytes) {
  return capi::Run("kvs_attend_scratch_bytes", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("bytes", bytes));
    KVS_ASSIGN_OR_RETURN(const std::int64_t taken, capi::ScratchBytes(cache, layer, n, workers));
    *bytes = static_cast<size_t>(taken);
    return Status::Ok();
  });
}

kvs_result kvs_row_count(const kvs_cache* cache, int32_t layer, int32_t head, int64_t* rows) {
  return capi::Run("kvs_row_count", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckHead(cache, layer, head));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("rows", rows));
    *rows = cache->cache.rows(layer, head);
    return Status::Ok();
  });
}

kvs_result kvs_next_position(const kvs_cache* cache, int32_t* position) {
  return capi::RunRead("kvs_next_position", cache, position,
                       [](const Cache& c) { return c.next_position(); });
}

kvs_result kvs_oldest_exact_position(const kvs_cache* cache, int32_t* position) {
  return capi::RunRead("kvs_oldest_exact_position", cache, position,
                       [](const Cache& c) { return c.oldest_exact_position(); });
}

kvs_result kvs_positions(const kvs_cache* cache, int32_t layer, int32_t head, int64_t rows,
                         int32_t* positions) {
  return capi::Run("kvs_positions", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckRows(cache, layer, head, rows));
    KVS_ASSIGN_OR_RETURN(const auto all, capi::ReadArray("positions", positions, rows));
    return cache->cache.Gather(layer, head, all, {}, {});
  });
}

kvs_result kvs_gather(const kvs_cache* cache, const kvs_gather_args* args) {
  return capi::Run("kvs_gather", [&] { return capi::Gather(cache, args); });
}

kvs_result kvs_visible(const kvs_cache* cache, const kvs_visible_args* args) {
  return capi::Run("kvs_visible", [&] { return capi::Visible(cache, args); });
}

kvs_result kvs_stats(const kvs_cache* cache, int32_t layer, int32_t head,
                     kvs_stats_report* report) {
  return capi::Run("kvs_stats", [&] {
    return capi::WriteReport(report, [&] { return capi::Stats(cache, layer, head); });
  });
}

kvs_result kvs_stats_of_batch(const kvs_cache* const* caches, int64_t count,
                              kvs_stats_report* report) {
  return capi::Run("kvs_stats_of_batch", [&] {
    return capi::WriteReport(report, [&] { return capi::StatsOfBatch(caches, count); });
  });
}

kvs_result kvs_layer_text(const kvs_cache* cache, int32_t layer, int32_t which, char* text,
                          size_t capacity, size_t* length) {
  return capi::Run("kvs_layer_text", [&]() -> Status {
    if (capacity > 0) KVS_RETURN_IF_ERROR(capi::CheckGiven("text", text));
    KVS_ASSIGN_OR_RETURN(const std::string whole, capi::LayerText(cache, layer, which));
    if (length != nullptr) *length = whole.size();
    if (capacity == 0) return Status::Ok();
    const std::size_t bytes = std::min(whole.size(), capacity - 1);
    std::memcpy(text, whole.data(), bytes);
    text[bytes] = '\0';
    return Status::Ok();
  });
}
