// NULL and nonsense in every call: an error with the name of the call and of what is wrong.
#include <math.h>
#include <stdint.h>

#include "tests/capi/check.h"

#define CHECK_INVALID(text, call) CHECK_FAILS(KVS_INVALID_ARGUMENT, text, call)

static const char kSpec[] = "snapkv(budget=16,window=4,sinks=2) | kv=int8";

static void RefusesNullHandles(void) {
  int64_t number = 0;
  int32_t position = 0;
  size_t bytes = 0;
  kvs_cache* cache = NULL;
  kvs_append_args append = AppendArgs(KVS_PREFILL, 0, 4);
  kvs_observe_args observe = ObserveArgs(0, 4);
  kvs_attend_args attend = {.struct_size = sizeof(attend)};
  kvs_gather_args gather = {.struct_size = sizeof(gather)};
  kvs_visible_args visible = {.struct_size = sizeof(visible)};
  kvs_stats_report report = {.struct_size = sizeof(report)};
  kvs_sink sink = {.struct_size = sizeof(sink)};
  kvs_source source = {.struct_size = sizeof(source)};
  kvs_encode_args encode = {.struct_size = sizeof(encode)};
  kvs_decode_args decode = {.struct_size = sizeof(decode)};
  kvs_cache_destroy(NULL);
  kvs_scratch_destroy(NULL);
  kvs_codec_destroy(NULL);
  CHECK_INVALID("kvs_fork: cache is NULL", kvs_fork(NULL, &cache));
  CHECK_INVALID("kvs_clear: cache is NULL", kvs_clear(NULL));
  CHECK_INVALID("kvs_append: cache is NULL", kvs_append(NULL, &append));
  CHECK_INVALID("kvs_observe: cache is NULL", kvs_observe(NULL, &observe));
  CHECK_INVALID("kvs_set_external_scores: cache is NULL",
                kvs_set_external_scores(NULL, 0, NULL, 0));
  CHECK_INVALID("kvs_finish_prefill: cache is NULL", kvs_finish_prefill(NULL, 0));
  CHECK_INVALID("kvs_evict: cache is NULL", kvs_evict(NULL, 0));
  CHECK_INVALID("kvs_attend: cache is NULL", kvs_attend(NULL, &attend));
  CHECK_INVALID("kvs_attend_scratch_bytes: cache is NULL",
                kvs_attend_scratch_bytes(NULL, 0, 1, 1, &bytes));
  CHECK_INVALID("kvs_row_count: cache is NULL", kvs_row_count(NULL, 0, 0, &number));
  CHECK_INVALID("kvs_next_position: cache is NULL", kvs_next_position(NULL, &position));
  CHECK_INVALID("kvs_oldest_exact_position: cache is NULL",
                kvs_oldest_exact_position(NULL, &position));
  CHECK_INVALID("kvs_positions: cache is NULL", kvs_positions(NULL, 0, 0, 1, &position));
  CHECK_INVALID("kvs_gather: cache is NULL", kvs_gather(NULL, &gather));
  CHECK_INVALID("kvs_visible: cache is NULL", kvs_visible(NULL, &visible));
  CHECK_INVALID("kvs_trim: cache is NULL", kvs_trim(NULL, 0, 0, &number));
  CHECK_INVALID("kvs_stats: cache is NULL", kvs_stats(NULL, -1, -1, &report));
  CHECK_INVALID("kvs_layer_text: cache is NULL", kvs_layer_text(NULL, 0, 0, NULL, 0, &bytes));
  CHECK_INVALID("kvs_save: cache is NULL", kvs_save(NULL, "", &sink));
  CHECK_INVALID("kvs_save_file: cache is NULL", kvs_save_file(NULL, "", "x"));
  CHECK_INVALID("kvs_load: cache is NULL", kvs_load(NULL, NULL, &source));
  CHECK_INVALID("kvs_load_file: cache is NULL", kvs_load_file(NULL, NULL, "x"));
  CHECK_INVALID("kvs_encoded_size: codec is NULL", kvs_encoded_size(NULL, 1, &number, &number));
  CHECK_INVALID("kvs_encode_rows: codec is NULL", kvs_encode_rows(NULL, &encode));
  CHECK_INVALID("kvs_decode_rows: codec is NULL", kvs_decode_rows(NULL, &decode));
}

