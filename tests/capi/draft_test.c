// Rows of a draft, accepted in part or taken back.
#include "tests/capi/check.h"

static const char kSpec[] = "snapkv(budget=50%,window=8) | kv=int8 | tail=4";
enum { kPrompt = 100 };

static void Append(kvs_cache* cache, int32_t phase, int64_t first, int64_t n) {
  const kvs_append_args args = AppendArgs(phase, first, n);
  CHECK_OK(kvs_append(cache, &args));
}

static int32_t Next(const kvs_cache* cache) {
  int32_t next = 0;
  CHECK_OK(kvs_next_position(cache, &next));
  return next;
}

static int32_t CanRollback(const kvs_cache* cache, int64_t n) {
  int32_t can = -1;
  CHECK_OK(kvs_can_rollback(cache, n, &can));
  return can;
}

static void CheckSame(const kvs_cache* a, const kvs_cache* b) {
  float of_a[kQueryHeads * kDim], of_b[kQueryHeads * kDim], lse_a[kQueryHeads], lse_b[kQueryHeads];
  MustAttend(a, Next(a) - 1, of_a, lse_a);
  MustAttend(b, Next(b) - 1, of_b, lse_b);
  CHECK(Next(a) == Next(b));
  CHECK(memcmp(of_a, of_b, sizeof(of_a)) == 0 && memcmp(lse_a, lse_b, sizeof(lse_a)) == 0);
}

static void AcceptsTheFirstRowsOfADraft(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_cache* same = MustFinish(kSpec, kPrompt);
  CHECK_OK(kvs_reserve_speculative(cache, 8));
  CHECK(CanRollback(cache, 8) == 1 && CanRollback(cache, 9) == 0);
  Append(cache, KVS_VERIFY, kPrompt, 8);
  CHECK(Next(cache) == kPrompt + 8);
  CHECK(CanRollback(cache, 8) == 1 && CanRollback(cache, 9) == 0);
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_accept: ", kvs_accept(cache, 9));
  CHECK_OK(kvs_accept(cache, 5));
  Append(same, KVS_DECODE, kPrompt, 5);
  CheckSame(cache, same);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(same);
}

static void TakesTheLastRowsOfADraftBack(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_cache* same = MustFinish(kSpec, kPrompt);
  Append(cache, KVS_VERIFY, kPrompt, 6);
  CHECK_OK(kvs_rollback(cache, 6));
  CheckSame(cache, same);
  Append(cache, KVS_VERIFY, kPrompt, 6);
  CHECK_OK(kvs_rollback(cache, 2));
  Append(same, KVS_DECODE, kPrompt, 4);
  CheckSame(cache, same);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(same);
}

static void RefusesNonsense(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  int32_t can = 0;
  CHECK_FAILS(KVS_INVALID_ARGUMENT,
              "kvs_reserve_speculative: ", kvs_reserve_speculative(cache, -1));
  CHECK_FAILS(KVS_INVALID_ARGUMENT,
              "kvs_reserve_speculative: ", kvs_reserve_speculative(cache, INT64_MAX));
  CHECK_OK(kvs_reserve_speculative(cache, 2));
  const kvs_append_args args = AppendArgs(KVS_VERIFY, kPrompt, 3);
  CHECK(kvs_append(cache, &args) != KVS_OK);
  CHECK(CanRollback(cache, -1) == 0 && CanRollback(cache, INT64_MAX) == 0);
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_accept: ", kvs_accept(cache, -1));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "kvs_rollback: ", kvs_rollback(cache, INT64_MAX));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "cache is NULL", kvs_reserve_speculative(NULL, 1));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "cache is NULL", kvs_can_rollback(NULL, 1, &can));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "can is NULL", kvs_can_rollback(cache, 1, NULL));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "cache is NULL", kvs_accept(NULL, 1));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "cache is NULL", kvs_rollback(NULL, 1));
  kvs_cache_destroy(cache);
}

int main(void) {
  FillPrompt();
  RUN(AcceptsTheFirstRowsOfADraft);
  RUN(TakesTheLastRowsOfADraftBack);
  RUN(RefusesNonsense);
  return 0;
}
