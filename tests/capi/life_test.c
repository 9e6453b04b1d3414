// A cache through its life: what each call of the C interface gives.
#include <math.h>

#include "tests/capi/check.h"

static const char kSpec[] = "snapkv(budget=25%,window=8) | k=int8, v=int4";
enum { kPrompt = 256, kOut = kQueryHeads * kDim };

// Attention of one query over the rows that kvs_gather gives, in double precision.
static void Oracle(const kvs_cache* cache, int64_t token, double* out, double* lse) {
  static float keys[kMostRows * kDim], values[kMostRows * kDim];
  static int32_t positions[kMostRows];
  const kvs_layer layer = SmallLayer();
  for (int h = 0; h < kQueryHeads; ++h) {
    const float* q = prompt.queries + (token * kQueryHeads + h) * kDim;
    kvs_gather_args gather = {.struct_size = sizeof(gather),
                              .head = h / (kQueryHeads / kKvHeads),
                              .positions = positions,
                              .keys = keys,
                              .values = values};
    CHECK_OK(kvs_row_count(cache, 0, gather.head, &gather.rows));
    CHECK_OK(kvs_gather(cache, &gather));
    double sum = 0;
    for (int d = 0; d < kDim; ++d) out[h * kDim + d] = 0;
    for (int64_t r = 0; r < gather.rows; ++r) {
      if (positions[r] > token) continue;
      double logit = 0;
      for (int d = 0; d < kDim; ++d) logit += (double)q[d] * keys[r * kDim + d];
      const double weight = exp(logit * layer.scale);
      sum += weight;
      for (int d = 0; d < kDim; ++d) out[h * kDim + d] += weight * values[r * kDim + d];
    }
    for (int d = 0; d < kDim; ++d) out[h * kDim + d] /= sum;
    lse[h] = log(sum);
  }
}

// Kernels of int8 keys may round queries to 16 bits: with all elements within [-1, 1] a logit errs
// by at most scale * dim * 2^-16 = 9e-5, a weight by twice that share, and so does an output. f32
// sums of 80 rows add some 1e-6.
static void CheckAttention(const kvs_cache* cache, int64_t token) {
  float out[kOut], lse[kQueryHeads];
  double expected[kOut], expected_lse[kQueryHeads];
  MustAttend(cache, token, out, lse);
  Oracle(cache, token, expected, expected_lse);
  for (int i = 0; i < kOut; ++i) CHECK(fabs(out[i] - expected[i]) < 2e-4);
  for (int h = 0; h < kQueryHeads; ++h) CHECK(fabs(lse[h] - expected_lse[h]) < 2e-4);
}

static void AttendsOverWhatStays(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  for (int64_t token = kPrompt; token < kPrompt + 20; ++token) {
    const kvs_append_args args = AppendArgs(KVS_DECODE, token, 1);
    CHECK_OK(kvs_append(cache, &args));
    CheckAttention(cache, token);
  }
  int32_t next = 0;
  CHECK_OK(kvs_next_position(cache, &next));
  CHECK(next == kPrompt + 20);
  kvs_cache_destroy(cache);
}

static void TellsPositionsAndVisibility(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  int64_t rows = 0;
  CHECK_OK(kvs_row_count(cache, 0, 1, &rows));
  CHECK(rows == kPrompt / 4);
  int32_t positions[kPrompt / 4];
  CHECK_OK(kvs_positions(cache, 0, 1, rows, positions));
  for (int64_t r = 1; r < rows; ++r) CHECK(positions[r - 1] < positions[r]);
  CHECK(positions[0] == 0 && positions[rows - 1] == kPrompt - 1);

  uint8_t mask[2 * kPrompt / 4];
  const int32_t queries[2] = {positions[10], kPrompt};
  const kvs_visible_args args = {.struct_size = sizeof(args),
                                 .head = 1,
                                 .n = 2,
                                 .positions = queries,
                                 .rows = rows,
                                 .mask = mask};
  CHECK_OK(kvs_visible(cache, &args));
  for (int64_t r = 0; r < rows; ++r) CHECK(mask[r] == (r <= 10) && mask[rows + r] == 1);
  kvs_cache_destroy(cache);
}

