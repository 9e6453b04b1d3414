// kvsieve for C99, and for whatever calls C: the compressed KV cache of one sequence, and rows
// encoded without a cache. Library libkvsieve_c, pkg-config kvsieve-c, CMake kvsieve::c. A guide is
// docs/c-api.md; what each call means in full stands at its C++ form in kvsieve/cache.h.
//
//   kvs_cache_create(&args, &cache);
//   each chunk, each layer:  kvs_append(KVS_PREFILL), kvs_observe
//   kvs_finish_prefill(cache, 0);                          evict, then encode
//   each step, each layer:   kvs_append(KVS_DECODE), kvs_attend
//   kvs_cache_destroy(cache);
//
// Errors      Calls return a kvs_result; kvs_last_error() has the line that explains it. What fails
//             leaves the cache as it was; what it would have written through pointers is undefined,
//             but a handle is NULL. NULL where none is allowed is an error. No exception leaves.
// Structs     Begin with struct_size, set by the caller to sizeof: the library may know more fields
//             (they take their defaults, which are 0) or fewer (they must be 0). Fields before the
//             line "optional" must be there. `reserved` fields are 0.
// Layouts     Strides count elements. Unless a stride says otherwise arrays are packed, last
//             dimension fastest.
// Threads     A call that takes a const kvs_cache may overlap others of that kind on the same
//             cache, each with a scratch of its own; any other call on it must not overlap. Calls
//             on different caches may, if the allocators that they share may.
#ifndef KVSIEVE_KVSIEVE_C_H_
#define KVSIEVE_KVSIEVE_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVS_API __attribute__((visibility("default")))
#else
#define KVS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// -- errors ---------------------------------------------------------------------------------------

typedef int32_t kvs_result;
enum {
  KVS_OK = 0,
  KVS_INVALID_ARGUMENT = 1,  // a value, shape or spec that can never work
  KVS_UNSUPPORTED = 2,       // understood, but this version does not do it
  KVS_NON_FINITE = 3,        // NaN or Inf in input rows
  KVS_OUT_OF_MEMORY = 4,     // the allocator, or the heap, refused
  KVS_STATE = 5,             // a call out of order
  KVS_NOT_EXACT = 6,         // the exact answer was evicted
  KVS_IO = 7,                // a file, sink or source failed
  KVS_INTERNAL = 8           // a mistake of kvsieve
};

// The message of the last call of this thread that failed, "" before any: one line that begins with
// the name of the call, at most 1023 bytes. Valid until the next call that fails on this thread.
KVS_API const char* kvs_last_error(void);
KVS_API const char* kvs_result_name(kvs_result result);  // "invalid argument"; "unknown result"
KVS_API const char* kvs_version(void);                   // "0.1.0"

// -- what the caller lends ------------------------------------------------------------------------

// Callbacks get `user` as it was given, and must return: no longjmp, no exception.

// Memory for stored rows. Copied; what `user` points to outlives the cache and its forks.
typedef struct kvs_allocator {
  size_t struct_size;
  void* user;
  // bytes > 0, aligned to `alignment` (64), contents anything. NULL: none. Memory that is not
  // aligned is given back and counts as none.
  void* (*allocate)(void* user, size_t bytes, size_t alignment);
  void (*deallocate)(void* user, void* memory, size_t bytes);  // bytes: as asked for
} kvs_allocator;

typedef void (*kvs_task)(void* context, int64_t task, int32_t worker);

// Threads. Results never depend on their number.
typedef struct kvs_parallel {
  size_t struct_size;
  void* user;
  // Calls task(context, t, worker) once for each t in [0, tasks), worker in [0, workers), no worker
  // twice at a time; returns when all have returned.
  void (*run)(void* user, int64_t tasks, kvs_task task, void* context);
  int32_t workers;  // > 0
  int32_t reserved;
} kvs_parallel;

// -- rows -----------------------------------------------------------------------------------------

enum { KVS_F32 = 0, KVS_F16 = 1, KVS_BF16 = 2 };

