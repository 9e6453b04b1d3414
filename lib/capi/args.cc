#include "lib/capi/args.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/capi/call.h"

namespace kvsieve::capi {
namespace {

// Far beyond any struct: what is larger is memory that nobody set.
constexpr std::size_t kMostStructBytes = 4096;
constexpr std::int64_t kMostLayers = 65536;
// Each takes memory of its own.
constexpr std::int32_t kMostWorkers = 65536;

static_assert(sizeof(TokenPos) == sizeof(std::int32_t));
// No implicit padding: a field that takes its place later would find anything in it.
static_assert(sizeof(kvs_layer) == sizeof(std::size_t) + 10 * 4);
static_assert(sizeof(kvs_cache_args) == sizeof(std::size_t) + 4 * sizeof(void*) + 8 + 2 * 4);
static_assert(sizeof(kvs_append_args) ==
              sizeof(std::size_t) + 2 * 4 + 8 + sizeof(void*) + 2 * sizeof(kvs_rows));
static_assert(sizeof(kvs_attend_args) ==
              sizeof(std::size_t) + 2 * 4 + 8 + 6 * sizeof(void*) + sizeof(kvs_rows) + 4 * 4);
static_assert(sizeof(kvs_gather_args) == sizeof(std::size_t) + 2 * 4 + 8 + 4 * sizeof(void*));
static_assert(sizeof(kvs_rows) == sizeof(void*) + 2 * 8 + 2 * 4);

Status BadSize(const StructShape& shape, std::size_t bytes, std::string_view why) {
  return Status::Invalid(StrCat(shape.name, ".struct_size is ", bytes, ", ", why,
                                ": set it to sizeof of the struct (", shape.bytes, " here)"));
}

std::size_t StructSize(const void* from) {
  std::size_t bytes = 0;
  std::memcpy(&bytes, from, sizeof(bytes));
  return bytes;
}

}  // namespace

Status CheckStructSize(const StructShape& shape, const void* from) {
  KVS_RETURN_IF_ERROR(CheckGiven(shape.name, from));
  const std::size_t bytes = StructSize(from);
  if (bytes < shape.required_bytes) {
    return BadSize(shape, bytes, StrCat("less than ", shape.required_bytes));
  }
  if (bytes > kMostStructBytes) return BadSize(shape, bytes, "more than any struct has");
  if (bytes % shape.alignment != 0) {
    return BadSize(shape, bytes, StrCat("no multiple of ", shape.alignment));
  }
  return Status::Ok();
}

Status ReadStruct(const StructShape& shape, const void* from, void* to) {
  KVS_RETURN_IF_ERROR(CheckStructSize(shape, from));
  const std::size_t bytes = StructSize(from);
  const auto* fields = static_cast<const unsigned char*>(from);
  for (std::size_t at = shape.bytes; at < bytes; ++at) {
    if (fields[at] != 0) {
      return Status(ErrorCode::kUnsupported,
                    StrCat(shape.name, " sets byte ", at, ", but this version knows ", shape.bytes,
                           " bytes of it: use a newer library, or leave the new field 0"));
    }
  }
  std::memcpy(to, from, std::min(bytes, shape.bytes));
  return Status::Ok();
}

Result<std::vector<LayerSpec>> ReadLayers(const kvs_layer* layers, std::int64_t count) {
  if (count < 1 || count > kMostLayers) {
    return Status::Invalid(
        StrCat("args.layer_count is ", count, ", must be in [1, ", kMostLayers, "]"));
  }
  KVS_RETURN_IF_ERROR(CheckGiven("args.layers", layers));
  const std::size_t stride = StructSize(layers);
  std::vector<LayerSpec> specs;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* at = reinterpret_cast<const unsigned char*>(layers) + i * stride;
    const std::string name = StrCat("args.layers[", i, "]");
    kvs_layer layer = {};
    KVS_RETURN_IF_ERROR(ReadArgs(name, reinterpret_cast<const kvs_layer*>(at),
                                 offsetof(kvs_layer, softcap), &layer));
    if (layer.struct_size != stride) {
      return Status::Invalid(StrCat(name, ".struct_size is ", layer.struct_size,
                                    ", that of args.layers[0] is ", stride));
    }
    KVS_RETURN_IF_ERROR(CheckReserved(name + ".reserved", layer.reserved));
    KVS_RETURN_IF_ERROR(CheckFlag(name + ".value_is_key_prefix", layer.value_is_key_prefix));
    specs.push_back({.layer = layer.layer,
                     .query_heads = layer.query_heads,
                     .kv_heads = layer.kv_heads,
                     .key_dim = layer.key_dim,
                     .value_dim = layer.value_dim,
                     .scale = layer.scale,
                     .softcap = layer.softcap,
                     .sliding_window = layer.sliding_window,
                     .value_is_key_prefix = layer.value_is_key_prefix == 1});
  }
  return specs;
}

Status CheckReserved(std::string_view name, std::int32_t reserved) {
  if (reserved == 0) return Status::Ok();
  return Status::Invalid(StrCat(name, " is ", reserved, ", must be 0"));
}

Status CheckWorkers(std::string_view name, std::int32_t workers) {
  if (workers >= 1 && workers <= kMostWorkers) return Status::Ok();
  return Status::Invalid(StrCat(name, " is ", workers, ", must be in [1, ", kMostWorkers, "]"));
}

Status CheckFlag(std::string_view name, std::int32_t flag) {
  if (flag == 0 || flag == 1) return Status::Ok();
  return Status::Invalid(StrCat(name, " is ", flag, ", must be 0 or 1"));
}

Result<HeadsView> ReadRows(std::string_view name, const kvs_rows& rows, int heads, std::int64_t n,
                           int dim) {
  KVS_RETURN_IF_ERROR(CheckReserved(StrCat(name, ".reserved"), rows.reserved));
  if (rows.type < KVS_F32 || rows.type > KVS_BF16) {
    return Status::Invalid(StrCat(name, ".type is ", rows.type, ", not KVS_F32, F16 or BF16"));
  }
  if (n > 0) KVS_RETURN_IF_ERROR(CheckGiven(StrCat(name, ".data"), rows.data));
  HeadsView view{.data = rows.data,
                 .type = static_cast<ElementType>(rows.type),
                 .heads = heads,
                 .rows = n,
                 .dim = dim,
                 .head_stride = rows.head_stride,
                 .row_stride = rows.row_stride};
  if (rows.head_stride == 0 && rows.row_stride == 0) {
    view.head_stride = n * dim;
    view.row_stride = dim;
  }
  return view;
}

Status CheckRowNumber(std::string_view name, std::int64_t n) {
  // Positions are numbers of 31 bits.
  constexpr std::int64_t kMost = std::numeric_limits<TokenPos>::max();
  if (n >= 0 && n <= kMost) return Status::Ok();
  return Status::Invalid(StrCat(name, " is ", n, ", must be in [0, ", kMost, "]"));
}

Result<std::span<const TokenPos>> ReadPositions(const std::int32_t* positions, std::int64_t n) {
  KVS_RETURN_IF_ERROR(CheckRowNumber("args.n", n));
  return ReadArray("args.positions", positions, n);
}

}  // namespace kvsieve::capi
