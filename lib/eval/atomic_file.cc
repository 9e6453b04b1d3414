#include "lib/eval/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "kvsieve/str_cat.h"
#include "lib/eval/file_error.h"

namespace kvsieve::eval {
namespace {

namespace fs = std::filesystem;

// 0, or the errno of the first write that failed.
int WriteAll(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

int WriteParts(int descriptor, std::span<const std::span<const std::byte>> parts) {
  for (const auto& part : parts) {
    if (const int error = WriteAll(descriptor, part); error != 0) return error;
  }
  return 0;
}

}  // namespace

std::string FollowLinks(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as Linux
  std::error_code error;
  fs::path target(path);
  for (int links = 0; links <= kMaxLinks; ++links) {
    if (!fs::is_symlink(target, error)) return target.string();
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return "";
}

Status WriteFileAtomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts) {
  const FileErrors errors(path);
  const std::string target = FollowLinks(path);
  if (target.empty()) return errors.System("write", ELOOP);
  const std::string temporary = StrCat(target, ".", static_cast<long>(getpid()), ".tmp");
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                              S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  if (descriptor < 0) return errors.System("write", errno);
  int error = WriteParts(descriptor, parts);
  // Some file systems report a full disk only here.
  if (close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return Status::Ok();
  unlink(temporary.c_str());
  return errors.System("write", error);
}

}  // namespace kvsieve::eval
