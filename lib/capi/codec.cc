// Calls that encode rows without a cache.
#include <cstddef>
#include <utility>

#include "kvsieve/encode_rows.h"
#include "kvsieve/pipeline.h"
#include "lib/capi/args.h"
#include "lib/capi/handles.h"

namespace kvsieve::capi {
namespace {

Result<kvs_codec> CreateCodec(const kvs_codec_args* given) {
  kvs_codec_args args;
  KVS_RETURN_IF_ERROR(ReadArgs(given, &args));
  KVS_RETURN_IF_ERROR(CheckGiven("args.spec", args.spec));
  if (args.side != KVS_KEY && args.side != KVS_VALUE) {
    return Status::Invalid(StrCat("args.side is ", args.side, ", not KVS_KEY or KVS_VALUE"));
  }
  KVS_ASSIGN_OR_RETURN(const Pipeline pipeline, Pipeline::Parse(args.spec));
  if (pipeline.evictor() != nullptr || pipeline.tiers() > 1 ||
      !pipeline.layer_overrides().empty()) {
    return Status::Invalid(StrCat("args.spec '", pipeline.Typed(),
                                  "' evicts rows or has several stores: rows are encoded by one"));
  }
  const LayerSpec layer{
      .query_heads = 1, .kv_heads = 1, .key_dim = args.dim, .value_dim = args.dim, .scale = 1.0F};
  KVS_RETURN_IF_ERROR(layer.Validate());
  KVS_ASSIGN_OR_RETURN(LayerStore store, BuildStore(pipeline.main_store(), layer));
  return kvs_codec{args.side == KVS_KEY ? std::move(store.key) : std::move(store.value)};
}

Status Encode(const kvs_codec* codec, const kvs_encode_args* given) {
  kvs_encode_args args;
  KVS_RETURN_IF_ERROR(CheckGiven("codec", codec));
  KVS_RETURN_IF_ERROR(ReadArgs("args", given, offsetof(kvs_encode_args, saturated), &args));
  // Refuses a number of rows that there cannot be.
  KVS_RETURN_IF_ERROR(EncodedSize(*codec->chain, args.n).TakeStatus());
  KVS_ASSIGN_OR_RETURN(const HeadsView rows,
                       ReadRows("args.rows", args.rows, 1, args.n, codec->chain->dim()));
  KVS_ASSIGN_OR_RETURN(const auto stats, ReadArray("args.stats", args.stats, args.stats_floats));
  KVS_ASSIGN_OR_RETURN(const auto encoded, ReadArray("args.encoded", args.encoded, args.bytes));
  KVS_ASSIGN_OR_RETURN(const std::int64_t saturated,
                       EncodeRowsTo(*codec->chain, rows, stats, encoded));
  if (args.saturated != nullptr) *args.saturated = saturated;
  return Status::Ok();
}

Status Decode(const kvs_codec* codec, const kvs_decode_args* given) {
  kvs_decode_args args;
  KVS_RETURN_IF_ERROR(CheckGiven("codec", codec));
  KVS_RETURN_IF_ERROR(ReadArgs(given, &args));
  KVS_RETURN_IF_ERROR(EncodedSize(*codec->chain, args.n).TakeStatus());
  KVS_ASSIGN_OR_RETURN(const auto stats, ReadArray("args.stats", args.stats, args.stats_floats));
  KVS_ASSIGN_OR_RETURN(const auto encoded, ReadArray("args.encoded", args.encoded, args.bytes));
  KVS_ASSIGN_OR_RETURN(const auto rows,
                       ReadArray("args.rows", args.rows, args.n * codec->chain->dim()));
  return DecodeRowsFrom(*codec->chain, args.n, stats, encoded, rows);
}

}  // namespace
}  // namespace kvsieve::capi

namespace capi = kvsieve::capi;
using kvsieve::Status;

kvs_result kvs_codec_create(const kvs_codec_args* args, kvs_codec** codec) {
  return capi::RunCreate("kvs_codec_create", codec, [&] { return capi::CreateCodec(args); });
}

void kvs_codec_destroy(kvs_codec* codec) { delete codec; }

kvs_result kvs_encoded_size(const kvs_codec* codec, int64_t rows, int64_t* bytes,
                            int64_t* stats_floats) {
  return capi::Run("kvs_encoded_size", [&]() -> Status {
    KVS_RETURN_IF_ERROR(capi::CheckGiven("codec", codec));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("bytes", bytes));
    KVS_RETURN_IF_ERROR(capi::CheckGiven("stats_floats", stats_floats));
    KVS_ASSIGN_OR_RETURN(const kvsieve::EncodedRowsSize size,
                         kvsieve::EncodedSize(*codec->chain, rows));
    *bytes = size.bytes;
    *stats_floats = size.stats_floats;
    return Status::Ok();
  });
}

kvs_result kvs_encode_rows(const kvs_codec* codec, const kvs_encode_args* args) {
  return capi::Run("kvs_encode_rows", [&] { return capi::Encode(codec, args); });
}

kvs_result kvs_decode_rows(const kvs_codec* codec, const kvs_decode_args* args) {
  return capi::Run("kvs_decode_rows", [&] { return capi::Decode(codec, args); });
}
