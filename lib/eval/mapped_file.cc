#include "lib/eval/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/eval/file_error.h"

namespace kvsieve::eval {
namespace {

Result<std::span<const std::byte>> MapDescriptor(int descriptor, const FileErrors& errors) {
  struct stat info = {};
  if (fstat(descriptor, &info) != 0) return errors.System("stat", errno);
  KVS_RETURN_IF_ERROR(errors.CheckRegular(info.st_mode));
  const auto file_bytes = static_cast<std::size_t>(info.st_size);
  if (file_bytes == 0) return std::span<const std::byte>();  // mmap refuses to map nothing
  void* memory = mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) return errors.System("map", errno);
  return std::span(static_cast<const std::byte*>(memory), file_bytes);
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const FileErrors errors(path);
  // O_NONBLOCK: opening a pipe without a writer would wait for ever.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return errors.System("open", errno);
  Result<std::span<const std::byte>> bytes = MapDescriptor(descriptor, errors);
  close(descriptor);
  if (!bytes.ok()) return bytes.TakeStatus();
  MappedFile file;
  file.bytes_ = *bytes;
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace kvsieve::eval
