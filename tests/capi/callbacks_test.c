// The caller's memory and threads.
#include "tests/capi/check.h"

static const char kSpec[] = "snapkv(budget=50%,window=8) | kv=int8 | tail=8";

// Counts, and fails the call number `fail_at`.
typedef struct Memory {
  int64_t bytes;
  int64_t blocks;
  int64_t calls;
  int64_t fail_at;
  size_t skew;
} Memory;

static void* Allocate(void* user, size_t bytes, size_t alignment) {
  Memory* memory = user;
  CHECK(alignment == 64 && bytes > 0);
  if (++memory->calls == memory->fail_at) return NULL;
  // Skewed from an aligned place, which lies behind room for the pointer to free.
  char* whole = malloc(bytes + 3 * alignment);
  CHECK(whole != NULL);
  memset(whole, 0xA5, bytes + 3 * alignment);
  char* at = whole + sizeof(void*);
  at += (alignment - (uintptr_t)at % alignment) % alignment + memory->skew;
  memcpy(at - sizeof(void*), &whole, sizeof(void*));
  memory->bytes += (int64_t)bytes;
  ++memory->blocks;
  return at;
}

static void Deallocate(void* user, void* place, size_t bytes) {
  Memory* memory = user;
  char* whole = NULL;
  memcpy(&whole, (char*)place - sizeof(void*), sizeof(void*));
  memory->bytes -= (int64_t)bytes;
  --memory->blocks;
  free(whole);
}

static kvs_result Create(Memory* memory, kvs_cache** cache) {
  const kvs_layer layer = SmallLayer();
  const kvs_allocator allocator = {.struct_size = sizeof(allocator),
                                   .user = memory,
                                   .allocate = Allocate,
                                   .deallocate = Deallocate};
  const kvs_cache_args args = {.struct_size = sizeof(args),
                               .spec = kSpec,
                               .layers = &layer,
                               .layer_count = 1,
                               .allocator = &allocator};
  return kvs_cache_create(&args, cache);
}

static kvs_result Live(kvs_cache* cache) {
  const kvs_append_args append = AppendArgs(KVS_PREFILL, 0, 100);
  const kvs_observe_args observe = ObserveArgs(0, 100);
  const kvs_append_args decode = AppendArgs(KVS_DECODE, 100, 40);
  kvs_result result = kvs_append(cache, &append);
  if (result == KVS_OK) result = kvs_observe(cache, &observe);
  if (result == KVS_OK) result = kvs_finish_prefill(cache, 0);
  if (result == KVS_OK) result = kvs_append(cache, &decode);
  return result;
}

static int64_t Resident(const kvs_cache* cache) {
  kvs_stats_report report = {.struct_size = sizeof(report)};
  CHECK_OK(kvs_stats(cache, -1, -1, &report));
  return report.resident_bytes;
}

static int64_t Shared(const kvs_cache* cache) {
  kvs_stats_report report = {.struct_size = sizeof(report)};
  CHECK_OK(kvs_stats(cache, -1, -1, &report));
  CHECK(report.shared_bytes > 0);
  return report.shared_bytes;
}

static void TakesAllRowMemoryFromTheAllocator(void) {
  Memory memory = {0};
  kvs_cache* cache = NULL;
  kvs_cache* fork = NULL;
  CHECK_OK(Create(&memory, &cache));
  CHECK_OK(Live(cache));
  CHECK(memory.bytes > 0 && memory.bytes == Resident(cache));
  float ours[kQueryHeads * kDim], theirs[kQueryHeads * kDim], lse[kQueryHeads];
  kvs_cache* other = MustCreate(kSpec);
  CHECK_OK(Live(other));
  MustAttend(cache, 139, ours, lse);
  MustAttend(other, 139, theirs, lse);
  CHECK(memcmp(ours, theirs, sizeof(ours)) == 0);
  kvs_cache_destroy(other);

  CHECK_OK(kvs_fork(cache, &fork));
  CHECK(memory.bytes == Resident(cache) + Resident(fork) - Shared(fork));
  kvs_cache_destroy(cache);
  CHECK(memory.bytes == Resident(fork));
  CHECK_OK(kvs_clear(fork));
  CHECK(memory.bytes == 0);
  CHECK_OK(Live(fork));
  kvs_cache_destroy(fork);
  CHECK(memory.bytes == 0 && memory.blocks == 0);
}

// Fletcher's sum of what is written.
static int Add(void* user, const void* data, size_t bytes) {
  uint64_t* sums = user;
  for (size_t i = 0; i < bytes; ++i) {
    sums[0] += ((const unsigned char*)data)[i];
    sums[1] += sums[0];
  }
  return 0;
}

// Room of blocks is saved as zeros, whatever the allocator's memory held.
static void SavesNothingOfWhatMemoryHeld(void) {
  Memory memory = {0};
  uint64_t sums[2][2] = {{0}};
  kvs_cache* caches[2] = {MustCreate(kSpec), NULL};
  CHECK_OK(Create(&memory, &caches[1]));
  for (int i = 0; i < 2; ++i) {
    const kvs_sink sink = {.struct_size = sizeof(sink), .user = sums[i], .write = Add};
    CHECK_OK(Live(caches[i]));
    CHECK_OK(kvs_save(caches[i], "", &sink));
    kvs_cache_destroy(caches[i]);
  }
  CHECK(sums[0][1] != 0 && sums[0][0] == sums[1][0] && sums[0][1] == sums[1][1]);
}