// Rows of several heads, [heads, n, dim] in any order of the first two: element d of row r of head
// h lies at data[h * head_stride + r * row_stride + d]. Both strides 0: packed as [heads, n, dim].
// [n, heads, dim] has head_stride dim and row_stride heads * dim. How many there are follows from
// the call. This struct does not grow.
typedef struct kvs_rows {
  const void* data;
  int64_t head_stride;
  int64_t row_stride;
  int32_t type;  // KVS_F32, ...
  int32_t reserved;
} kvs_rows;

// -- the cache ------------------------------------------------------------------------------------

typedef struct kvs_cache kvs_cache;

// Shape of one attention layer.
typedef struct kvs_layer {
  size_t struct_size;
  int32_t layer;  // the model's own number of this layer, for messages
  int32_t query_heads;
  int32_t kv_heads;  // divides query_heads
  int32_t key_dim;
  int32_t value_dim;
  float scale;  // multiplies q.k; > 0
  // optional
  float softcap;                // logits become softcap * tanh(logit / softcap); 0: none
  int32_t sliding_window;       // rows that a query sees, itself included; 0: all
  int32_t value_is_key_prefix;  // 1: MLA, V is the first value_dim elements of K
  int32_t reserved;
} kvs_layer;

enum { KVS_DECODE_STORED = 0, KVS_DECODE_EXACT = 1 };

typedef struct kvs_cache_args {
  size_t struct_size;
  const char* spec;         // pipeline, "snapkv(budget=25%) | k=int8, v=int4"; docs/specs.md
  const kvs_layer* layers;  // [layer_count], all with the same struct_size
  int64_t layer_count;
  // optional
  const kvs_allocator* allocator;  // NULL: the default one, thread-safe
  const kvs_parallel* parallel;    // NULL: serial. For kvs_finish_prefill and kvs_evict
  int32_t decode_rows;             // where rows of decode go: encoded, or exact for ever
  int32_t reserved;
} kvs_cache_args;

KVS_API kvs_result kvs_cache_create(const kvs_cache_args* args, kvs_cache** cache);
KVS_API void kvs_cache_destroy(kvs_cache* cache);  // NULL: nothing
// A cache that holds the same and goes on by itself, with the same pipeline and callbacks. Full
// blocks of encoded rows are shared and never written; the rest is copied. The allocator is then
// called from all threads that have a fork. Must not overlap other calls that ask the allocator.
KVS_API kvs_result kvs_fork(const kvs_cache* cache, kvs_cache** fork);
// Back to what kvs_cache_create made.
KVS_API kvs_result kvs_clear(kvs_cache* cache);

// Before kvs_finish_prefill rows are KVS_PREFILL, afterwards KVS_DECODE, or KVS_VERIFY: a draft's,
// open until kvs_accept or kvs_rollback.
enum { KVS_PREFILL = 0, KVS_DECODE = 1, KVS_VERIFY = 2 };

typedef struct kvs_append_args {
  size_t struct_size;
  int32_t layer;  // index into kvs_cache_args.layers, here and below
  int32_t phase;
  int64_t n;
  const int32_t* positions;  // [n], increasing and past the layer's last
  kvs_rows keys;             // [kv_heads, n, key_dim], after RoPE
  kvs_rows values;           // [kv_heads, n, value_dim]; MLA: all 0
} kvs_append_args;
KVS_API kvs_result kvs_append(kvs_cache* cache, const kvs_append_args* args);

typedef struct kvs_observe_args {
  size_t struct_size;
  int32_t layer;
  int32_t reserved;
  int64_t n;
  const int32_t* positions;  // [n], increasing and past the last observed
  kvs_rows queries;          // [query_heads, n, key_dim], after RoPE, unscaled
} kvs_observe_args;
// Keeps the last queries, as many as the scorer needs. After kvs_finish_prefill only with
// schedule=every(n).
KVS_API kvs_result kvs_observe(kvs_cache* cache, const kvs_observe_args* args);

// Scores for the evict stage `external` at the layer's next eviction, one per KV head and row that
// it will rank: [count], head by head in order of position; higher stays. The caller's until then.
KVS_API kvs_result kvs_set_external_scores(kvs_cache* cache, int32_t layer, const float* scores,
                                           int64_t count);

