// The system refuses, at every call of a save and of a load: this program's own open, write, read,
// fsync, close and rename stand before those of libc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvsieve/eval/state_file.h"

namespace {

enum class Fault {
  kNone,
  kError,      // the `fail_at`-th call fails with `fail_with`
  kShort,      // every write and read does a part of what is asked, and is interrupted before
  kEndOfFile,  // the `fail_at`-th read finds the end
};
Fault fault = Fault::kNone;
int fail_at = 0;
int fail_with = 0;
int calls = 0;
bool interrupted = false;
std::string failed_call;

bool Fails(const char* name) {
  if (fault == Fault::kNone) return false;
  if (fault != Fault::kError || calls++ != fail_at) return false;
  failed_call = name;
  errno = fail_with;
  return true;
}

// Every second call, so that the work goes on.
bool Interrupts() {
  if (fault != Fault::kShort) return false;
  interrupted = !interrupted;
  if (interrupted) errno = EINTR;
  return interrupted;
}

std::size_t Part(std::size_t bytes) { return fault == Fault::kShort ? (bytes + 2) / 3 : bytes; }

}  // namespace

extern "C" {
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if (Fails("open")) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (Fails("write") || Interrupts()) return -1;
  return syscall(SYS_write, descriptor, data, Part(bytes));
}
ssize_t read(int descriptor, void* to, size_t bytes) {
  if (Fails("read") || Interrupts()) return -1;
  if (fault == Fault::kEndOfFile && calls++ == fail_at) return 0;
  return syscall(SYS_read, descriptor, to, Part(bytes));
}
int fsync(int descriptor) {
  return Fails("fsync") ? -1 : static_cast<int>(syscall(SYS_fsync, descriptor));
}
int close(int descriptor) {
  // Linux has closed it whatever it says.
  const int result = static_cast<int>(syscall(SYS_close, descriptor));
  return Fails("close") ? -1 : result;
}
int rename(const char* from, const char* to) {
  return Fails("rename") ? -1 : static_cast<int>(syscall(SYS_rename, from, to));
}
}

namespace kvsieve::eval {
namespace {

namespace fs = std::filesystem;

std::string Content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Cache MakeCache(std::int64_t rows, int dim) {
  LayerSpec layer;
  layer.query_heads = 2;
  layer.kv_heads = 1;
  layer.key_dim = layer.value_dim = dim;
  layer.scale = 0.125F;
  Result<Pipeline> pipeline = Pipeline::Parse("none | k=center+int8, v=int8 | tail=4");
  Result<Cache> cache =
      Cache::Create(std::make_shared<const Pipeline>(*std::move(pipeline)), {layer}, {});
  std::vector<float> elements(static_cast<std::size_t>(rows * dim));
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i % 97);
  std::vector<TokenPos> positions;
  for (std::int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<TokenPos>(r));
  const HeadsView view = HeadsView::HeadMajor(elements.data(), 1, rows, dim);
  EXPECT_TRUE(cache->Append(0, Phase::kPrefill, view, view, positions).ok());
  EXPECT_TRUE(cache->FinishPrefill().ok());
  return *std::move(cache);
}

class StateIoFaults : public ::testing::Test {
 protected:
  StateIoFaults()
      : large_(MakeCache(3000, 64)), small_(MakeCache(12, 16)), loaded_(MakeCache(12, 64)) {
    fs::create_directories(folder_);
    path_ = (folder_ / "cache.kvs").string();
    EXPECT_TRUE(SaveCache(small_, "old", path_).ok());
  }
  ~StateIoFaults() override {
    fault = Fault::kNone;
    fs::remove_all(folder_);
  }

  template <class Call>
  auto With(Fault what, int at, int error, Call call) {
    fault = what;
    fail_at = at;
    fail_with = error;
    calls = 0;
    failed_call.clear();
    auto result = call();
    fault = Fault::kNone;
    return result;
  }
  std::int64_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  std::string Saved(const Cache& cache) {
    MemorySink sink;
    EXPECT_TRUE(cache.Save("x", sink).ok());
    return {reinterpret_cast<const char*>(sink.bytes().data()), sink.bytes().size()};
  }

