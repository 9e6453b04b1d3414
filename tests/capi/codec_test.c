// Rows encoded without a cache.
#include <math.h>

#include "tests/capi/check.h"

enum { kRows = 100 };

static kvs_codec* MustCreateCodec(const char* spec, int32_t side) {
  const kvs_codec_args args = {
      .struct_size = sizeof(args), .spec = spec, .side = side, .dim = kDim};
  kvs_codec* codec = NULL;
  CHECK_OK(kvs_codec_create(&args, &codec));
  return codec;
}

static void GivesBackWhatACacheWouldGive(void) {
  static const char spec[] = "none | k=center+turbo4, v=int8 | exact_sinks=0";
  for (int32_t side = KVS_KEY; side <= KVS_VALUE; ++side) {
    kvs_codec* codec = MustCreateCodec(spec, side);
    int64_t bytes = 0, stats_floats = 0;
    CHECK_OK(kvs_encoded_size(codec, kRows, &bytes, &stats_floats));
    CHECK(bytes > 0 && (stats_floats > 0) == (side == KVS_KEY));
    float* stats = malloc((size_t)stats_floats * sizeof(float) + 1);
    uint8_t* encoded = malloc((size_t)bytes);
    static float rows[kRows * kDim], from_cache[kRows * kDim];
    const kvs_append_args append = AppendArgs(KVS_PREFILL, 0, kRows);
    const kvs_encode_args encode = {.struct_size = sizeof(encode),
                                    .n = kRows,
                                    .rows = side == KVS_KEY ? append.keys : append.values,
                                    .stats = stats,
                                    .stats_floats = stats_floats,
                                    .encoded = encoded,
                                    .bytes = bytes};
    CHECK_OK(kvs_encode_rows(codec, &encode));
    const kvs_decode_args decode = {.struct_size = sizeof(decode),
                                    .n = kRows,
                                    .stats = stats,
                                    .stats_floats = stats_floats,
                                    .encoded = encoded,
                                    .bytes = bytes,
                                    .rows = rows};
    CHECK_OK(kvs_decode_rows(codec, &decode));

    kvs_cache* cache = MustFinish(spec, kRows);
    const kvs_gather_args gather = {.struct_size = sizeof(gather),
                                    .rows = kRows,
                                    .keys = side == KVS_KEY ? from_cache : NULL,
                                    .values = side == KVS_VALUE ? from_cache : NULL};
    CHECK_OK(kvs_gather(cache, &gather));
    CHECK(memcmp(rows, from_cache, sizeof(rows)) == 0);
    kvs_cache_destroy(cache);
    free(stats);
    free(encoded);
    kvs_codec_destroy(codec);
  }
}

static void CountsWhatLiesBeyondTheRange(void) {
  kvs_codec* codec = MustCreateCodec("none | kv=fp8", KVS_KEY);
  float row[kDim] = {1000.0F, -1000.0F, 448.0F};
  uint8_t encoded[16 * kDim];
  int64_t bytes = 0, stats_floats = 0, saturated = 0;
  CHECK_OK(kvs_encoded_size(codec, 1, &bytes, &stats_floats));
  CHECK(bytes == (int64_t)sizeof(encoded) && stats_floats == 0);
  kvs_encode_args args = {.struct_size = sizeof(args),
                          .n = 1,
                          .rows = {.data = row},
                          .encoded = encoded,
                          .bytes = bytes,
                          .saturated = &saturated};
  CHECK_OK(kvs_encode_rows(codec, &args));
  CHECK(saturated == 2);
  row[5] = NAN;
  CHECK_FAILS(KVS_NON_FINITE, "row 0", kvs_encode_rows(codec, &args));
  row[5] = 0;
  args.bytes = bytes - 1;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "expected 512 elements, got 511",
              kvs_encode_rows(codec, &args));
  args.bytes = bytes;
  args.encoded = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.encoded is NULL", kvs_encode_rows(codec, &args));
  args.encoded = encoded;
  args.n = -1;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_encode_rows: ", kvs_encode_rows(codec, &args));
  args.n = 1;
  args.rows.data = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.rows.data is NULL", kvs_encode_rows(codec, &args));
  kvs_decode_args decode = {
      .struct_size = sizeof(decode), .n = 1, .encoded = encoded, .bytes = bytes};
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.rows is NULL", kvs_decode_rows(codec, &decode));
  CHECK_FAILS(KVS_INVALID_ARGUMENT,
              "kvs_encoded_size: ", kvs_encoded_size(codec, INT64_MAX, &bytes, &stats_floats));
  kvs_codec_destroy(codec);
}

static void RefusesWhatIsNoSingleStore(void) {
  kvs_codec_args args = {.struct_size = sizeof(args), .dim = kDim};
  kvs_codec* codec = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.spec is NULL", kvs_codec_create(&args, &codec));
  args.spec = "recency(budget=9) | kv=int8";
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "evicts rows", kvs_codec_create(&args, &codec));
  args.spec = "none | kv=int8 | layers(0..1)={kv=f16}";
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "several stores", kvs_codec_create(&args, &codec));
  args.spec = "none | kv=int8";
  args.side = 2;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.side is 2", kvs_codec_create(&args, &codec));
  args.side = KVS_VALUE;
  const int32_t dims[] = {0, -4, INT32_MAX};
  for (int i = 0; i < 3; ++i) {
    args.dim = dims[i];
    CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_codec_create: ", kvs_codec_create(&args, &codec));
  }
  CHECK(codec == NULL);
}

int main(void) {
  FillPrompt();
  RUN(GivesBackWhatACacheWouldGive);
  RUN(CountsWhatLiesBeyondTheRange);
  RUN(RefusesWhatIsNoSingleStore);
  return 0;
}