// Ends the prompt: evicts, then encodes what stays. `scratch_limit_bytes` bounds the memory of
// scoring; 0: as little as one query head per worker takes.
KVS_API kvs_result kvs_finish_prefill(kvs_cache* cache, int64_t scratch_limit_bytes);
// Drops what the pipeline's schedule says is due; after the attention of a chunk or step.
KVS_API kvs_result kvs_evict(kvs_cache* cache, int32_t layer);

// Drafts: append rows in phase KVS_VERIFY, attend, then accept those that the model agrees with.
// Open rows are seen by all that reads, exact; nothing is encoded or evicted meanwhile, so that
// taking them back restores every bit. Such a cache is not saved.

// Most verify rows that a layer can hold (64 without this call), with memory for as many.
KVS_API kvs_result kvs_reserve_speculative(kvs_cache* cache, int64_t n);
// 1 or 0: whether kvs_rollback(n) will do, of the rows that are open or, where none are, of n rows
// that are still to be appended.
KVS_API kvs_result kvs_can_rollback(const kvs_cache* cache, int64_t n, int32_t* can);
// The first n open rows of every layer become rows of decode, the others go.
KVS_API kvs_result kvs_accept(kvs_cache* cache, int64_t n);
// The last n open rows of every layer go, the others become rows of decode.
KVS_API kvs_result kvs_rollback(kvs_cache* cache, int64_t n);

// -- attention ------------------------------------------------------------------------------------

// Temporary memory of kvs_attend. One for each call that runs at a time; for any cache.
typedef struct kvs_scratch kvs_scratch;
// memory NULL, bytes 0: grows on demand and keeps what it has. Otherwise uses these bytes alone,
// which outlive it: a call that takes more is KVS_OUT_OF_MEMORY.
KVS_API kvs_result kvs_scratch_create(void* memory, size_t bytes, kvs_scratch** scratch);
KVS_API void kvs_scratch_destroy(kvs_scratch* scratch);  // NULL: nothing
// What an attend call of `n` queries over the rows that are stored now takes with so many workers
// (1 without kvs_attend_args.parallel). Grows with the rows, by steps of 8192 a head.
KVS_API kvs_result kvs_attend_scratch_bytes(const kvs_cache* cache, int32_t layer, int64_t n,
                                            int32_t workers, size_t* bytes);

// Which fields of kvs_attend_args replace the layer's own value.
enum { KVS_OVERRIDE_SCALE = 1, KVS_OVERRIDE_SOFTCAP = 2, KVS_OVERRIDE_SLIDING_WINDOW = 4 };

typedef struct kvs_attend_args {
  size_t struct_size;
  int32_t layer;
  int32_t reserved;
  int64_t n;
  const int32_t* positions;  // [n], of the queries
  kvs_rows queries;          // [query_heads, n, key_dim], after RoPE, unscaled
  kvs_scratch* scratch;
  float* out;  // [query_heads, n, value_dim]
  // optional
  float* lse;  // [query_heads, n], log of the sum of exp of the logits; NULL: not wanted
  const kvs_parallel* parallel;  // NULL: serial
  int32_t overrides;             // of KVS_OVERRIDE_...
  float scale;
  float softcap;
  int32_t sliding_window;
  // [query_heads], finite: a logit that takes a share of the softmax without a value. NULL: none.
  const float* sink_logits;
} kvs_attend_args;
// A row is visible iff its position is <= the query's and, with a window w, > the query's - w. No
// visible row: out 0, lse -inf or the sink logit. Records nothing.
KVS_API kvs_result kvs_attend(const kvs_cache* cache, const kvs_attend_args* args);

// -- reading --------------------------------------------------------------------------------------

KVS_API kvs_result kvs_row_count(const kvs_cache* cache, int32_t layer, int32_t head,
                                 int64_t* rows);
// One past the last token seen, or where the last trim ended.
KVS_API kvs_result kvs_next_position(const kvs_cache* cache, int32_t* position);
// The lowest position that kvs_trim brings back as it was.
KVS_API kvs_result kvs_oldest_exact_position(const kvs_cache* cache, int32_t* position);
// Of the stored rows of a KV head, increasing. rows: kvs_row_count.
KVS_API kvs_result kvs_positions(const kvs_cache* cache, int32_t layer, int32_t head, int64_t rows,
                                 int32_t* positions);

