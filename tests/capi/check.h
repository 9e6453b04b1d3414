// What the C tests share: checks that say where they failed, rows from a seed, a small cache.
#ifndef KVSIEVE_TESTS_CAPI_CHECK_H_
#define KVSIEVE_TESTS_CAPI_CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvsieve/kvsieve_c.h"

#define CHECK(condition)                                                                         \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      printf("%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, kvs_last_error()); \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)

#define CHECK_OK(call) CHECK((call) == KVS_OK)
// The call fails so, and its message holds the text.
#define CHECK_FAILS(code, text, call) \
  CHECK((call) == (code) && strstr(kvs_last_error(), (text)) != NULL)

#define RUN(test)          \
  do {                     \
    printf("%s\n", #test); \
    test();                \
  } while (0)

enum { kQueryHeads = 4, kKvHeads = 2, kDim = 32, kMostRows = 512 };

// Uniform in [-1, 1), the same on every machine.
float* NextRows(float* to, size_t count);

// Of kMostRows tokens; filled by FillRows.
typedef struct Prompt {
  int32_t positions[kMostRows];
  float keys[kKvHeads * kMostRows * kDim];  // [n, kv_heads, dim]
  float values[kKvHeads * kMostRows * kDim];
  float queries[kQueryHeads * kMostRows * kDim];
} Prompt;
extern Prompt prompt;
void FillPrompt(void);

kvs_layer SmallLayer(void);
kvs_cache* MustCreate(const char* spec);
// Rows [first, first + n) of the prompt, from one layer's point of view.
kvs_append_args AppendArgs(int32_t phase, int64_t first, int64_t n);
kvs_observe_args ObserveArgs(int64_t first, int64_t n);
// A cache of `spec` after a prompt of n tokens, finished.
kvs_cache* MustFinish(const char* spec, int64_t n);
// Attention of the query of token `token`: out [kQueryHeads * kDim], lse [kQueryHeads].
void MustAttend(const kvs_cache* cache, int64_t token, float* out, float* lse);

#endif  // KVSIEVE_TESTS_CAPI_CHECK_H_
