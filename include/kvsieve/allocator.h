// Where the memory of stored rows comes from.
#ifndef KVSIEVE_ALLOCATOR_H_
#define KVSIEVE_ALLOCATOR_H_

#include <cstddef>

namespace kvsieve {

inline constexpr std::size_t kBlockAlignment = 64;

// All blocks, staging and exact rows of a cache come from one Allocator; resident_bytes is the
// sum of the sizes asked of it. Calls on one cache are serialised, so an allocator that serves
// one cache needs no lock; one shared by caches that run concurrently, such as forks, does.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // `bytes` > 0, aligned to kBlockAlignment, contents zero. nullptr when there is no memory.
  virtual void* Allocate(std::size_t bytes) = 0;
  // `bytes` is the size that was asked for.
  virtual void Deallocate(void* memory, std::size_t bytes) = 0;
};

// The process-wide default, thread-safe: large requests are mapped on their own, with huge pages
// where the system has them, and return to the system when freed.
Allocator& DefaultAllocator();

}  // namespace kvsieve

#endif  // KVSIEVE_ALLOCATOR_H_
