// What every call of the C interface is held to, and callbacks that do their work until they fail.
#ifndef KVSIEVE_TESTS_FUZZ_CAPI_CALLBACKS_H_
#define KVSIEVE_TESTS_FUZZ_CAPI_CALLBACKS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kvsieve/kvsieve_c.h"

namespace kvsieve::fuzz {

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s; last error: %s\n", what, kvs_last_error());
  std::abort();  // libFuzzer keeps the input
}

// Well, or an error that has its one line and is the caller's.
inline void Check(kvs_result result) {
  if (result == KVS_OK) return;
  const std::string line = kvs_last_error();
  Require(result > KVS_OK && result < KVS_INTERNAL, "result");
  Require(line.starts_with("kvs_") && line.size() <= 1023, "message");
  Require(line.find('\n') == std::string::npos, "one line");
  Require(std::strcmp(kvs_result_name(result), "unknown result") != 0, "name");
}

// Counts down; then refuses.
struct Memory {
  int fail_at = -1;
};
inline void* Allocate(void* user, size_t bytes, size_t alignment) {
  auto* memory = static_cast<Memory*>(user);
  if (memory->fail_at == 0) return nullptr;
  if (memory->fail_at > 0) --memory->fail_at;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
inline void Deallocate(void*, void* memory, size_t) { std::free(memory); }

inline void RunTasks(void*, int64_t tasks, kvs_task task, void* context) {
  for (int64_t t = 0; t < tasks; ++t) task(context, t, 0);
}

// A state, and the call that fails.
struct Stream {
  std::vector<std::uint8_t> bytes;
  std::size_t at = 0;
  int fail_at = -1;
};
inline int Write(void* user, const void* data, size_t bytes) {
  auto* stream = static_cast<Stream*>(user);
  if (stream->fail_at-- == 0) return 1;
  const auto* from = static_cast<const std::uint8_t*>(data);
  stream->bytes.insert(stream->bytes.end(), from, from + bytes);
  return 0;
}
inline int Read(void* user, void* to, size_t bytes) {
  auto* stream = static_cast<Stream*>(user);
  if (stream->fail_at-- == 0 || bytes > stream->bytes.size() - stream->at) return -1;
  if (bytes > 0) std::memcpy(to, stream->bytes.data() + stream->at, bytes);
  stream->at += bytes;
  return 0;
}

}  // namespace kvsieve::fuzz

#endif  // KVSIEVE_TESTS_FUZZ_CAPI_CALLBACKS_H_
