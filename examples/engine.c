// The life of a sequence in an engine that keeps its rows in kvsieve, through the C interface:
// a prompt in three chunks, eviction, 200 steps of decode, a draft of which a part is accepted, a
// trim, a fork, a save, and a load in a new process. Each output is held against attention in
// double precision over the rows that the cache says it kept.
//
// An engine has a model; here queries, keys and values are noise that depends on the token alone.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvsieve/kvsieve_c.h"

enum { kLayers = 2, kQueryHeads = 4, kKvHeads = 2, kDim = 64, kGroup = kQueryHeads / kKvHeads };
enum { kPrompt = 600, kChunk = 200, kSteps = 200, kDraft = 6, kAccepted = 4 };
enum { kMostTokens = 1024, kOut = kQueryHeads * kChunk * kDim };
static const float kScale = 0.125F;
static const char kIdentity[] = "noise 1, prompt 600";

static void Must(kvs_result result) {
  if (result == KVS_OK) return;
  fprintf(stderr, "engine: %s\n", kvs_last_error());
  exit(1);
}

// A sequence of the engine's: its tokens, and the cache that holds their rows.
typedef struct Sequence {
  int32_t tokens[kMostTokens];
  int32_t count;
  kvs_cache* cache;
} Sequence;

// What the model computes of n tokens in one layer. Row h * n + i is head h of token i.
typedef struct Rows {
  int32_t positions[kChunk];
  float queries[kOut];
  float keys[kKvHeads * kChunk * kDim];
  float values[kKvHeads * kChunk * kDim];
} Rows;

// -- glue: how the engine hands its rows to the cache ---------------------------------------------
// Several fields of a struct on a line.
// clang-format off

static kvs_cache* NewCache(const char* spec) {
  kvs_layer layers[kLayers];
  for (int32_t i = 0; i < kLayers; ++i) {
    layers[i] = (kvs_layer){.struct_size = sizeof(kvs_layer), .layer = i, .scale = kScale,
                            .query_heads = kQueryHeads, .kv_heads = kKvHeads,
                            .key_dim = kDim, .value_dim = kDim};
  }
  const kvs_cache_args args = {.struct_size = sizeof(args), .spec = spec,
                               .layers = layers, .layer_count = kLayers};
  kvs_cache* cache = NULL;
  Must(kvs_cache_create(&args, &cache));
  return cache;
}

// Packed as [heads, n, dim].
static kvs_rows View(const float* data) { return (kvs_rows){.data = data, .type = KVS_F32}; }

// The rows of n tokens, before their attention.
static void Store(kvs_cache* cache, int32_t layer, int32_t phase, const Rows* rows, int64_t n) {
  const kvs_append_args append = {.struct_size = sizeof(append), .layer = layer, .phase = phase,
                                  .n = n, .positions = rows->positions,
                                  .keys = View(rows->keys), .values = View(rows->values)};
  Must(kvs_append(cache, &append));
  if (phase != KVS_PREFILL) return;
  const kvs_observe_args observe = {.struct_size = sizeof(observe), .layer = layer, .n = n,
                                    .positions = rows->positions, .queries = View(rows->queries)};
  Must(kvs_observe(cache, &observe));
}

// Their attention, over all that is stored.
static void Attend(const kvs_cache* cache, int32_t layer, const Rows* rows, int64_t n,
                   kvs_scratch* scratch, float* out) {
  const kvs_attend_args attend = {.struct_size = sizeof(attend), .layer = layer, .n = n,
                                  .positions = rows->positions, .queries = View(rows->queries),
                                  .scratch = scratch, .out = out};
  Must(kvs_attend(cache, &attend));
}

// clang-format on
// -- end of glue ----------------------------------------------------------------------------------

// In [-1, 1), of a token at its position; `row` tells layers, heads and Q, K, V apart.
static void Noise(int32_t token, int32_t position, uint32_t row, float* to) {
  uint32_t state = (uint32_t)token * 2654435761U ^ (uint32_t)position * 2246822519U ^ row;
  for (int d = 0; d < kDim; ++d) {
    state = state * 1664525U + 1013904223U;
    to[d] = (float)(state >> 8) / (float)(1 << 23) - 1.0F;
  }
}

enum { kQueryRow = 1 << 8, kKeyRow = 2 << 8, kValueRow = 3 << 8 };
static uint32_t RowName(int kind, int layer, int head) {
  return (uint32_t)(kind + layer * 16 + head) * 3266489917U;
}

static void Compute(const Sequence* sequence, int32_t first, int n, int layer, Rows* rows) {
  for (int i = 0; i < n; ++i) {
    const int32_t position = first + i, token = sequence->tokens[position];
    rows->positions[i] = position;
    for (int h = 0; h < kQueryHeads; ++h) {
      Noise(token, position, RowName(kQueryRow, layer, h), rows->queries + (h * n + i) * kDim);
    }
    for (int h = 0; h < kKvHeads; ++h) {
      Noise(token, position, RowName(kKeyRow, layer, h), rows->keys + (h * n + i) * kDim);
      Noise(token, position, RowName(kValueRow, layer, h), rows->values + (h * n + i) * kDim);
    }
  }
}

