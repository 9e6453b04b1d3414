// Argument structs as programs of other versions have them: shorter, or longer than this library
// knows.
#include <stddef.h>

#include "tests/capi/check.h"

// Fields of a later version behind those of today.
typedef struct NewerAppendArgs {
  kvs_append_args known;
  int64_t option;
} NewerAppendArgs;
typedef struct NewerLayer {
  kvs_layer known;
  int32_t option;
  int32_t reserved;
} NewerLayer;
typedef struct NewerReport {
  kvs_stats_report known;
  int64_t figure;
} NewerReport;

static void TakesShorterStructsWithDefaults(void) {
  kvs_layer layer = SmallLayer();
  layer.struct_size = offsetof(kvs_layer, softcap);
  layer.softcap = 30.0F;  // behind the end: not read
  layer.reserved = 7;
  const kvs_cache_args args = {.struct_size = offsetof(kvs_cache_args, allocator),
                               .spec = "none",
                               .layers = &layer,
                               .layer_count = 1,
                               .allocator = (const kvs_allocator*)1,
                               .decode_rows = 99};
  kvs_cache* cache = NULL;
  CHECK_OK(kvs_cache_create(&args, &cache));
  kvs_append_args append = AppendArgs(KVS_PREFILL, 0, 8);
  CHECK_OK(kvs_append(cache, &append));
  CHECK_OK(kvs_finish_prefill(cache, 0));

  float whole[kQueryHeads * kDim], part[kQueryHeads * kDim], lse[kQueryHeads];
  MustAttend(cache, 7, whole, lse);
  kvs_scratch* scratch = NULL;
  CHECK_OK(kvs_scratch_create(NULL, 0, &scratch));
  const kvs_attend_args attend = {.struct_size = offsetof(kvs_attend_args, lse),
                                  .n = 1,
                                  .positions = prompt.positions + 7,
                                  .queries = ObserveArgs(7, 1).queries,
                                  .scratch = scratch,
                                  .out = part,
                                  .lse = (float*)1,
                                  .overrides = -1};
  CHECK_OK(kvs_attend(cache, &attend));
  CHECK(memcmp(whole, part, sizeof(whole)) == 0);
  kvs_scratch_destroy(scratch);
  kvs_cache_destroy(cache);
}

static void ReadsArraysByTheSizeOfTheirFirst(void) {
  kvs_layer layers[2] = {SmallLayer(), SmallLayer()};
  layers[1].kv_heads = 1;
  char shorter[2 * offsetof(kvs_layer, softcap)];
  NewerLayer longer[2];
  memset(longer, 0, sizeof(longer));
  for (int i = 0; i < 2; ++i) {
    layers[i].struct_size = offsetof(kvs_layer, softcap);
    memcpy(shorter + i * offsetof(kvs_layer, softcap), &layers[i], offsetof(kvs_layer, softcap));
    layers[i].struct_size = sizeof(NewerLayer);
    longer[i].known = layers[i];
  }
  kvs_cache_args args = {.struct_size = sizeof(args), .spec = "none", .layer_count = 2};
  kvs_cache* cache = NULL;
  int64_t rows = 0;
  args.layers = (const kvs_layer*)(void*)shorter;
  CHECK_OK(kvs_cache_create(&args, &cache));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "head 1", kvs_row_count(cache, 1, 1, &rows));
  kvs_cache_destroy(cache);
  args.layers = &longer[0].known;
  CHECK_OK(kvs_cache_create(&args, &cache));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "head 1", kvs_row_count(cache, 1, 1, &rows));
  kvs_cache_destroy(cache);

  longer[1].option = 1;
  CHECK_FAILS(KVS_UNSUPPORTED, "args.layers[1] sets byte 48", kvs_cache_create(&args, &cache));
  CHECK(cache == NULL);
  longer[1].option = 0;
  longer[1].known.struct_size = sizeof(kvs_layer);
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.layers[1].struct_size is 48",
              kvs_cache_create(&args, &cache));
}

static void TakesLongerStructsWhoseRestIsZero(void) {
  kvs_cache* cache = MustCreate("none");
  NewerAppendArgs args;
  memset(&args, 0, sizeof(args));
  args.known = AppendArgs(KVS_PREFILL, 0, 8);
  args.known.struct_size = sizeof(args);
  CHECK_OK(kvs_append(cache, &args.known));
  args.known = AppendArgs(KVS_PREFILL, 8, 8);
  args.known.struct_size = sizeof(args);
  args.option = (int64_t)1 << 56;
  CHECK_FAILS(KVS_UNSUPPORTED, "kvs_append: args sets byte", kvs_append(cache, &args.known));
  int64_t rows = 0;
  CHECK_OK(kvs_row_count(cache, 0, 0, &rows));
  CHECK(rows == 8);
  kvs_cache_destroy(cache);
}

static void RefusesSizesThatNoVersionHas(void) {
  kvs_cache* cache = MustCreate("none");
  kvs_append_args args = AppendArgs(KVS_PREFILL, 0, 8);
  const size_t sizes[] = {0, 1, 8, sizeof(args) - 8, sizeof(args) + 1, 8192, (size_t)-8};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    args.struct_size = sizes[i];
    CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_append: args.struct_size is ", kvs_append(cache, &args));
  }
  kvs_cache_destroy(cache);
}

static void FillsReportsOfAnySize(void) {
  kvs_cache* cache = MustFinish("none | kv=int8", 64);
  kvs_stats_report whole = {.struct_size = sizeof(whole)}, part;
  NewerReport newer;
  CHECK_OK(kvs_stats(cache, -1, -1, &whole));
  memset(&part, 0x5A, sizeof(part));
  part.struct_size = offsetof(kvs_stats_report, f16_rows_bytes);
  CHECK_OK(kvs_stats(cache, -1, -1, &part));
  CHECK(part.full_bytes == whole.full_bytes && part.value_full_bytes == whole.value_full_bytes);
  CHECK(part.f16_rows_bytes == 0x5A5A5A5A5A5A5A5A);  // the caller's own
  memset(&newer, 0x5A, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  CHECK_OK(kvs_stats(cache, -1, -1, &newer.known));
  CHECK(newer.figure == 0 && newer.known.struct_size == sizeof(newer));
  CHECK(newer.known.resident_ratio == whole.resident_ratio);
  part.struct_size = 4;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "report.struct_size is 4", kvs_stats(cache, -1, -1, &part));
  kvs_cache_destroy(cache);
}

int main(void) {
  FillPrompt();
  RUN(TakesShorterStructsWithDefaults);
  RUN(ReadsArraysByTheSizeOfTheirFirst);
  RUN(TakesLongerStructsWhoseRestIsZero);
  RUN(RefusesSizesThatNoVersionHas);
  RUN(FillsReportsOfAnySize);
  return 0;
}
