// Where the memory of stored rows comes from.
#ifndef KVSIEVE_ALLOCATOR_H_
#define KVSIEVE_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

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

// A budget: lends memory of another allocator, at most `limit_bytes` at a time. A call that would
// take more fails with kOutOfMemory and leaves the cache as it was; rows that go (Evict, a trim,
// Clear) make room again. Caches that are given the same budget share it. Rows alone: what Attend
// takes is its caller's, lists and tables are on the heap. Thread-safe where `from` is.
class BudgetAllocator final : public Allocator {
 public:
  // Preconditions: limit_bytes >= 0, `from` outlives this.
  BudgetAllocator(Allocator& from, std::int64_t limit_bytes)
      : from_(from), limit_bytes_(limit_bytes) {}
  void* Allocate(std::size_t bytes) override;
  void Deallocate(void* memory, std::size_t bytes) override;

  // Lent at the moment: the sum of resident_bytes of the caches, shared blocks once.
  std::int64_t used_bytes() const { return used_bytes_; }
  std::int64_t limit_bytes() const { return limit_bytes_; }

 private:
  Allocator& from_;
  const std::int64_t limit_bytes_;
  std::atomic<std::int64_t> used_bytes_{0};
};

}  // namespace kvsieve

#endif  // KVSIEVE_ALLOCATOR_H_