// -- the oracle -----------------------------------------------------------------------------------

static double largest_error = 0;

static void Expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "engine: %s\n", what);
  exit(1);
}

// A stored row is that of its token, up to int8: half a step of 1/127 of its largest element, which
// is below 1, and a scale that was rounded up by at most 1/128.
static void ExpectRow(int32_t token, int32_t position, uint32_t name, const float* stored) {
  float row[kDim];
  Noise(token, position, name, row);
  for (int d = 0; d < kDim; ++d) {
    Expect(fabs((double)row[d] - stored[d]) < 0.5 / 127 * (1 + 1.0 / 128) + 1e-6,
           "a stored row is not its token's");
  }
}

// Attention of one query head over the rows of its KV head that are stored now. out [n, kDim].
static void Oracle(const Sequence* sequence, int layer, int head, const Rows* rows, int n,
                   double* out) {
  static int32_t positions[kMostTokens];
  static float keys[kMostTokens * kDim], values[kMostTokens * kDim];
  kvs_gather_args gather = {.struct_size = sizeof(gather),
                            .layer = layer,
                            .head = head / kGroup,
                            .positions = positions,
                            .keys = keys,
                            .values = values};
  Must(kvs_row_count(sequence->cache, layer, gather.head, &gather.rows));
  Must(kvs_gather(sequence->cache, &gather));
  for (int64_t r = 0; r < gather.rows; ++r) {
    const int32_t token = sequence->tokens[positions[r]];
    ExpectRow(token, positions[r], RowName(kKeyRow, layer, gather.head), keys + r * kDim);
    ExpectRow(token, positions[r], RowName(kValueRow, layer, gather.head), values + r * kDim);
  }
  for (int i = 0; i < n; ++i) {
    const float* query = rows->queries + (head * n + i) * kDim;
    double sum = 0;
    memset(out + i * kDim, 0, kDim * sizeof(double));
    for (int64_t r = 0; r < gather.rows && positions[r] <= rows->positions[i]; ++r) {
      double logit = 0;
      for (int d = 0; d < kDim; ++d) logit += (double)query[d] * keys[r * kDim + d];
      const double weight = exp(logit * kScale);
      sum += weight;
      for (int d = 0; d < kDim; ++d) out[i * kDim + d] += weight * values[r * kDim + d];
    }
    for (int d = 0; d < kDim; ++d) out[i * kDim + d] /= sum;
  }
}

// Kernels of int8 keys may round queries to 16 bits: with elements within [-1, 1] a logit errs by
// at most scale * dim * 2^-16 = 1.2e-4, a weight by twice that share, and so does an output.
static void ExpectOutputs(const Sequence* sequence, int layer, const Rows* rows, int n,
                          const float* out) {
  static double expected[kChunk * kDim];
  for (int h = 0; h < kQueryHeads; ++h) {
    Oracle(sequence, layer, h, rows, n, expected);
    for (int i = 0; i < n * kDim; ++i) {
      const double error = fabs(expected[i] - out[h * n * kDim + i]);
      if (!(error <= largest_error)) largest_error = error;
    }
  }
  Expect(largest_error < 2.5e-4, "an output is not the oracle's");
}

// -- the engine -----------------------------------------------------------------------------------

// One pass of the model over the n tokens at the end of the sequence. out: of the last layer.
static void Forward(const Sequence* sequence, int32_t phase, int n, float* out) {
  static Rows rows;
  kvs_scratch* scratch = NULL;
  Must(kvs_scratch_create(NULL, 0, &scratch));
  for (int layer = 0; layer < kLayers; ++layer) {
    Compute(sequence, sequence->count - n, n, layer, &rows);
    Store(sequence->cache, layer, phase, &rows, n);
    Attend(sequence->cache, layer, &rows, n, scratch, out);
    ExpectOutputs(sequence, layer, &rows, n, out);
  }
  kvs_scratch_destroy(scratch);
}

// Tokens that a sampler chose: `seed` tells continuations apart.
static void Add(Sequence* sequence, int n, int32_t seed) {
  for (int i = 0; i < n; ++i) {
    sequence->tokens[sequence->count] = sequence->count * 7919 + seed;
    ++sequence->count;
  }
}

static void Decode(Sequence* sequence, int steps, int32_t seed, float* out) {
  for (int step = 0; step < steps; ++step) {
    Add(sequence, 1, seed);
    Forward(sequence, KVS_DECODE, 1, out);
  }
}

static void ExpectNext(const Sequence* sequence) {
  int32_t next = 0;
  Must(kvs_next_position(sequence->cache, &next));
  Expect(next == sequence->count, "the cache does not hold the tokens of the sequence");
}

