#include "kvsieve/allocator.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace kvsieve {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kSlabMax = std::size_t{256} << 10;  // larger requests are mapped alone

std::size_t RoundUp(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Maps `bytes` aligned to a huge page, by mapping one page more and unmapping both ends.
void* MapHuge(std::size_t bytes) {
  const std::size_t length = RoundUp(bytes, kPage);
  void* raw =
      mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = RoundUp(begin, kHugePage);
  if (aligned > begin) munmap(raw, aligned - begin);
  const std::uintptr_t after = aligned + length;
  const std::uintptr_t end = begin + length + kHugePage;
  if (end > after) munmap(reinterpret_cast<void*>(after), end - after);
  void* memory = reinterpret_cast<void*>(aligned);
  // Advice only: without huge pages attention is slower, not wrong.
  madvise(memory, length, MADV_HUGEPAGE);
  return memory;
}

// One huge page cut into slots of one size; lies at the start of the page itself.
struct alignas(kBlockAlignment) Slab {
  Slab* next;
  Slab* previous;
  void* free_slot;       // a list through the slots that came back
  std::size_t fresh_at;  // byte offset of the first slot never used
  std::size_t slots_used;
};

// Slabs of one slot size that still have a free slot.
struct SizeClass {
  std::size_t slot_bytes;
  Slab* open;
};

// Blocks come from slabs on huge pages, so that a store's blocks lie side by side; an empty slab
// goes back to the system at once. Small tables come from the heap, large requests from mmap.
class ArenaAllocator final : public Allocator {
 public:
  void* Allocate(std::size_t bytes) override {
    if (bytes > kSlabMax) return MapHuge(bytes);
    mutex_.lock();
    SizeClass* size_class = bytes < kPage ? nullptr : Find(bytes, true);
    bool used_before = true;
    void* memory = size_class != nullptr ? TakeSlot(*size_class, &used_before) : nullptr;
    mutex_.unlock();
    if (size_class == nullptr) {
      memory = std::aligned_alloc(kBlockAlignment, RoundUp(bytes, kBlockAlignment));
    }
    if (memory != nullptr && used_before) std::memset(memory, 0, bytes);
    return memory;
  }

  void Deallocate(void* memory, std::size_t bytes) override {
    if (bytes > kSlabMax) {
      munmap(memory, RoundUp(bytes, kPage));
      return;
    }
    mutex_.lock();
    SizeClass* size_class = bytes < kPage ? nullptr : Find(bytes, false);
    if (size_class != nullptr) ReturnSlot(*size_class, memory);
    mutex_.unlock();
    if (size_class == nullptr) std::free(memory);
  }

 private:
  // The class of a size, or null when the table is full: a size that got no class never gets one
  // later, so its memory is known to be the heap's.
  SizeClass* Find(std::size_t bytes, bool add) {
    const std::size_t slot_bytes = RoundUp(bytes, kBlockAlignment);
    for (std::size_t i = 0; i < classes_used_; ++i) {
      if (classes_[i].slot_bytes == slot_bytes) return &classes_[i];
    }
    if (!add || classes_used_ == classes_.size()) return nullptr;
    classes_[classes_used_] = {slot_bytes, nullptr};
    return &classes_[classes_used_++];
  }

  static bool IsFull(const SizeClass& size_class, const Slab& slab) {
    return slab.free_slot == nullptr && slab.fresh_at + size_class.slot_bytes > kHugePage;
  }
  static void Link(SizeClass& size_class, Slab* slab) {
    slab->previous = nullptr;
    slab->next = size_class.open;
    if (slab->next != nullptr) slab->next->previous = slab;
    size_class.open = slab;
  }
  static void Unlink(SizeClass& size_class, Slab* slab) {
    if (slab->next != nullptr) slab->next->previous = slab->previous;
    (slab->previous != nullptr ? slab->previous->next : size_class.open) = slab->next;
  }

  static void* TakeSlot(SizeClass& size_class, bool* used_before) {
    if (size_class.open == nullptr) {
      auto* slab = static_cast<Slab*>(MapHuge(kHugePage));
      if (slab == nullptr) return nullptr;
      slab->fresh_at = sizeof(Slab);
      Link(size_class, slab);
    }
    Slab* slab = size_class.open;
    void* slot = slab->free_slot;
    *used_before = slot != nullptr;
    if (slot != nullptr) {
      std::memcpy(&slab->free_slot, slot, sizeof(void*));
    } else {
      slot = reinterpret_cast<std::uint8_t*>(slab) + slab->fresh_at;
      slab->fresh_at += size_class.slot_bytes;
    }
    ++slab->slots_used;
    if (IsFull(size_class, *slab)) Unlink(size_class, slab);
    return slot;
  }

  static void ReturnSlot(SizeClass& size_class, void* memory) {
    auto* slab = reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(memory) &
                                         ~(std::uintptr_t{kHugePage} - 1));
    if (IsFull(size_class, *slab)) Link(size_class, slab);
    std::memcpy(memory, &slab->free_slot, sizeof(void*));
    slab->free_slot = memory;
    if (--slab->slots_used > 0) return;
    Unlink(size_class, slab);
    munmap(slab, kHugePage);
  }

  std::mutex mutex_;
  std::array<SizeClass, 128> classes_{};
  std::size_t classes_used_ = 0;
};

}  // namespace

Allocator& DefaultAllocator() {
  static ArenaAllocator allocator;
  return allocator;
}

void* BudgetAllocator::Allocate(std::size_t bytes) {
  // Taken before the memory is there, so that threads together stay below the limit.
  std::int64_t used = used_bytes_;
  do {
    const std::int64_t left = limit_bytes_ - used;
    if (left < 0 || bytes > static_cast<std::uint64_t>(left)) return nullptr;
  } while (!used_bytes_.compare_exchange_weak(used, used + static_cast<std::int64_t>(bytes)));
  void* memory = from_.Allocate(bytes);
  if (memory == nullptr) used_bytes_ -= static_cast<std::int64_t>(bytes);
  return memory;
}

void BudgetAllocator::Deallocate(void* memory, std::size_t bytes) {
  from_.Deallocate(memory, bytes);
  used_bytes_ -= static_cast<std::int64_t>(bytes);
}

}  // namespace kvsieve