  const fs::path folder_ = testing::TempDir() + "/kvs_state_io_fault";
  std::string path_;
  Cache large_;  // several writes
  Cache small_;
  Cache loaded_;  // of the layers of the large one
};

TEST_F(StateIoFaults, EverySystemCallOfASaveMayFail) {
  const std::string before = Content(path_);
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    std::vector<std::string> failed;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      ASSERT_TRUE(SaveCache(small_, "old", path_).ok());
      const Status status =
          With(Fault::kError, n, error, [&] { return SaveCache(large_, "new", path_); });
      if (failed_call.empty()) {
        ASSERT_TRUE(status.ok());
        break;
      }
      failed.push_back(failed_call);
      EXPECT_EQ(files(), 1) << failed_call << " " << n;
      if (status.ok()) {
        // The folder's own sync, and what belongs to it, is tried: the file is complete before.
        EXPECT_EQ(ReadStateInfo(path_)->identity, "new");
        continue;
      }
      EXPECT_EQ(status.error().code, ErrorCode::kIo);
      EXPECT_TRUE(status.message().starts_with(path_ + ": cannot write: " + std::strerror(error)))
          << status.message();
      ASSERT_EQ(Content(path_), before) << failed_call << " " << n;
    }
    for (const char* call : {"open", "write", "fsync", "close", "rename"}) {
      EXPECT_NE(std::find(failed.begin(), failed.end(), call), failed.end()) << call;
    }
    EXPECT_GT(std::count(failed.begin(), failed.end(), "write"), 3);
  }
}

TEST_F(StateIoFaults, EverySystemCallOfALoadMayFail) {
  ASSERT_TRUE(SaveCache(large_, "x", path_).ok());
  const std::string before = Saved(loaded_);
  std::vector<std::string> failed;
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 1000);
    const Status status =
        With(Fault::kError, n, EIO, [&] { return LoadCache(path_, "x", loaded_); });
    if (failed_call.empty()) {
      ASSERT_TRUE(status.ok()) << status.message();
      break;
    }
    failed.push_back(failed_call);
    if (failed_call == "close") {  // after all was read
      ASSERT_TRUE(status.ok());
      loaded_ = MakeCache(12, 64);
      continue;
    }
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_TRUE(status.message().starts_with(path_ + ": cannot ")) << status.message();
    EXPECT_NE(status.message().find(std::strerror(EIO)), std::string::npos) << status.message();
    ASSERT_EQ(Saved(loaded_), before) << failed_call << " " << n;
  }
  EXPECT_GT(std::count(failed.begin(), failed.end(), "read"), 3);
}

TEST_F(StateIoFaults, AFileThatEndsEarlyAtAnyReadIsAnError) {
  ASSERT_TRUE(SaveCache(large_, "x", path_).ok());
  const std::string before = Saved(loaded_);
  int ended = 0;
  for (;; ++ended) {
    ASSERT_LT(ended, 1000);
    const Status status =
        With(Fault::kEndOfFile, ended, 0, [&] { return LoadCache(path_, "x", loaded_); });
    if (status.ok()) break;
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_NE(status.message().find("became shorter"), std::string::npos) << status.message();
    ASSERT_EQ(Saved(loaded_), before);
  }
  EXPECT_GT(ended, 3);
}

TEST_F(StateIoFaults, ShortAndInterruptedCallsGoOn) {
  ASSERT_TRUE(With(Fault::kShort, 0, 0, [&] { return SaveCache(large_, "x", path_); }).ok());
  EXPECT_EQ(Content(path_), Saved(large_));
  ASSERT_TRUE(With(Fault::kShort, 0, 0, [&] { return LoadCache(path_, "x", loaded_); }).ok());
  EXPECT_EQ(Saved(loaded_), Saved(large_));
}

// Of a small file: each byte with a bit flipped, and each length.
TEST_F(StateIoFaults, EveryDamageOfAFileIsFound) {
  const std::string good = Content(path_);
  ASSERT_LT(good.size(), 4000U);
  const std::string before = Saved(small_);
  const std::string damaged_path = (folder_ / "damaged.kvs").string();
  const auto refused = [&](const std::string& content) {
    std::ofstream(damaged_path, std::ios::binary) << content;
    const Status status = LoadCache(damaged_path, "old", small_);
    ASSERT_FALSE(status.ok());
    ASSERT_TRUE(status.message().starts_with(damaged_path + ": ")) << status.message();
    ASSERT_EQ(Saved(small_), before);
  };
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    refused(damaged);
    refused(good.substr(0, at));
    if (HasFatalFailure()) FAIL() << "byte " << at;
  }
  refused(good + "x");
}

}  // namespace
}  // namespace kvsieve::eval
