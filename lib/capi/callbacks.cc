#include "lib/capi/callbacks.h"

#include <cstring>
#include <type_traits>

#include "kvsieve/str_cat.h"
#include "lib/capi/args.h"
#include "lib/capi/call.h"

namespace kvsieve::capi {
namespace {

static_assert(std::is_same_v<kvs_task, Parallel::TaskFn>);

Status Stopped(std::string_view what, int returned) {
  return {ErrorCode::kIo, StrCat(what, " returned ", returned)};
}

}  // namespace

Result<CallerAllocator> CallerAllocator::Create(const kvs_allocator* given) {
  CallerAllocator allocator;
  KVS_RETURN_IF_ERROR(ReadArgs("allocator", given, sizeof(*given), &allocator.given_));
  if (allocator.given_.allocate == nullptr || allocator.given_.deallocate == nullptr) {
    return Status::Invalid("allocator.allocate or allocator.deallocate is NULL");
  }
  return allocator;
}

// The core counts on zeros, which malloc does not give.
void* CallerAllocator::Allocate(std::size_t bytes) {
  void* memory = given_.allocate(given_.user, bytes, kBlockAlignment);
  if (memory == nullptr) return nullptr;
  if (reinterpret_cast<std::uintptr_t>(memory) % kBlockAlignment != 0) {
    given_.deallocate(given_.user, memory, bytes);
    return nullptr;
  }
  std::memset(memory, 0, bytes);
  return memory;
}

void CallerAllocator::Deallocate(void* memory, std::size_t bytes) {
  given_.deallocate(given_.user, memory, bytes);
}

Result<CallerParallel> CallerParallel::Create(std::string_view name, const kvs_parallel* given) {
  CallerParallel parallel;
  KVS_RETURN_IF_ERROR(ReadArgs(name, given, sizeof(*given), &parallel.given_));
  KVS_RETURN_IF_ERROR(CheckReserved(StrCat(name, ".reserved"), parallel.given_.reserved));
  KVS_RETURN_IF_ERROR(CheckWorkers(StrCat(name, ".workers"), parallel.given_.workers));
  if (parallel.given_.run == nullptr) return Status::Invalid(StrCat(name, ".run is NULL"));
  return parallel;
}

void CallerParallel::Run(std::int64_t tasks, TaskFn fn, void* context) {
  given_.run(given_.user, tasks, fn, context);
}

Result<CallerSink> CallerSink::Create(const kvs_sink* given) {
  CallerSink sink;
  KVS_RETURN_IF_ERROR(ReadArgs("sink", given, sizeof(*given), &sink.given_));
  if (sink.given_.write == nullptr) return Status::Invalid("sink.write is NULL");
  return sink;
}

Status CallerSink::Write(std::span<const std::byte> bytes) {
  const int stop = given_.write(given_.user, bytes.data(), bytes.size());
  return stop == 0 ? Status::Ok() : Stopped("sink.write", stop);
}

Result<CallerSource> CallerSource::Create(const kvs_source* given) {
  CallerSource source;
  KVS_RETURN_IF_ERROR(ReadArgs("source", given, sizeof(*given), &source.given_));
  if (source.given_.read == nullptr) return Status::Invalid("source.read is NULL");
  source.left_ = source.given_.bytes;
  if (source.left_ < 0) return Status::Invalid(StrCat("source.bytes is ", source.left_));
  return source;
}

Status CallerSource::Read(std::span<std::byte> to) {
  const int stop = given_.read(given_.user, to.data(), to.size());
  if (stop != 0) return Stopped("source.read", stop);
  left_ -= static_cast<std::int64_t>(to.size());
  return Status::Ok();
}

}  // namespace kvsieve::capi
