// The layer that all contenders attend over: f16 rows of normally distributed numbers, and queries
// that find some of them again.
#ifndef KVSIEVE_BENCH_PEERS_LAYER_DATA_H_
#define KVSIEVE_BENCH_PEERS_LAYER_DATA_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvsieve/types.h"

namespace kvsieve::bench {

inline constexpr int kQueryHeads = 32;
inline constexpr int kKvHeads = 8;
inline constexpr int kGroup = kQueryHeads / kKvHeads;
inline constexpr int kDim = 128;
inline constexpr float kScale = 0.08838834764831845F;  // 1 / sqrt(kDim)

[[noreturn]] void Fail(std::string_view what);

// Memory on huge pages, as the stores of a cache have it.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&&) = delete;

  std::size_t bytes() const { return bytes_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

class LayerData {
 public:
  explicit LayerData(std::int64_t rows);

  std::int64_t rows() const { return rows_; }
  // [kKvHeads, rows, kDim]
  const F16* keys() const { return reinterpret_cast<const F16*>(keys_.data()); }
  const F16* values() const { return reinterpret_cast<const F16*>(values_.data()); }
  // f32 [kQueryHeads, kDim]. Each is the sum of four of its head's keys, times 1.2: those rows and
  // all others get about half of the weight each, so that an output depends on both and is large
  // beside rounding.
  const std::vector<float>& queries() const { return queries_; }

 private:
  std::int64_t rows_;
  HugeBuffer keys_;
  HugeBuffer values_;
  std::vector<float> queries_;
};

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_PEERS_LAYER_DATA_H_