static void FailsCleanlyAtEveryAllocation(void) {
  int64_t calls = 0;
  for (int64_t fail_at = 0; fail_at <= calls; ++fail_at) {
    Memory memory = {.fail_at = fail_at};
    kvs_cache* cache = NULL;
    CHECK_OK(Create(&memory, &cache));
    const kvs_result result = Live(cache);
    if (fail_at == 0) {
      CHECK_OK(result);
      calls = memory.calls;
      CHECK(calls > 5);
    } else {
      CHECK(result == KVS_OUT_OF_MEMORY);
      CHECK(memory.bytes == Resident(cache));
    }
    kvs_cache_destroy(cache);
    CHECK(memory.bytes == 0 && memory.blocks == 0);
  }
}

static void GivesBackMemoryThatIsNotAligned(void) {
  Memory memory = {.skew = 8};
  kvs_cache* cache = NULL;
  CHECK_OK(Create(&memory, &cache));
  CHECK_FAILS(KVS_OUT_OF_MEMORY, "kvs_append: ", Live(cache));
  CHECK(memory.calls > 0 && memory.blocks == 0);
  kvs_cache_destroy(cache);
}

// Tasks from the last to the first, on workers in turn.
typedef struct Crew {
  int64_t runs;
  int64_t tasks;
} Crew;

static void RunBackwards(void* user, int64_t tasks, kvs_task task, void* context) {
  Crew* crew = user;
  ++crew->runs;
  crew->tasks += tasks;
  for (int64_t t = tasks - 1; t >= 0; --t) task(context, t, (int32_t)(t % 3));
}

static void LendsWorkersWithoutChangingResults(void) {
  Crew crew = {0};
  const kvs_parallel parallel = {
      .struct_size = sizeof(parallel), .user = &crew, .run = RunBackwards, .workers = 3};
  const kvs_layer layer = SmallLayer();
  const kvs_cache_args create = {.struct_size = sizeof(create),
                                 .spec = kSpec,
                                 .layers = &layer,
                                 .layer_count = 1,
                                 .parallel = &parallel};
  kvs_cache* cache = NULL;
  kvs_cache* other = MustCreate(kSpec);
  CHECK_OK(kvs_cache_create(&create, &cache));
  CHECK_OK(Live(cache));
  CHECK_OK(Live(other));
  CHECK(crew.runs > 0 && crew.tasks > 1);

  float expected[kQueryHeads * kDim], out[kQueryHeads * kDim], lse[kQueryHeads];
  MustAttend(other, 139, expected, lse);
  const int64_t runs = crew.runs;
  kvs_scratch* scratch = NULL;
  CHECK_OK(kvs_scratch_create(NULL, 0, &scratch));
  const kvs_attend_args attend = {.struct_size = sizeof(attend),
                                  .n = 1,
                                  .positions = prompt.positions + 139,
                                  .queries = ObserveArgs(139, 1).queries,
                                  .scratch = scratch,
                                  .out = out,
                                  .parallel = &parallel};
  CHECK_OK(kvs_attend(cache, &attend));
  CHECK(crew.runs > runs);
  CHECK(memcmp(expected, out, sizeof(out)) == 0);
  kvs_scratch_destroy(scratch);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(other);
}

static void RefusesIncompleteCallbacks(void) {
  const kvs_layer layer = SmallLayer();
  kvs_allocator allocator = {.struct_size = sizeof(allocator), .allocate = Allocate};
  kvs_parallel parallel = {.struct_size = sizeof(parallel), .run = RunBackwards};
  kvs_cache_args args = {.struct_size = sizeof(args),
                         .spec = kSpec,
                         .layers = &layer,
                         .layer_count = 1,
                         .allocator = &allocator};
  kvs_cache* cache = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "allocator.deallocate is NULL",
              kvs_cache_create(&args, &cache));
  allocator.struct_size = 3;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "allocator.struct_size is 3", kvs_cache_create(&args, &cache));
  args.allocator = NULL;
  args.parallel = &parallel;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.parallel.workers is 0", kvs_cache_create(&args, &cache));
  parallel.workers = 2;
  parallel.run = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.parallel.run is NULL", kvs_cache_create(&args, &cache));
  parallel.reserved = 1;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "args.parallel.reserved is 1", kvs_cache_create(&args, &cache));
}

int main(void) {
  FillPrompt();
  RUN(TakesAllRowMemoryFromTheAllocator);
  RUN(SavesNothingOfWhatMemoryHeld);
  RUN(FailsCleanlyAtEveryAllocation);
  RUN(GivesBackMemoryThatIsNotAligned);
  RUN(LendsWorkersWithoutChangingResults);
  RUN(RefusesIncompleteCallbacks);
  return 0;
}
