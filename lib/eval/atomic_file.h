// Output files that are either complete or not there.
#ifndef KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_
#define KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "kvsieve/result.h"
#include "lib/eval/file_error.h"

namespace kvsieve::eval {

// The file that writing to `path` would create or replace: `path`, or what it points to when it is
// a symbolic link, which need not exist. Empty when links lead in a circle.
std::string FollowLinks(const std::string& path);

struct TemporaryName;

// A file written under a temporary name beside FollowLinks(path) until Commit gives it its own.
// Without Commit, or when it fails, no temporary file is left and an existing file is as it was.
// Links stay links.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path);
  ~AtomicFile() { Discard(); }
  AtomicFile(AtomicFile&& other) noexcept
      : errors_(std::move(other.errors_)),
        target_(std::move(other.target_)),
        temporary_(std::move(other.temporary_)),
        name_(std::exchange(other.name_, nullptr)),
        descriptor_(std::exchange(other.descriptor_, -1)) {}
  AtomicFile& operator=(AtomicFile&&) = delete;

  // Behind what was written before.
  Status Write(std::span<const std::byte> bytes);
  // Returns when the bytes are on the disk: a name without them would be a broken file after a
  // crash. The last call.
  Status Commit();

 private:
  explicit AtomicFile(const std::string& path) : errors_(path) {}
  void Discard();
  void ForgetName();

  FileErrors errors_;
  std::string target_;
  std::string temporary_;
  TemporaryName* name_ = nullptr;  // null: RemoveTemporaryFiles had no place left
  int descriptor_ = -1;
};

// Removes the temporary files of this process that are not committed, eight at most: for a handler
// of the signal that ends it. Async-signal-safe.
void RemoveTemporaryFiles();

// The parts, one after the other, as one AtomicFile.
Status WriteFileAtomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_
