// Where the bytes of a saved cache go and come from: a file, a socket, a page of the engine's own
// store. Files: kvsieve/eval/state_file.h.
#ifndef KVSIEVE_BYTE_STREAM_H_
#define KVSIEVE_BYTE_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/result.h"

namespace kvsieve {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Takes all of `bytes`, behind those of earlier calls, or fails. Called with some 64 KiB or more
  // at a time.
  virtual Status Write(std::span<const std::byte> bytes) = 0;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // How many bytes are still to be read. Readers believe it: they take memory for what it promises.
  virtual std::int64_t bytes_left() const = 0;
  // Fills all of `to` with the next bytes, or fails. Precondition: to.size() <= bytes_left().
  virtual Status Read(std::span<std::byte> to) = 0;
};

// Collects what is written.
class MemorySink final : public ByteSink {
 public:
  Status Write(std::span<const std::byte> bytes) override {
    return NoThrow([&] {
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
      return Status::Ok();
    });
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads bytes in memory, which outlive it.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : left_(bytes) {}
  std::int64_t bytes_left() const override { return static_cast<std::int64_t>(left_.size()); }
  Status Read(std::span<std::byte> to) override {
    std::copy_n(left_.begin(), to.size(), to.begin());
    left_ = left_.subspan(to.size());
    return Status::Ok();
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_BYTE_STREAM_H_
