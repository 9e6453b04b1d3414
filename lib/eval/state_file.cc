#include "kvsieve/eval/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "kvsieve/byte_stream.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/atomic_file.h"
#include "lib/eval/file_error.h"

namespace kvsieve::eval {
namespace {

class FileSink final : public ByteSink {
 public:
  explicit FileSink(AtomicFile& file) : file_(file) {}
  Status Write(std::span<const std::byte> bytes) override { return file_.Write(bytes); }

 private:
  AtomicFile& file_;
};

// Read, not mapped: a file that is cut meanwhile is an error, not a signal.
class FileSource final : public ByteSource {
 public:
  static Result<FileSource> Open(const std::string& path) {
    FileSource source(path);
    // O_NONBLOCK: opening a pipe without a writer would wait for ever.
    source.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source.descriptor_ < 0) return source.errors_.System("open", errno);
    struct stat info = {};
    if (fstat(source.descriptor_, &info) != 0) return source.errors_.System("stat", errno);
    KVS_RETURN_IF_ERROR(source.errors_.CheckRegular(info.st_mode));
    source.left_ = info.st_size;
    return source;
  }
  ~FileSource() override {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FileSource(FileSource&& other) noexcept
      : errors_(std::move(other.errors_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        left_(other.left_) {}
  FileSource& operator=(FileSource&&) = delete;

  std::int64_t bytes_left() const override { return left_; }
  Status Read(std::span<std::byte> to) override {
    while (!to.empty()) {
      const ssize_t count = read(descriptor_, to.data(), to.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errors_.System("read", errno);
      if (count == 0) {
        return errors_.Make(ErrorCode::kIo, "", "became shorter while it was read",
                            "load it again");
      }
      to = to.subspan(static_cast<std::size_t>(count));
      left_ -= count;
    }
    return Status::Ok();
  }

 private:
  explicit FileSource(const std::string& path) : errors_(path) {}

  FileErrors errors_;
  int descriptor_ = -1;
  std::int64_t left_ = 0;
};

// Errors of the file itself name it already.
Status OfFile(const std::string& path, Status status) {
  if (status.ok() || status.error().code == ErrorCode::kIo) return status;
  return Status(status.error().code, StrCat(OneLine(path, 4096), ": ", status.message()));
}

template <class T>
Result<T> OfFile(const std::string& path, Result<T> result) {
  if (result.ok()) return result;
  return OfFile(path, result.TakeStatus());
}

}  // namespace

Status SaveCache(const Cache& cache, std::string_view identity, const std::string& path) {
  return NoThrow([&]() -> Status {
    KVS_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
    FileSink sink(file);
    KVS_RETURN_IF_ERROR(OfFile(path, cache.Save(identity, sink)));
    return file.Commit();
  });
}

Result<Cache> LoadCache(const std::string& path, std::optional<std::string_view> identity,
                        const CacheOptions& options) {
  return NoThrow([&]() -> Result<Cache> {
    KVS_ASSIGN_OR_RETURN(FileSource source, FileSource::Open(path));
    return OfFile(path, Cache::FromState(source, identity, options));
  });
}

Status LoadCache(const std::string& path, std::optional<std::string_view> identity, Cache& cache) {
  return NoThrow([&]() -> Status {
    KVS_ASSIGN_OR_RETURN(FileSource source, FileSource::Open(path));
    return OfFile(path, cache.Load(source, identity));
  });
}

Result<StateInfo> ReadStateInfo(const std::string& path) {
  return NoThrow([&]() -> Result<StateInfo> {
    KVS_ASSIGN_OR_RETURN(FileSource source, FileSource::Open(path));
    return OfFile(path, kvsieve::ReadStateInfo(source));
  });
}

bool IsSavedCache(const std::string& path) {
  Result<FileSource> source = FileSource::Open(path);
  std::array<std::byte, 8> first = {};
  return source.ok() && source->bytes_left() >= std::ssize(first) && source->Read(first).ok() &&
         BeginsSavedState(first);
}

}  // namespace kvsieve::eval