static void TrimsWhatIsExactAlone(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  const kvs_append_args args = AppendArgs(KVS_DECODE, kPrompt, 10);
  CHECK_OK(kvs_append(cache, &args));
  int32_t exact = 0, next = 0;
  int64_t tokens = 0;
  CHECK_OK(kvs_oldest_exact_position(cache, &exact));
  CHECK(exact == kPrompt);
  CHECK_OK(kvs_trim(cache, kPrompt + 4, 0, &tokens));
  CHECK(tokens == 6);
  CHECK_FAILS(KVS_NOT_EXACT, "kvs_trim: ", kvs_trim(cache, kPrompt - 1, 0, &tokens));
  CHECK_OK(kvs_next_position(cache, &next));
  CHECK(next == kPrompt + 4);
  CHECK_OK(kvs_trim(cache, kPrompt - 1, 1, NULL));
  CHECK_OK(kvs_clear(cache));
  CHECK_OK(kvs_next_position(cache, &next));
  CHECK(next == 0);
  kvs_cache_destroy(cache);
}

static void ForksGoOnAlone(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_cache* fork = NULL;
  CHECK_OK(kvs_fork(cache, &fork));
  kvs_cache_destroy(cache);
  const kvs_append_args args = AppendArgs(KVS_DECODE, kPrompt, 3);
  CHECK_OK(kvs_append(fork, &args));
  CheckAttention(fork, kPrompt + 2);
  kvs_cache_destroy(fork);
}

static void ABatchCountsSharedMemoryOnce(void) {
  kvs_cache* caches[2] = {MustFinish("none | kv=int8", kPrompt), NULL};
  CHECK_OK(kvs_fork(caches[0], &caches[1]));
  kvs_stats_report alone = {.struct_size = sizeof(alone)}, both = {.struct_size = sizeof(both)};
  CHECK_OK(kvs_stats(caches[0], -1, -1, &alone));
  CHECK(alone.shared_bytes > 0);
  CHECK_OK(kvs_stats_of_batch((const kvs_cache* const*)caches, 2, &both));
  CHECK(both.resident_bytes == 2 * alone.resident_bytes - alone.shared_bytes);
  CHECK(both.shared_bytes == alone.shared_bytes);
  CHECK(both.rows_kept == 2 * alone.rows_kept && both.full_bytes == 2 * alone.full_bytes);
  CHECK_OK(kvs_stats_of_batch(NULL, 0, &both));
  CHECK(both.resident_bytes == 0 && both.tokens_seen == 0);
  kvs_cache_destroy(caches[1]);
  caches[1] = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_stats_of_batch: caches[1] is NULL",
              kvs_stats_of_batch((const kvs_cache* const*)caches, 2, &both));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "do not fit into memory",
              kvs_stats_of_batch((const kvs_cache* const*)caches, INT64_MAX / 2, &both));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_stats_of_batch: caches is NULL",
              kvs_stats_of_batch(NULL, 2, &both));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_stats_of_batch: report is NULL",
              kvs_stats_of_batch((const kvs_cache* const*)caches, 1, NULL));
  kvs_cache_destroy(caches[0]);
}

