#include "lib/eval/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "kvsieve/str_cat.h"

namespace kvsieve::eval {

// The name of a temporary file where a signal handler can read it: no lock, no heap.
struct TemporaryName {
  std::atomic<bool> taken = false;
  std::atomic<bool> complete = false;
  char path[PATH_MAX] = {};
};

namespace {

namespace fs = std::filesystem;

static_assert(std::atomic<bool>::is_always_lock_free);
TemporaryName temporary_names[8];

// Null where all are taken.
TemporaryName* AddTemporaryName(const std::string& path) {
  if (path.size() >= PATH_MAX) return nullptr;
  for (TemporaryName& name : temporary_names) {
    if (name.taken.exchange(true)) continue;
    *std::copy(path.begin(), path.end(), name.path) = '\0';
    name.complete = true;
    return &name;
  }
  return nullptr;
}

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

// So that the new name survives a crash too. A folder that cannot be opened for it keeps its name
// in memory, as without.
void SyncFolder(const std::string& file) {
  const std::string folder = fs::path(file).parent_path().string();
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
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

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  AtomicFile file(path);
  file.target_ = FollowLinks(path);
  if (file.target_.empty()) return file.errors_.System("write", ELOOP);
  file.temporary_ = StrCat(file.target_, ".", static_cast<long>(getpid()), ".tmp");
  file.name_ = AddTemporaryName(file.temporary_);
  file.descriptor_ = open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                          S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  if (file.descriptor_ >= 0) return file;
  const int error = errno;
  file.ForgetName();
  return file.errors_.System("write", error);
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  const int error = WriteAll(descriptor_, bytes);
  return error == 0 ? Status::Ok() : errors_.System("write", error);
}

Status AtomicFile::Commit() {
  int error = fsync(descriptor_) != 0 ? errno : 0;
  // Some file systems report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary_.c_str(), target_.c_str()) != 0) error = errno;
  if (error != 0) unlink(temporary_.c_str());
  ForgetName();
  if (error != 0) return errors_.System("write", error);
  SyncFolder(target_);
  return Status::Ok();
}

void AtomicFile::Discard() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
  ForgetName();
}

void AtomicFile::ForgetName() {
  TemporaryName* name = std::exchange(name_, nullptr);
  if (name == nullptr) return;
  name->complete = false;
  name->taken = false;
}

void RemoveTemporaryFiles() {
  for (const TemporaryName& name : temporary_names) {
    if (name.complete) unlink(name.path);
  }
}

Status WriteFileAtomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts) {
  KVS_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  for (const auto& part : parts) KVS_RETURN_IF_ERROR(file.Write(part));
  return file.Commit();
}

}  // namespace kvsieve::eval