static void RefusesNullArgumentsAndAnswers(void) {
  kvs_cache* cache = MustFinish(kSpec, 32);
  kvs_cache* none = cache;
  kvs_cache_args create = {.struct_size = sizeof(create)};
  CHECK_INVALID("kvs_cache_create: args is NULL", kvs_cache_create(NULL, &none));
  CHECK(none == NULL);  // a failed call leaves no handle
  CHECK_INVALID("kvs_cache_create: the place of the handle is NULL",
                kvs_cache_create(&create, NULL));
  CHECK_INVALID("kvs_fork: the place", kvs_fork(cache, NULL));
  CHECK_INVALID("kvs_scratch_create: the place", kvs_scratch_create(NULL, 0, NULL));
  CHECK_INVALID("kvs_codec_create: the place", kvs_codec_create(NULL, NULL));
  CHECK_INVALID("kvs_cache_restore: the place", kvs_cache_restore(NULL, NULL, NULL, NULL));
  CHECK_INVALID("kvs_append: args is NULL", kvs_append(cache, NULL));
  CHECK_INVALID("kvs_observe: args is NULL", kvs_observe(cache, NULL));
  CHECK_INVALID("kvs_attend: args is NULL", kvs_attend(cache, NULL));
  CHECK_INVALID("kvs_gather: args is NULL", kvs_gather(cache, NULL));
  CHECK_INVALID("kvs_visible: args is NULL", kvs_visible(cache, NULL));
  CHECK_INVALID("kvs_row_count: rows is NULL", kvs_row_count(cache, 0, 0, NULL));
  CHECK_INVALID("kvs_next_position: the place", kvs_next_position(cache, NULL));
  CHECK_INVALID("kvs_oldest_exact_position: the place", kvs_oldest_exact_position(cache, NULL));
  CHECK_INVALID("kvs_positions: positions is NULL", kvs_positions(cache, 0, 0, 16, NULL));
  CHECK_INVALID("kvs_stats: report is NULL", kvs_stats(cache, -1, -1, NULL));
  CHECK_INVALID("kvs_layer_text: text is NULL", kvs_layer_text(cache, 0, 0, NULL, 4, NULL));
  CHECK_INVALID("kvs_attend_scratch_bytes: bytes is NULL",
                kvs_attend_scratch_bytes(cache, 0, 1, 1, NULL));
  kvs_cache_destroy(cache);
}

static void RefusesBadShapesAndSpecs(void) {
  kvs_layer layer = SmallLayer();
  kvs_cache_args args = {
      .struct_size = sizeof(args), .spec = "none", .layers = &layer, .layer_count = 1};
  kvs_cache* cache = NULL;
  args.spec = NULL;
  CHECK_INVALID("args.spec is NULL", kvs_cache_create(&args, &cache));
  args.spec = "snapkv(budget=9) | kv=int9";
  CHECK_INVALID("column ", kvs_cache_create(&args, &cache));
  args.spec = "none";
  args.layers = NULL;
  CHECK_INVALID("args.layers is NULL", kvs_cache_create(&args, &cache));
  args.layers = &layer;
  const int64_t counts[] = {0, -1, INT64_MAX};
  for (int i = 0; i < 3; ++i) {
    args.layer_count = counts[i];
    CHECK_INVALID("args.layer_count is ", kvs_cache_create(&args, &cache));
  }
  args.layer_count = 1;
  args.decode_rows = 2;
  CHECK_INVALID("args.decode_rows is 2", kvs_cache_create(&args, &cache));
  args.decode_rows = 0;
  args.reserved = 1;
  CHECK_INVALID("args.reserved is 1", kvs_cache_create(&args, &cache));
  args.reserved = 0;
  layer.value_is_key_prefix = 2;
  CHECK_INVALID("args.layers[0].value_is_key_prefix is 2", kvs_cache_create(&args, &cache));
  layer = SmallLayer();
  layer.reserved = 3;
  CHECK_INVALID("args.layers[0].reserved is 3", kvs_cache_create(&args, &cache));
  layer = SmallLayer();
  int32_t* const dims[] = {&layer.query_heads, &layer.kv_heads, &layer.key_dim, &layer.value_dim};
  const int32_t wrong[] = {0, -1, INT32_MIN, INT32_MAX};
  for (int d = 0; d < 4; ++d) {
    for (int w = 0; w < 4; ++w) {
      layer = SmallLayer();
      *dims[d] = wrong[w];
      CHECK_INVALID("kvs_cache_create: ", kvs_cache_create(&args, &cache));
    }
  }
  layer = SmallLayer();
  layer.scale = NAN;
  CHECK_INVALID("scale", kvs_cache_create(&args, &cache));
}

