// Attention in memory that the caller lends.
#include "tests/capi/check.h"

enum { kLong = 20000, kChunk = 500 };

// Enough rows that a head is cut into three ranges, whose sums take memory too.
static kvs_cache* LongCache(void) {
  kvs_cache* cache = MustCreate("none | kv=int8");
  static int32_t positions[kChunk];
  kvs_append_args args = AppendArgs(KVS_PREFILL, 0, kChunk);
  args.positions = positions;
  for (int first = 0; first < kLong; first += kChunk) {
    for (int i = 0; i < kChunk; ++i) positions[i] = first + i;
    CHECK_OK(kvs_append(cache, &args));
  }
  CHECK_OK(kvs_finish_prefill(cache, 0));
  return cache;
}

static void AttendsInExactlyTheBytesThatItAsksFor(void) {
  kvs_cache* cache = LongCache();
  enum { kQueries = 5 };
  static float expected[kQueryHeads * kQueries * kDim], out[kQueryHeads * kQueries * kDim];
  int32_t positions[kQueries];
  for (int i = 0; i < kQueries; ++i) positions[i] = kLong - kQueries + i;
  kvs_attend_args args = {.struct_size = sizeof(args),
                          .n = kQueries,
                          .positions = positions,
                          .queries = ObserveArgs(0, kQueries).queries,
                          .out = expected};
  CHECK_OK(kvs_scratch_create(NULL, 0, &args.scratch));
  CHECK_OK(kvs_attend(cache, &args));
  kvs_scratch_destroy(args.scratch);

  size_t bytes = 0, of_one = 0;
  CHECK_OK(kvs_attend_scratch_bytes(cache, 0, kQueries, 1, &bytes));
  CHECK_OK(kvs_attend_scratch_bytes(cache, 0, 1, 1, &of_one));
  CHECK(of_one < bytes);
  char* memory = malloc(bytes + 64);
  CHECK(memory != NULL);
  args.out = out;
  for (size_t skew = 0; skew < 64; skew += 7) {
    memset(memory, 0xFF, bytes + 64);
    memset(out, 0, sizeof(out));
    CHECK_OK(kvs_scratch_create(memory + skew, bytes, &args.scratch));
    CHECK_OK(kvs_attend(cache, &args));
    CHECK(memcmp(expected, out, sizeof(out)) == 0);
    for (size_t i = bytes + skew; i < bytes + 64; ++i) CHECK((unsigned char)memory[i] == 0xFF);
    kvs_scratch_destroy(args.scratch);
  }
  CHECK_OK(kvs_scratch_create(memory, bytes - 64, &args.scratch));
  CHECK_FAILS(KVS_OUT_OF_MEMORY, "the scratch has ", kvs_attend(cache, &args));
  kvs_scratch_destroy(args.scratch);
  CHECK_OK(kvs_scratch_create(memory, 0, &args.scratch));
  CHECK_FAILS(KVS_OUT_OF_MEMORY, "the scratch has 0 bytes", kvs_attend(cache, &args));
  kvs_scratch_destroy(args.scratch);
  free(memory);
  kvs_cache_destroy(cache);
}

int main(void) {
  FillPrompt();
  RUN(AttendsInExactlyTheBytesThatItAsksFor);
  return 0;
}
