// quickstart.cc from C: hand in the prompt's keys, values and last queries, compress, then attend
// over what is left. Here the rows are random numbers; an engine has its own.
#include <stdio.h>
#include <stdlib.h>

#include "kvsieve/kvsieve_c.h"

enum { kTokens = 1024, kQueryHeads = 8, kKvHeads = 2, kDim = 64 };

static void Must(kvs_result result) {
  if (result == KVS_OK) return;
  fprintf(stderr, "%s: %s\n", kvs_result_name(result), kvs_last_error());
  exit(1);
}

// [heads, n, kDim], packed.
static kvs_rows RandomRows(float* to, int heads, int n) {
  for (int i = 0; i < heads * n * kDim; ++i) to[i] = (float)rand() / (float)RAND_MAX - 0.5F;
  return (kvs_rows){.data = to, .type = KVS_F32};
}

int main(void) {
  static float keys[kKvHeads * kTokens * kDim], values[kKvHeads * kTokens * kDim];
  static float queries[kQueryHeads * kTokens * kDim], out[kQueryHeads * kDim];
  static int32_t positions[kTokens];
  for (int32_t i = 0; i < kTokens; ++i) positions[i] = i;

  const kvs_layer layer = {.struct_size = sizeof(layer),
                           .query_heads = kQueryHeads,
                           .kv_heads = kKvHeads,
                           .key_dim = kDim,
                           .value_dim = kDim,
                           .scale = 0.125F};
  const kvs_cache_args args = {.struct_size = sizeof(args),
                               .spec = "snapkv(budget=25%) | k=int8, v=int4",
                               .layers = &layer,
                               .layer_count = 1};
  kvs_cache* cache = NULL;
  Must(kvs_cache_create(&args, &cache));

  // The prompt, at once or in chunks; then evict and encode.
  const kvs_append_args prompt = {.struct_size = sizeof(prompt),
                                  .phase = KVS_PREFILL,
                                  .n = kTokens,
                                  .positions = positions,
                                  .keys = RandomRows(keys, kKvHeads, kTokens),
                                  .values = RandomRows(values, kKvHeads, kTokens)};
  Must(kvs_append(cache, &prompt));
  const kvs_observe_args observe = {.struct_size = sizeof(observe),
                                    .n = kTokens,
                                    .positions = positions,
                                    .queries = RandomRows(queries, kQueryHeads, kTokens)};
  Must(kvs_observe(cache, &observe));
  Must(kvs_finish_prefill(cache, 0));

  // Decode: the new token's own rows first, then every query head attends over all that is stored.
  kvs_scratch* scratch = NULL;
  Must(kvs_scratch_create(NULL, 0, &scratch));
  for (int step = 0; step < 3; ++step) {
    int32_t now = 0;
    Must(kvs_next_position(cache, &now));
    const kvs_append_args token = {.struct_size = sizeof(token),
                                   .phase = KVS_DECODE,
                                   .n = 1,
                                   .positions = &now,
                                   .keys = RandomRows(keys, kKvHeads, 1),
                                   .values = RandomRows(values, kKvHeads, 1)};
    Must(kvs_append(cache, &token));
    const kvs_attend_args attend = {.struct_size = sizeof(attend),
                                    .n = 1,
                                    .positions = &now,
                                    .queries = RandomRows(queries, kQueryHeads, 1),
                                    .scratch = scratch,
                                    .out = out};
    Must(kvs_attend(cache, &attend));
  }

  kvs_stats_report report = {.struct_size = sizeof(report)};
  Must(kvs_stats(cache, -1, -1, &report));
  printf("%lld of %lld rows kept, %lld of %lld bytes\n", (long long)report.rows_kept,
         (long long)report.tokens_seen, (long long)report.kept_bytes, (long long)report.full_bytes);
  kvs_scratch_destroy(scratch);
  kvs_cache_destroy(cache);
  return 0;
}
