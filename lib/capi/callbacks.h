// The C caller's callbacks in the form that the core knows.
#ifndef KVSIEVE_LIB_CAPI_CALLBACKS_H_
#define KVSIEVE_LIB_CAPI_CALLBACKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kvsieve/allocator.h"
#include "kvsieve/byte_stream.h"
#include "kvsieve/kvsieve_c.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"

namespace kvsieve::capi {

class CallerAllocator final : public Allocator {
 public:
  static Result<CallerAllocator> Create(const kvs_allocator* given);
  void* Allocate(std::size_t bytes) override;
  void Deallocate(void* memory, std::size_t bytes) override;

 private:
  kvs_allocator given_ = {};
};

class CallerParallel final : public Parallel {
 public:
  static Result<CallerParallel> Create(std::string_view name, const kvs_parallel* given);
  int workers() const override { return given_.workers; }
  void Run(std::int64_t tasks, TaskFn fn, void* context) override;

 private:
  kvs_parallel given_ = {};
};

class CallerSink final : public ByteSink {
 public:
  static Result<CallerSink> Create(const kvs_sink* given);
  Status Write(std::span<const std::byte> bytes) override;

 private:
  kvs_sink given_ = {};
};

class CallerSource final : public ByteSource {
 public:
  static Result<CallerSource> Create(const kvs_source* given);
  std::int64_t bytes_left() const override { return left_; }
  Status Read(std::span<std::byte> to) override;

 private:
  kvs_source given_ = {};
  std::int64_t left_ = 0;
};

// What a cache and its forks keep of their caller's.
struct Callbacks {
  std::optional<CallerAllocator> allocator;
  std::optional<CallerParallel> parallel;
};

}  // namespace kvsieve::capi

#endif  // KVSIEVE_LIB_CAPI_CALLBACKS_H_
