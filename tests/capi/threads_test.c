// Several threads at once: readers of one cache, writers of its forks, and errors of their own.
#include <pthread.h>

#include "tests/capi/check.h"

enum { kThreads = 4, kRounds = 200, kPrompt = 256, kOut = kQueryHeads * kDim };
static const char kSpec[] = "snapkv(budget=50%,window=8) | kv=int8";

typedef struct Worker {
  pthread_t thread;
  const kvs_cache* shared;
  kvs_cache* fork;
  const float* expected;  // of `shared`
  int index;
} Worker;

static void* ReadAndWrite(void* argument) {
  Worker* worker = argument;
  float out[kOut], lse[kQueryHeads];
  char expected_error[64];
  int64_t rows = 0;
  snprintf(expected_error, sizeof(expected_error), "kvs_row_count: layer %d is outside [0, 1)",
           worker->index + 1);
  for (int round = 0; round < kRounds; ++round) {
    CHECK(kvs_row_count(worker->shared, worker->index + 1, 0, &rows) == KVS_INVALID_ARGUMENT);
    MustAttend(worker->shared, kPrompt - 1, out, lse);
    CHECK(memcmp(out, worker->expected, sizeof(out)) == 0);
    const kvs_append_args append = AppendArgs(KVS_DECODE, kPrompt + round, 1);
    CHECK_OK(kvs_append(worker->fork, &append));
    CHECK(strcmp(kvs_last_error(), expected_error) == 0);
  }
  return NULL;
}

static void ReadersAndForksDoNotDisturbEachOther(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  float expected[kOut], lse[kQueryHeads], out[kThreads][kOut];
  Worker workers[kThreads];
  MustAttend(cache, kPrompt - 1, expected, lse);
  for (int i = 0; i < kThreads; ++i) {
    workers[i] = (Worker){.shared = cache, .expected = expected, .index = i};
    CHECK_OK(kvs_fork(cache, &workers[i].fork));
  }
  for (int i = 0; i < kThreads; ++i) {
    CHECK(pthread_create(&workers[i].thread, NULL, ReadAndWrite, &workers[i]) == 0);
  }
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_join(workers[i].thread, NULL) == 0);
  CHECK(strcmp(kvs_last_error(), "") == 0);  // this thread had none
  kvs_cache_destroy(cache);
  for (int i = 0; i < kThreads; ++i) {
    MustAttend(workers[i].fork, kPrompt + kRounds - 1, out[i], lse);
    CHECK(memcmp(out[i], out[0], sizeof(out[i])) == 0);
    kvs_cache_destroy(workers[i].fork);
  }
}

int main(void) {
  FillPrompt();
  RUN(ReadersAndForksDoNotDisturbEachOther);
  return 0;
}