static void RefusesBadRows(void) {
  kvs_cache* cache = MustCreate(kSpec);
  kvs_append_args args = AppendArgs(KVS_PREFILL, 0, 4);
  args.layer = 1;
  CHECK_INVALID("layer 1 is outside [0, 1)", kvs_append(cache, &args));
  args.layer = -1;
  CHECK_INVALID("layer -1 is outside", kvs_append(cache, &args));
  args = AppendArgs(17, 0, 4);
  CHECK_INVALID("args.phase is 17", kvs_append(cache, &args));
  args = AppendArgs(KVS_PREFILL, 0, 4);
  const int64_t counts[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 31};
  for (int i = 0; i < 4; ++i) {
    args.n = counts[i];
    CHECK_INVALID("args.n is ", kvs_append(cache, &args));
  }
  args.n = 4;
  args.positions = NULL;
  CHECK_INVALID("args.positions is NULL", kvs_append(cache, &args));
  args = AppendArgs(KVS_PREFILL, 0, 4);
  args.keys.data = NULL;
  CHECK_INVALID("args.keys.data is NULL", kvs_append(cache, &args));
  args = AppendArgs(KVS_PREFILL, 0, 4);
  args.values.type = 3;
  CHECK_INVALID("args.values.type is 3", kvs_append(cache, &args));
  args.values.type = -1;
  CHECK_INVALID("args.values.type is -1", kvs_append(cache, &args));
  args = AppendArgs(KVS_PREFILL, 0, 4);
  args.values.reserved = 1;
  CHECK_INVALID("args.values.reserved is 1", kvs_append(cache, &args));
  args = AppendArgs(KVS_PREFILL, 0, 4);
  args.keys.row_stride = 1;
  CHECK_INVALID("row_stride 1", kvs_append(cache, &args));
  args = AppendArgs(KVS_PREFILL, 0, 4);
  args.keys.head_stride = -kDim;
  CHECK_INVALID("head_stride -32", kvs_append(cache, &args));
  args = AppendArgs(KVS_DECODE, 0, 4);
  CHECK_FAILS(KVS_STATE, "phase decode", kvs_append(cache, &args));
  float spoiled[kKvHeads * 4 * kDim] = {0};
  spoiled[kDim + 3] = INFINITY;
  args = AppendArgs(KVS_PREFILL, 0, 4);
  args.values = (kvs_rows){.data = spoiled, .type = KVS_F32};
  CHECK_FAILS(KVS_NON_FINITE, "row 1", kvs_append(cache, &args));
  int64_t rows = -1;
  CHECK_OK(kvs_row_count(cache, 0, 0, &rows));
  CHECK(rows == 0);  // nothing of all this stayed
  kvs_cache_destroy(cache);
}

