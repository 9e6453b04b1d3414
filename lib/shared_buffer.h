// A Buffer with several holders: forks of a cache share the blocks that none of them writes again.
// The memory goes back to its allocator with the last holder. Holders may live in different
// threads; one handle is used by one thread at a time.
#ifndef KVSIEVE_LIB_SHARED_BUFFER_H_
#define KVSIEVE_LIB_SHARED_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "lib/buffer.h"

namespace kvsieve {

class SharedBuffer {
 public:
  SharedBuffer() = default;
  ~SharedBuffer() { Release(); }
  SharedBuffer(SharedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), held_(std::exchange(other.held_, nullptr)) {}
  SharedBuffer& operator=(SharedBuffer&& other) noexcept {
    if (this == &other) return *this;
    Release();
    data_ = std::exchange(other.data_, nullptr);
    held_ = std::exchange(other.held_, nullptr);
    return *this;
  }

  // The one holder so far of this memory.
  explicit SharedBuffer(Buffer memory) {
    if (memory.bytes() == 0) return;
    held_ = new Held{std::move(memory)};
    data_ = held_->memory.data();
  }
  // As Buffer::Allocate.
  static Result<SharedBuffer> Allocate(Allocator& allocator, std::size_t bytes) {
    KVS_ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(allocator, bytes));
    return SharedBuffer(std::move(memory));
  }

  // One holder more of the same memory.
  SharedBuffer Share() const {
    SharedBuffer other;
    other.data_ = data_;
    other.held_ = held_;
    if (held_ != nullptr) held_->holders.fetch_add(1, std::memory_order_relaxed);
    return other;
  }
  // Whether there are other holders. Where not there will be none until this one is shared: others
  // only go. What they read before they went comes before what is written after false is seen.
  bool shared() const {
    return held_ != nullptr && held_->holders.load(std::memory_order_acquire) > 1;
  }

  // For writing: precondition !shared().
  std::uint8_t* data() {
    KVS_DCHECK(!shared());
    return data_;
  }
  const std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return held_ == nullptr ? 0 : held_->memory.bytes(); }

 private:
  struct Held {
    Buffer memory;
    std::atomic<std::int64_t> holders{1};
  };

  void Release() {
    if (held_ == nullptr) return;
    // What a holder read or wrote comes before the memory is freed.
    if (held_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held_;
  }

  std::uint8_t* data_ = nullptr;  // of held_, so that readers touch the count's memory no more
  Held* held_ = nullptr;
};

// Shared memory that a report has counted, by address, with what of it any holder uses.
using CountedMemory = std::unordered_map<const void*, std::uint64_t>;

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SHARED_BUFFER_H_
