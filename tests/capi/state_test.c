// Saved caches, through callbacks and files.
#include "tests/capi/check.h"

static const char kSpec[] = "snapkv(budget=50%,window=8) | k=int8, v=turbo4";
static const char kPath[] = "c_state_test.kvs.tmp";
enum { kPrompt = 120 };

typedef struct Bytes {
  unsigned char data[1 << 18];
  size_t written;
  size_t read;
  size_t most;  // takes and gives no more than these
} Bytes;
static Bytes bytes;

static int Write(void* user, const void* data, size_t count) {
  Bytes* to = user;
  if (to->written + count > to->most) return 28;
  memcpy(to->data + to->written, data, count);
  to->written += count;
  return 0;
}

static int Read(void* user, void* to, size_t count) {
  Bytes* from = user;
  if (from->read + count > from->most) return -5;
  memcpy(to, from->data + from->read, count);
  from->read += count;
  return 0;
}

static kvs_sink Sink(size_t most) {
  bytes.written = 0;
  bytes.most = most;
  const kvs_sink sink = {.struct_size = sizeof(sink), .user = &bytes, .write = Write};
  return sink;
}

static kvs_source Source(size_t most) {
  bytes.read = 0;
  bytes.most = most;
  const kvs_source source = {
      .struct_size = sizeof(source), .user = &bytes, .read = Read, .bytes = (int64_t)bytes.written};
  return source;
}

static void CheckSame(const kvs_cache* a, const kvs_cache* b) {
  float of_a[kQueryHeads * kDim], of_b[kQueryHeads * kDim], lse_a[kQueryHeads], lse_b[kQueryHeads];
  MustAttend(a, kPrompt, of_a, lse_a);
  MustAttend(b, kPrompt, of_b, lse_b);
  CHECK(memcmp(of_a, of_b, sizeof(of_a)) == 0 && memcmp(lse_a, lse_b, sizeof(lse_a)) == 0);
}

static void ComesBackThroughCallbacks(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_cache* same = MustCreate(kSpec);
  kvs_cache* restored = NULL;
  const kvs_sink sink = Sink(sizeof(bytes.data));
  CHECK_OK(kvs_save(cache, "model 7", &sink));
  kvs_source source = Source(bytes.written);
  CHECK_OK(kvs_load(same, "model 7", &source));
  CheckSame(cache, same);
  source = Source(bytes.written);
  CHECK_OK(kvs_cache_restore(NULL, NULL, &source, &restored));
  CheckSame(cache, restored);
  kvs_cache_destroy(restored);
  source = Source(bytes.written);
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "saved for 'model 7', asked for 'model 8'",
              kvs_cache_restore(NULL, "model 8", &source, &restored));
  CHECK(restored == NULL);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(same);
}

static void StopsWithACallbackThatFails(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_sink sink = Sink(1000);
  CHECK_FAILS(KVS_IO, "sink.write returned 28", kvs_save(cache, "", &sink));
  sink = Sink(sizeof(bytes.data));
  CHECK_OK(kvs_save(cache, "", &sink));
  kvs_cache* same = MustFinish(kSpec, kPrompt);
  kvs_source source = Source(bytes.written - 1);
  CHECK_FAILS(KVS_IO, "source.read returned -5", kvs_load(same, NULL, &source));
  CheckSame(cache, same);  // as it was
  source = Source(bytes.written);
  bytes.data[bytes.written / 2] ^= 1;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "checksum", kvs_load(same, NULL, &source));
  source.bytes = -1;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "source.bytes is -1", kvs_load(same, NULL, &source));
  source.read = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "source.read is NULL", kvs_load(same, NULL, &source));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "source is NULL", kvs_load(same, NULL, NULL));
  sink.write = NULL;
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "sink.write is NULL", kvs_save(cache, "", &sink));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "sink is NULL", kvs_save(cache, "", NULL));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "identity is NULL", kvs_save(cache, NULL, &sink));
  CheckSame(cache, same);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(same);
}

static void ComesBackFromAFile(void) {
  kvs_cache* cache = MustFinish(kSpec, kPrompt);
  kvs_cache* same = MustCreate(kSpec);
  kvs_cache* restored = NULL;
  CHECK_OK(kvs_save_file(cache, "model 7", kPath));
  CHECK_OK(kvs_load_file(same, "model 7", kPath));
  CheckSame(cache, same);
  const kvs_cache_args args = {.struct_size = sizeof(args)};
  CHECK_OK(kvs_cache_restore_file(&args, "model 7", kPath, &restored));
  CheckSame(cache, restored);
  kvs_cache_destroy(restored);
  const kvs_cache_args with_spec = {.struct_size = sizeof(args), .spec = kSpec};
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "come from the state",
              kvs_cache_restore_file(&with_spec, NULL, kPath, &restored));
  CHECK(remove(kPath) == 0);
  CHECK_FAILS(KVS_IO, kPath, kvs_load_file(same, NULL, kPath));
  CHECK_FAILS(KVS_IO, "kvs_cache_restore_file: c_state_test",
              kvs_cache_restore_file(NULL, NULL, kPath, &restored));
  CHECK_FAILS(KVS_IO, "kvs_save_file: ", kvs_save_file(cache, "", "no/such/folder/x"));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "path is NULL", kvs_save_file(cache, "", NULL));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "path is NULL", kvs_load_file(same, "", NULL));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "path is NULL",
              kvs_cache_restore_file(NULL, NULL, NULL, &restored));
  CHECK_FAILS(KVS_INVALID_ARGUMENT, "identity", kvs_save_file(cache, "two\nlines", kPath));
  CheckSame(cache, same);
  kvs_cache_destroy(cache);
  kvs_cache_destroy(same);
}

int main(void) {
  FillPrompt();
  RUN(ComesBackThroughCallbacks);
  RUN(StopsWithACallbackThatFails);
  RUN(ComesBackFromAFile);
  return 0;
}
