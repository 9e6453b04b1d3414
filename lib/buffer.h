// Memory from an Allocator, owned by one object. The only way that lib asks for row memory, so
// the sum of Buffer::bytes() is what the allocator was asked for.
#ifndef KVSIEVE_LIB_BUFFER_H_
#define KVSIEVE_LIB_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {

class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { Free(); }
  Buffer(Buffer&& other) noexcept
      : allocator_(other.allocator_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    Free();
    allocator_ = other.allocator_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  // Zeroed memory; zero bytes need none and cannot fail.
  static Result<Buffer> Allocate(Allocator& allocator, std::size_t bytes) {
    Buffer buffer;
    if (bytes == 0) return buffer;
    buffer.data_ = static_cast<std::uint8_t*>(allocator.Allocate(bytes));
    if (buffer.data_ == nullptr) {
      return Status(ErrorCode::kOutOfMemory, StrCat("no memory for ", bytes, " bytes of cache"));
    }
    buffer.allocator_ = &allocator;
    buffer.bytes_ = bytes;
    return buffer;
  }

  // Size of a buffer of `bytes` that Grow finds too small for `wanted`.
  static constexpr std::size_t GrownBytes(std::size_t bytes, std::size_t wanted) {
    const std::size_t roomy = bytes + bytes / 2;
    return roomy > wanted ? roomy : wanted;
  }
  // Moves the first `used` bytes into a buffer of at least `wanted` bytes, growing by half so that
  // appends cost O(1) each. On failure nothing changes.
  Status Grow(Allocator& allocator, std::size_t wanted, std::size_t used) {
    if (wanted <= bytes_) return Status::Ok();
    KVS_ASSIGN_OR_RETURN(Buffer larger, Allocate(allocator, GrownBytes(bytes_, wanted)));
    if (used > 0) std::memcpy(larger.data_, data_, used);
    *this = std::move(larger);
    return Status::Ok();
  }

  Result<Buffer> Clone(Allocator& allocator) const {
    KVS_ASSIGN_OR_RETURN(Buffer copy, Allocate(allocator, bytes_));
    if (bytes_ > 0) std::memcpy(copy.data_, data_, bytes_);
    return copy;
  }

  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  template <class T>
  T* As() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* As() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  void Free() {
    if (data_ != nullptr) allocator_->Deallocate(data_, bytes_);
    data_ = nullptr;
  }

  Allocator* allocator_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_BUFFER_H_
