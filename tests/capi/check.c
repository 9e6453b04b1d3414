#include "tests/capi/check.h"

Prompt prompt;

float* NextRows(float* to, size_t count) {
  static uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;  // Numerical Recipes' generator
    to[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0F;
  }
  return to;
}

void FillPrompt(void) {
  for (int32_t i = 0; i < kMostRows; ++i) prompt.positions[i] = i;
  NextRows(prompt.keys, sizeof(prompt.keys) / sizeof(float));
  NextRows(prompt.values, sizeof(prompt.values) / sizeof(float));
  NextRows(prompt.queries, sizeof(prompt.queries) / sizeof(float));
}

kvs_layer SmallLayer(void) {
  const kvs_layer layer = {.struct_size = sizeof(layer),
                           .query_heads = kQueryHeads,
                           .kv_heads = kKvHeads,
                           .key_dim = kDim,
                           .value_dim = kDim,
                           .scale = 0.176F};
  return layer;
}

kvs_cache* MustCreate(const char* spec) {
  const kvs_layer layer = SmallLayer();
  const kvs_cache_args args = {
      .struct_size = sizeof(args), .spec = spec, .layers = &layer, .layer_count = 1};
  kvs_cache* cache = NULL;
  CHECK_OK(kvs_cache_create(&args, &cache));
  return cache;
}

static kvs_rows TokenMajor(const float* rows, int heads, int64_t first) {
  const kvs_rows view = {.data = rows + first * heads * kDim,
                         .head_stride = kDim,
                         .row_stride = (int64_t)heads * kDim,
                         .type = KVS_F32};
  return view;
}

kvs_append_args AppendArgs(int32_t phase, int64_t first, int64_t n) {
  const kvs_append_args args = {.struct_size = sizeof(args),
                                .phase = phase,
                                .n = n,
                                .positions = prompt.positions + first,
                                .keys = TokenMajor(prompt.keys, kKvHeads, first),
                                .values = TokenMajor(prompt.values, kKvHeads, first)};
  return args;
}

kvs_observe_args ObserveArgs(int64_t first, int64_t n) {
  const kvs_observe_args args = {.struct_size = sizeof(args),
                                 .n = n,
                                 .positions = prompt.positions + first,
                                 .queries = TokenMajor(prompt.queries, kQueryHeads, first)};
  return args;
}

kvs_cache* MustFinish(const char* spec, int64_t n) {
  kvs_cache* cache = MustCreate(spec);
  const kvs_append_args append = AppendArgs(KVS_PREFILL, 0, n);
  const kvs_observe_args observe = ObserveArgs(0, n);
  CHECK_OK(kvs_append(cache, &append));
  CHECK_OK(kvs_observe(cache, &observe));
  CHECK_OK(kvs_finish_prefill(cache, 0));
  return cache;
}

void MustAttend(const kvs_cache* cache, int64_t token, float* out, float* lse) {
  kvs_scratch* scratch = NULL;
  CHECK_OK(kvs_scratch_create(NULL, 0, &scratch));
  const kvs_attend_args args = {.struct_size = sizeof(args),
                                .n = 1,
                                .positions = prompt.positions + token,
                                .queries = TokenMajor(prompt.queries, kQueryHeads, token),
                                .scratch = scratch,
                                .out = out,
                                .lse = lse};
  CHECK_OK(kvs_attend(cache, &args));
  kvs_scratch_destroy(scratch);
}