static void ReportsEveryByte(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_stats_report all = {.struct_size = sizeof(all)}, head = {.struct_size = sizeof(head)};
  CHECK_OK(kvs_stats(cache, -1, -1, &all));
  CHECK_OK(kvs_stats(cache, 0, 1, &head));
  CHECK(all.struct_size == sizeof(all));
  CHECK(all.tokens_seen == 2 * kPrompt && all.rows_kept == kPrompt / 2);
  CHECK(head.tokens_seen == kPrompt && head.rows_kept == kPrompt / 4);
  CHECK(all.full_bytes == 2 * kPrompt * 2 * kDim * 2);
  CHECK(all.full_bytes == all.key_full_bytes + all.value_full_bytes);
  CHECK(all.kept_bytes == all.payload_bytes + all.scale_bytes + all.metadata_bytes);
  CHECK(all.kept_bytes == all.key_kept_bytes + all.value_kept_bytes);
  // int8: a byte an element and 2 of scale; int4: half and 4 of scale.
  CHECK(all.payload_bytes == all.rows_kept * (kDim + kDim / 2));
  CHECK(all.scale_bytes == all.rows_kept * (2 + 4));
  CHECK(all.resident_bytes ==
        all.kept_bytes + all.padding_bytes + all.reserved_bytes + all.observation_bytes);
  CHECK(all.keep_rate == 0.25);
  CHECK(all.eviction_ratio == (double)all.full_bytes / (double)all.f16_rows_bytes);
  CHECK(all.storage_ratio == (double)all.f16_rows_bytes / (double)all.kept_bytes);
  CHECK(all.total_ratio == (double)all.full_bytes / (double)all.kept_bytes);
  CHECK(all.resident_ratio == (double)all.full_bytes / (double)all.resident_bytes);
  CHECK(all.lifetime_tokens == all.tokens_seen && all.shared_bytes == 0);
  CHECK(all.scratch_peak_bytes > 0);
  kvs_cache_destroy(cache);
}

static void SaysWhatWasDoneInALayer(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  char text[256], cut[8];
  size_t length = 0;
  CHECK_OK(kvs_layer_text(cache, 0, KVS_TEXT_APPLIED, text, sizeof(text), &length));
  CHECK(strstr(text, "window_attention(") == text && strlen(text) == length);
  CHECK_OK(kvs_layer_text(cache, 0, KVS_TEXT_APPLIED, cut, sizeof(cut), &length));
  CHECK(strcmp(cut, "window_") == 0 && length == strlen(text));
  CHECK_OK(kvs_layer_text(cache, 0, KVS_TEXT_KEY_PATH, text, sizeof(text), NULL));
  CHECK(strcmp(text, "fused") == 0);
  CHECK_OK(kvs_layer_text(cache, 0, KVS_TEXT_NOTE, NULL, 0, &length));
  CHECK(length == 0);
  kvs_cache_destroy(cache);
}

static void TakesScoresOfTheCaller(void) {
  kvs_cache* cache = MustCreate("external(budget=2,sinks=0,split=adaptive(floor=0))");
  const kvs_append_args args = AppendArgs(KVS_PREFILL, 0, 6);
  CHECK_OK(kvs_append(cache, &args));
  const float scores[kKvHeads * 6] = {0, 9, 0, 0, 8, 7, 0, 0, 6, 0, 0, 0};
  CHECK_OK(kvs_set_external_scores(cache, 0, scores, kKvHeads * 6));
  CHECK_OK(kvs_finish_prefill(cache, 1 << 20));
  int32_t positions[3];
  CHECK_OK(kvs_positions(cache, 0, 0, 3, positions));
  CHECK(positions[0] == 1 && positions[1] == 4 && positions[2] == 5);
  CHECK_OK(kvs_positions(cache, 0, 1, 1, positions));
  CHECK(positions[0] == 2);
  for (int32_t head = 0; head < kKvHeads; ++head) {
    int64_t rows = 0;
    kvs_stats_report report = {.struct_size = sizeof(report)};
    CHECK_OK(kvs_row_count(cache, 0, head, &rows));
    CHECK_OK(kvs_stats(cache, 0, head, &report));
    CHECK(rows == (head == 0 ? 3 : 1) && report.rows_kept == rows);
  }
  kvs_cache_destroy(cache);
}

