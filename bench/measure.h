// What benchmarks of a whole cache share: its buffers, so that they can be read as a yardstick, and
// the clock.
#ifndef KVSIEVE_BENCH_MEASURE_H_
#define KVSIEVE_BENCH_MEASURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <vector>

#include "bench/pure_read.h"
#include "kvsieve/allocator.h"

namespace kvsieve::bench {

// The default allocator; remembers what is live, so that the same buffers can be read.
class RecordingAllocator final : public Allocator {
 public:
  void* Allocate(std::size_t bytes) override {
    void* memory = DefaultAllocator().Allocate(bytes);
    if (memory != nullptr) live_[memory] = bytes;
    return memory;
  }
  void Deallocate(void* memory, std::size_t bytes) override {
    live_.erase(memory);
    DefaultAllocator().Deallocate(memory, bytes);
  }
  std::size_t bytes() const {
    std::size_t total = 0;
    for (const auto& [memory, size] : live_) total += size;
    return total;
  }
  // Reads every live buffer: as fast as this machine can.
  std::uint64_t ReadAll() const {
    std::uint64_t sum = 0;
    for (const auto& [memory, size] : live_) sum += PureRead(memory, size);
    return sum;
  }

 private:
  std::map<void*, std::size_t> live_;  // in address order
};

// This thread's CPU time: what other processes take from a busy machine is not counted.
inline double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_MEASURE_H_