enum { KVS_EXACT_ROW = -1 };
typedef struct kvs_gather_args {
  size_t struct_size;
  int32_t layer;
  int32_t head;        // KV head
  int64_t rows;        // kvs_row_count
  int32_t* positions;  // [rows]; NULL, as the two below: not wanted
  float* keys;         // [rows, key_dim]
  float* values;       // [rows, value_dim]
  // optional
  int32_t* tiers;  // [rows]: KVS_EXACT_ROW, or the number of the store that holds the row
} kvs_gather_args;
// Stored rows of one head by position, decoded, in the original basis.
KVS_API kvs_result kvs_gather(const kvs_cache* cache, const kvs_gather_args* args);

typedef struct kvs_visible_args {
  size_t struct_size;
  int32_t layer;
  int32_t head;  // KV head
  int64_t n;
  const int32_t* positions;  // [n], of the queries
  int64_t rows;              // kvs_row_count
  uint8_t* mask;             // [n, rows], 1: visible; rows in the order of kvs_gather
} kvs_visible_args;
// The mask that kvs_attend applies, for attention of the caller's own.
KVS_API kvs_result kvs_visible(const kvs_cache* cache, const kvs_visible_args* args);

// Takes back the tokens at `position` and behind it, in every layer; kvs_next_position becomes
// `position`. Below kvs_oldest_exact_position it is KVS_NOT_EXACT, unless allow_inexact is 1: rows
// that were evicted do not come back. tokens: how many went; may be NULL.
KVS_API kvs_result kvs_trim(kvs_cache* cache, int32_t position, int32_t allow_inexact,
                            int64_t* tokens);

// Bytes read from live buffers, rows and ratios. The library fills the first struct_size bytes,
// fields that it does not know with 0. docs/cli.md has the terms, kvsieve/byte_report.h the rules.
typedef struct kvs_stats_report {
  size_t struct_size;
  int64_t full_bytes;  // f16 K and V of every token seen
  int64_t key_full_bytes;
  int64_t value_full_bytes;
  int64_t f16_rows_bytes;  // f16 K and V of the rows kept
  int64_t kept_bytes;      // payload + scale + metadata
  int64_t key_kept_bytes;
  int64_t value_kept_bytes;
  int64_t payload_bytes;
  int64_t scale_bytes;
  int64_t metadata_bytes;
  int64_t resident_bytes;  // kept + padding + reserved + observation
  int64_t padding_bytes;
  int64_t reserved_bytes;
  int64_t observation_bytes;
  int64_t shared_bytes;
  int64_t scratch_peak_bytes;
  int64_t tokens_seen;  // summed over layers and KV heads
  int64_t rows_kept;
  int64_t lifetime_tokens;
  double keep_rate;
  double eviction_ratio;  // NaN, as the three below, where there is none
  double storage_ratio;
  double total_ratio;
  double resident_ratio;
} kvs_stats_report;
// layer -1: all layers; head -1: all heads, with what they share. A head needs a layer.
KVS_API kvs_result kvs_stats(const kvs_cache* cache, int32_t layer, int32_t head,
                             kvs_stats_report* report);
// The sum over `count` caches, in which memory that forks share counts once: what a batch holds.
// Rows, tokens and full bytes count for every cache.
KVS_API kvs_result kvs_stats_of_batch(const kvs_cache* const* caches, int64_t count,
                                      kvs_stats_report* report);

enum {
  KVS_TEXT_REQUESTED = 0,  // evictor and store that the pipeline asks for in this layer
  KVS_TEXT_APPLIED = 1,    // what was done
  KVS_TEXT_KEY_PATH = 2,   // kernels of K: fused, portable, reference
  KVS_TEXT_VALUE_PATH = 3,
  KVS_TEXT_NOTE = 4  // why something did not run; mostly empty
};
// Writes one text about a layer, cut to capacity - 1 bytes and ended by 0. length: of the whole
// text without the 0; may be NULL. text may be NULL where capacity is 0.
KVS_API kvs_result kvs_layer_text(const kvs_cache* cache, int32_t layer, int32_t which, char* text,
                                  size_t capacity, size_t* length);