static void Prefill(Sequence* sequence, float* out) {
  for (int chunk = 0; chunk < kPrompt / kChunk; ++chunk) {
    Add(sequence, kChunk, 1);
    Forward(sequence, KVS_PREFILL, kChunk, out);
  }
  Must(kvs_finish_prefill(sequence->cache, 0));
}

// A draft of kDraft tokens in one pass; the model agrees with the first kAccepted.
static void Speculate(Sequence* sequence, float* out) {
  Must(kvs_reserve_speculative(sequence->cache, kDraft));
  Add(sequence, kDraft, 2);
  Forward(sequence, KVS_VERIFY, kDraft, out);
  Must(kvs_accept(sequence->cache, kAccepted));
  sequence->count -= kDraft - kAccepted;
  ExpectNext(sequence);
}

static void TakeBack(Sequence* sequence, int n) {
  Must(kvs_trim(sequence->cache, sequence->count - n, 0, NULL));
  sequence->count -= n;
  ExpectNext(sequence);
}

// -- a new process --------------------------------------------------------------------------------

enum { kMoreSteps = 20 };

static void WriteOrRead(int write, const char* path, void* data, size_t bytes) {
  FILE* file = fopen(path, write ? "wb" : "rb");
  Expect(file != NULL, "a file cannot be opened");
  const size_t done = write ? fwrite(data, 1, bytes, file) : fread(data, 1, bytes, file);
  Expect(fclose(file) == 0 && done == bytes, "a file cannot be written or read");
}

typedef struct Saved {
  int32_t tokens[kMostTokens];
  int32_t count;
  float out[kQueryHeads * kDim];  // after kMoreSteps steps
} Saved;

// What `engine --resume` does: goes on from the files, and comes to the same bits.
static void Resume(const char* cache_path, const char* tokens_path) {
  static Saved saved;
  static Sequence sequence;
  float out[kQueryHeads * kDim];
  WriteOrRead(0, tokens_path, &saved, sizeof(saved));
  memcpy(sequence.tokens, saved.tokens, sizeof(saved.tokens));
  sequence.count = saved.count;
  Must(kvs_cache_restore_file(NULL, kIdentity, cache_path, &sequence.cache));
  ExpectNext(&sequence);
  Decode(&sequence, kMoreSteps, 5, out);
  Expect(memcmp(out, saved.out, sizeof(out)) == 0, "a loaded cache gives other bits");
  printf("resumed in a new process: %d tokens, the same bits\n", (int)sequence.count);
  kvs_cache_destroy(sequence.cache);
}

static void SaveAndResume(Sequence* sequence, const char* program) {
  static const char kCache[] = "engine_cache.tmp", kTokens[] = "engine_tokens.tmp";
  static Saved saved;
  static char command[4096];
  Must(kvs_save_file(sequence->cache, kIdentity, kCache));
  memcpy(saved.tokens, sequence->tokens, sizeof(saved.tokens));
  saved.count = sequence->count;
  Decode(sequence, kMoreSteps, 5, saved.out);
  WriteOrRead(1, kTokens, &saved, sizeof(saved));
  const int length =
      snprintf(command, sizeof(command), "\"%s\" --resume %s %s", program, kCache, kTokens);
  Expect(length > 0 && length < (int)sizeof(command), "the name of the program is too long");
  fflush(stdout);
  Expect(system(command) == 0, "the new process failed");
  remove(kCache);
  remove(kTokens);
}

int main(int argc, char** argv) {
  if (argc == 4 && strcmp(argv[1], "--resume") == 0) {
    Resume(argv[2], argv[3]);
    return 0;
  }
  static Sequence sequence, other;
  static float out[kOut], other_out[kQueryHeads * kDim];
  sequence.cache = NewCache("snapkv(budget=25%) | kv=int8 | tail=16");
  Prefill(&sequence, out);
  Decode(&sequence, kSteps, 1, out);
  Speculate(&sequence, out);
  Decode(&sequence, 5, 1, out);
  TakeBack(&sequence, 8);
  Decode(&sequence, 10, 3, out);

  memcpy(&other, &sequence, sizeof(other));
  Must(kvs_fork(sequence.cache, &other.cache));
  Decode(&other, 70, 4, other_out);  // more than a block, so that it ends one that was shared
  Decode(&sequence, 70, 3, out);
  Expect(memcmp(out, other_out, sizeof(other_out)) != 0, "a fork does not go on by itself");
  kvs_cache_destroy(other.cache);
  SaveAndResume(&sequence, argv[0]);

  kvs_stats_report report = {.struct_size = sizeof(report)};
  Must(kvs_stats(sequence.cache, -1, -1, &report));
  printf("%d tokens, %.1f %% of the rows kept in %.1f %% of the bytes; largest error %.1e\n",
         (int)sequence.count, 100 * report.keep_rate, 100 / report.total_ratio, largest_error);
  kvs_cache_destroy(sequence.cache);
  return 0;
}