// Ones and twos, which bf16 and f16 hold.
static void TakesRowsOfAnyOrderAndType(void) {
  static uint16_t packed[kKvHeads * 8 * kDim];
  static float by_token[kKvHeads * 8 * kDim], keys[8 * kDim];
  static const uint16_t bits[2][2] = {{0x3C00, 0x4000}, {0x3F80, 0x4000}};  // 1 and 2
  for (int32_t type = KVS_F16; type <= KVS_BF16; ++type) {
    for (int i = 0; i < kKvHeads * 8 * kDim; ++i) {
      const int head = i / (8 * kDim), token = i / kDim % 8, d = i % kDim;
      const int two = (head + token * d) % 3 == 0;
      packed[i] = bits[type - KVS_F16][two];
      by_token[(token * kKvHeads + head) * kDim + d] = two ? 2.0F : 1.0F;
    }
    kvs_cache* cache = MustCreate("none | kv=f16");
    kvs_append_args args = AppendArgs(KVS_PREFILL, 0, 8);
    args.keys = (kvs_rows){.data = packed, .type = type};
    CHECK_OK(kvs_append(cache, &args));
    const kvs_gather_args gather = {
        .struct_size = sizeof(gather), .head = 1, .rows = 8, .keys = keys};
    CHECK_OK(kvs_gather(cache, &gather));
    for (int i = 0; i < 8 * kDim; ++i) {
      CHECK(keys[i] == by_token[(i / kDim * kKvHeads + 1) * kDim + i % kDim]);
    }
    kvs_cache_destroy(cache);
  }
}

// The values that a call may give in place of the layer's own.
static void OverridesScaleSoftcapAndWindow(void) {
  kvs_cache* cache = MustFinish("none | kv=f16", 64);
  kvs_layer other = SmallLayer();
  other.scale = 0.5F;
  other.softcap = 3.0F;
  other.sliding_window = 16;
  const kvs_cache_args create = {
      .struct_size = sizeof(create), .spec = "none | kv=f16", .layers = &other, .layer_count = 1};
  kvs_cache* expected_cache = NULL;
  CHECK_OK(kvs_cache_create(&create, &expected_cache));
  const kvs_append_args append = AppendArgs(KVS_PREFILL, 0, 64);
  CHECK_OK(kvs_append(expected_cache, &append));
  CHECK_OK(kvs_finish_prefill(expected_cache, 0));
  float expected[kOut], out[kOut], lse[kQueryHeads];
  MustAttend(expected_cache, 63, expected, lse);
  kvs_attend_args args = {
      .struct_size = sizeof(args),
      .n = 1,
      .positions = prompt.positions + 63,
      .queries = ObserveArgs(63, 1).queries,
      .out = out,
      .overrides = KVS_OVERRIDE_SCALE | KVS_OVERRIDE_SOFTCAP | KVS_OVERRIDE_SLIDING_WINDOW,
      .scale = other.scale,
      .softcap = other.softcap,
      .sliding_window = other.sliding_window};
  CHECK_OK(kvs_scratch_create(NULL, 0, &args.scratch));
  CHECK_OK(kvs_attend(cache, &args));
  // The same rows, in other blocks: sums in another order.
  for (int i = 0; i < kOut; ++i) CHECK(fabs(out[i] - expected[i]) < 1e-5);
  for (int flag = 1; flag <= 4; flag *= 2) {  // each counts
    args.overrides = 7 - flag;
    CHECK_OK(kvs_attend(cache, &args));
    double most = 0;
    for (int i = 0; i < kOut; ++i) most = fmax(most, fabs(out[i] - expected[i]));
    CHECK(most > 1e-3);
  }
  kvs_scratch_destroy(args.scratch);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(expected_cache);
}

static void TellsWhichStoreHoldsARow(void) {
  kvs_cache* cache = MustFinish("none | kv=int8 | tail=8 | exact_sinks=4", 64);
  int32_t tiers[64];
  const kvs_gather_args args = {.struct_size = sizeof(args), .rows = 64, .tiers = tiers};
  CHECK_OK(kvs_gather(cache, &args));
  for (int r = 0; r < 64; ++r) CHECK(tiers[r] == (r < 4 || r >= 56 ? KVS_EXACT_ROW : 0));
  kvs_cache_destroy(cache);
}