// -- saving ---------------------------------------------------------------------------------------

// Takes `bytes` behind those of earlier calls; anything but 0 stops the save with KVS_IO.
typedef struct kvs_sink {
  size_t struct_size;
  void* user;
  int (*write)(void* user, const void* data, size_t bytes);
} kvs_sink;

// Fills `to` with the next bytes; anything but 0 stops the load with KVS_IO.
typedef struct kvs_source {
  size_t struct_size;
  void* user;
  int (*read)(void* user, void* to, size_t bytes);
  int64_t bytes;  // how many there are; read never asks for more
} kvs_source;

// `identity` is one line of the caller's that says for which model, weights and prompt the rows are
// good; a load compares it. NULL in a load: any.
KVS_API kvs_result kvs_save(const kvs_cache* cache, const char* identity, const kvs_sink* sink);
// The file is complete, on the disk, or as it was.
KVS_API kvs_result kvs_save_file(const kvs_cache* cache, const char* identity, const char* path);

// Replaces what a cache of the same pipeline, layers and decode_rows holds. Everything is checked
// before; what fails leaves the cache as it was.
KVS_API kvs_result kvs_load(kvs_cache* cache, const char* identity, const kvs_source* source);
KVS_API kvs_result kvs_load_file(kvs_cache* cache, const char* identity, const char* path);

// A cache as it was saved, with pipeline and layers from the state. args may be NULL; its spec and
// layers must be.
KVS_API kvs_result kvs_cache_restore(const kvs_cache_args* args, const char* identity,
                                     const kvs_source* source, kvs_cache** cache);
KVS_API kvs_result kvs_cache_restore_file(const kvs_cache_args* args, const char* identity,
                                          const char* path, kvs_cache** cache);

// -- rows without a cache -------------------------------------------------------------------------

// How K or V of one head is encoded, for what moves rows between processes. Never changes, so that
// any number of threads may use it.
typedef struct kvs_codec kvs_codec;

enum { KVS_KEY = 0, KVS_VALUE = 1 };

typedef struct kvs_codec_args {
  size_t struct_size;
  const char* spec;  // a pipeline that evicts nothing and has one store, "none | k=int8, v=int4"
  int32_t side;      // KVS_KEY, KVS_VALUE
  int32_t dim;
} kvs_codec_args;
KVS_API kvs_result kvs_codec_create(const kvs_codec_args* args, kvs_codec** codec);
KVS_API void kvs_codec_destroy(kvs_codec* codec);  // NULL: nothing

// What `rows` rows of one head take: codes with their scales, and what the codec learnt of the rows
// (f32), without which the codes mean nothing.
KVS_API kvs_result kvs_encoded_size(const kvs_codec* codec, int64_t rows, int64_t* bytes,
                                    int64_t* stats_floats);

typedef struct kvs_encode_args {
  size_t struct_size;
  int64_t n;
  kvs_rows rows;  // [1, n, dim]
  float* stats;   // [stats_floats], may be NULL for 0
  int64_t stats_floats;
  uint8_t* encoded;  // [bytes]
  int64_t bytes;
  // optional
  int64_t* saturated;  // how many elements lay beyond the codec's range; NULL: not wanted
} kvs_encode_args;
// Both sizes as of kvs_encoded_size. A row that the codec cannot hold is an error that names it.
KVS_API kvs_result kvs_encode_rows(const kvs_codec* codec, const kvs_encode_args* args);

typedef struct kvs_decode_args {
  size_t struct_size;
  int64_t n;
  const float* stats;
  int64_t stats_floats;
  const uint8_t* encoded;
  int64_t bytes;
  float* rows;  // [n, dim]
} kvs_decode_args;
// The codes themselves are not checked: a checksum is the transport's.
KVS_API kvs_result kvs_decode_rows(const kvs_codec* codec, const kvs_decode_args* args);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // KVSIEVE_KVSIEVE_C_H_
