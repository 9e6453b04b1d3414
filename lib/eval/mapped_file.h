// A regular file, mapped read-only.
#ifndef KVSIEVE_LIB_EVAL_MAPPED_FILE_H_
#define KVSIEVE_LIB_EVAL_MAPPED_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "kvsieve/result.h"

namespace kvsieve::eval {

class MappedFile {
 public:
  MappedFile() = default;  // no bytes
  // Fails on anything but a regular file; never blocks on a pipe or device.
  static Result<MappedFile> Open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Page-aligned. Empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_MAPPED_FILE_H_