// A sink logit s takes exp(s) of the softmax: out shrinks by what it adds to the sum.
static void GivesSinkLogitsTheirShare(void) {
  kvs_cache* cache = MustFinish("none | kv=f16", 64);
  float plain[kOut], lse[kQueryHeads], out[kOut], with_sink[kQueryHeads];
  const float sinks[kQueryHeads] = {0, 2, -1, 4};
  MustAttend(cache, 63, plain, lse);
  kvs_attend_args args = {.struct_size = sizeof(args),
                          .n = 1,
                          .positions = prompt.positions + 63,
                          .queries = ObserveArgs(63, 1).queries,
                          .out = out,
                          .lse = with_sink,
                          .sink_logits = sinks};
  CHECK_OK(kvs_scratch_create(NULL, 0, &args.scratch));
  CHECK_OK(kvs_attend(cache, &args));
  for (int h = 0; h < kQueryHeads; ++h) {
    const double sum = exp(lse[h]), all = sum + exp(sinks[h]);
    CHECK(fabs(with_sink[h] - log(all)) < 1e-5);  // f32 of numbers near 4
    for (int d = 0; d < kDim; ++d) {
      CHECK(fabs(out[h * kDim + d] - plain[h * kDim + d] * sum / all) < 1e-5);
    }
  }
  kvs_scratch_destroy(args.scratch);
  kvs_cache_destroy(cache);
}

static void EvictsByTheSchedule(void) {
  kvs_cache* cache = MustCreate("recency(budget=16) | kv=int8 | schedule=every(8)");
  kvs_append_args args = AppendArgs(KVS_PREFILL, 0, 16);
  CHECK_OK(kvs_append(cache, &args));
  CHECK_OK(kvs_finish_prefill(cache, 0));
  int64_t rows = 0;
  for (int64_t token = 16; token < 24; ++token) {
    args = AppendArgs(KVS_DECODE, token, 1);
    CHECK_OK(kvs_append(cache, &args));
    CHECK_OK(kvs_evict(cache, 0));
    CHECK_OK(kvs_row_count(cache, 0, 0, &rows));
    CHECK(rows == (token < 23 ? token + 1 : 16));
  }
  kvs_cache_destroy(cache);
}

static void AttendsOverCompressedKeysOfMla(void) {
  kvs_layer layer = SmallLayer();
  layer.query_heads = 2;
  layer.kv_heads = 1;
  layer.value_dim = 16;
  layer.value_is_key_prefix = 1;
  const kvs_cache_args create = {
      .struct_size = sizeof(create), .spec = "none | kv=f16", .layers = &layer, .layer_count = 1};
  kvs_cache* cache = NULL;
  CHECK_OK(kvs_cache_create(&create, &cache));
  kvs_append_args args = AppendArgs(KVS_PREFILL, 0, 5);
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.values", kvs_append(cache, &args));
  args.values = (kvs_rows){0};
  CHECK_OK(kvs_append(cache, &args));
  CHECK_OK(kvs_finish_prefill(cache, 0));
  kvs_cache_destroy(cache);
}

int main(void) {
  FillPrompt();
  RUN(AttendsOverWhatStays);
  RUN(TellsPositionsAndVisibility);
  RUN(TrimsWhatIsExactAlone);
  RUN(ForksGoOnAlone);
  RUN(ABatchCountsSharedMemoryOnce);
  RUN(ReportsEveryByte);
  RUN(SaysWhatWasDoneInALayer);
  RUN(TakesScoresOfTheCaller);
  RUN(TakesRowsOfAnyOrderAndType);
  RUN(OverridesScaleSoftcapAndWindow);
  RUN(TellsWhichStoreHoldsARow);
  RUN(GivesSinkLogitsTheirShare);
  RUN(EvictsByTheSchedule);
  RUN(AttendsOverCompressedKeysOfMla);
  return 0;
}