static void RefusesBadReads(void) {
  kvs_cache* cache = MustFinish(kSpec, 32);
  kvs_scratch* scratch = NULL;
  float out[kQueryHeads * kDim];
  int64_t number = 0;
  size_t bytes = 0;
  CHECK_OK(kvs_scratch_create(NULL, 0, &scratch));
  kvs_attend_args attend = {.struct_size = sizeof(attend),
                            .n = 1,
                            .positions = prompt.positions,
                            .queries = ObserveArgs(0, 1).queries};
  CHECK_INVALID("args.scratch is NULL", kvs_attend(cache, &attend));
  attend.scratch = scratch;
  CHECK_INVALID("args.out is NULL", kvs_attend(cache, &attend));
  attend.out = out;
  attend.overrides = 8;
  CHECK_INVALID("args.overrides is 8", kvs_attend(cache, &attend));
  attend.overrides = KVS_OVERRIDE_SCALE;
  attend.scale = -1.0F;
  CHECK_INVALID("scale", kvs_attend(cache, &attend));
  attend.overrides = 0;
  attend.reserved = 1;
  CHECK_INVALID("args.reserved is 1", kvs_attend(cache, &attend));
  attend.reserved = 0;
  CHECK_OK(kvs_attend(cache, &attend));
  CHECK_INVALID("memory is NULL", kvs_scratch_create(NULL, 1, &scratch));
  CHECK_INVALID("workers is 0", kvs_attend_scratch_bytes(cache, 0, 1, 0, &bytes));
  CHECK_INVALID("n is -1", kvs_attend_scratch_bytes(cache, 0, -1, 1, &bytes));
  CHECK_INVALID("layer index 1", kvs_attend_scratch_bytes(cache, 1, 1, 1, &bytes));
  kvs_scratch_destroy(attend.scratch);

  CHECK_INVALID("head 2 is outside [0, 2)", kvs_row_count(cache, 0, 2, &number));
  kvs_gather_args gather = {.struct_size = sizeof(gather), .rows = 15};
  CHECK_INVALID("rows is 15, kvs_row_count of layer 0, head 0 is 16", kvs_gather(cache, &gather));
  gather.rows = -1;
  CHECK_INVALID("rows is -1", kvs_gather(cache, &gather));
  kvs_visible_args visible = {
      .struct_size = sizeof(visible), .n = 1, .positions = prompt.positions, .rows = 16};
  CHECK_INVALID("args.mask is NULL", kvs_visible(cache, &visible));
  kvs_stats_report report = {.struct_size = sizeof(report)};
  CHECK_INVALID("layer -1", kvs_stats(cache, -1, 0, &report));
  CHECK_INVALID("layer 5", kvs_stats(cache, 5, -1, &report));
  CHECK_INVALID("which is 9", kvs_layer_text(cache, 0, 9, NULL, 0, NULL));
  CHECK_INVALID("allow_inexact is 2", kvs_trim(cache, 32, 2, NULL));
  CHECK_INVALID("scratch_limit_bytes is -1", kvs_finish_prefill(cache, -1));
  CHECK_FAILS(KVS_STATE, "before", kvs_finish_prefill(cache, 0));
  CHECK_INVALID("scores", kvs_set_external_scores(cache, 0, out, -1));
  kvs_cache_destroy(cache);

  cache = MustCreate(kSpec);
  CHECK_FAILS(KVS_STATE, "single heads", kvs_stats(cache, 0, 0, &report));
  kvs_cache_destroy(cache);
}

static void KeepsMessagesToOneBoundedLine(void) {
  enum { kCharacters = 1000 };
  static char path[2 * kCharacters + 2] = "a";
  kvs_cache* cache = MustCreate("none");
  for (int i = 0; i < kCharacters; ++i) memcpy(path + 1 + 2 * i, "\xC3\xA9", 2);
  CHECK_FAILS(KVS_IO, "kvs_load_file: a\xC3\xA9", kvs_load_file(cache, NULL, path));
  // 1023 bytes hold the name of the call, "a" and 503 whole characters.
  CHECK(strlen(kvs_last_error()) == strlen("kvs_load_file: a") + 503 * 2);
  kvs_cache_destroy(cache);
}

static void NamesItsResults(void) {
  CHECK(strcmp(kvs_result_name(KVS_OK), "ok") == 0);
  CHECK(strcmp(kvs_result_name(KVS_OUT_OF_MEMORY), "out of memory") == 0);
  CHECK(strcmp(kvs_result_name(KVS_INTERNAL), "internal") == 0);
  CHECK(strcmp(kvs_result_name(-1), "unknown result") == 0);
  CHECK(strcmp(kvs_result_name(KVS_INTERNAL + 1), "unknown result") == 0);
}

int main(void) {
  CHECK(strcmp(kvs_last_error(), "") == 0);
  FillPrompt();
  RUN(RefusesNullHandles);
  RUN(RefusesNullArgumentsAndAnswers);
  RUN(RefusesBadShapesAndSpecs);
  RUN(RefusesBadRows);
  RUN(RefusesBadReads);
  RUN(KeepsMessagesToOneBoundedLine);
  RUN(NamesItsResults);
  return 0;
}
