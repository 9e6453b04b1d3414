// Arguments for the C interface from bytes: numbers that matter, structs of any struct_size, rows.
// What is wrong with them is what a caller can get wrong and the library can see: pointers are null
// or good, and there is memory for what counts and strides say, unless they are to be refused.
#ifndef KVSIEVE_TESTS_FUZZ_CAPI_GIVEN_H_
#define KVSIEVE_TESTS_FUZZ_CAPI_GIVEN_H_

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kvsieve/kvsieve_c.h"

namespace kvsieve::fuzz {

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : left_(bytes) {}
  bool empty() const { return left_.empty(); }
  std::uint8_t Next() {
    if (left_.empty()) return 0;
    const std::uint8_t byte = left_.front();
    left_ = left_.subspan(1);
    return byte;
  }
  bool OneOf(int n) { return Next() % n == n - 1; }  // not where bytes are 0

  // Small ones, and those at which something ends.
  std::int64_t Number() {
    static constexpr std::int64_t kEdges[] = {
        -1,         4096,    4097,    65535,         65536,
        65537,      INT_MIN, INT_MAX, INT64_MAX,     INT64_MIN,
        1 << 30,    -2,      0x10000, INT64_MAX / 4, std::int64_t{1} << 32,
        INT_MAX - 1};
    const std::uint8_t byte = Next();
    return byte < 224 ? byte % 72 : kEdges[byte % std::size(kEdges)];
  }
  std::int32_t Int() { return static_cast<std::int32_t>(Number()); }
  // Mostly `usual`.
  std::int64_t Or(std::int64_t usual) { return OneOf(12) ? Number() : usual; }
  std::int32_t IntOr(std::int32_t usual) { return static_cast<std::int32_t>(Or(usual)); }
  template <class T>
  T* OrNull(T* pointer) {
    return OneOf(24) ? nullptr : pointer;
  }

 private:
  std::span<const std::uint8_t> left_;
};

// A struct as a caller built against some other version has it: exactly as long as its struct_size
// says, so that a byte read behind it is found.
template <class T>
class Given {
 public:
  Given(Bytes& bytes, T fields) {
    fields.struct_size = sizeof(T);
    if (bytes.OneOf(6)) {
      static constexpr std::size_t kSizes[] = {0, 1, 8, 16, 24, 4096, 4104, SIZE_MAX};
      const std::uint8_t which = bytes.Next();
      fields.struct_size = which < 128 ? sizeof(T) + which % 3 * 8 - 8 : kSizes[which % 8];
    }
    const std::size_t held = fields.struct_size <= 4096 ? fields.struct_size : 0;
    memory_.resize((std::max(held, sizeof(std::size_t)) + 7) / 8);
    std::memcpy(memory_.data(), &fields, std::min(sizeof(T), std::max(held, std::size_t{8})));
    if (held > sizeof(T) && bytes.OneOf(2)) memory_.back() = 1;  // a field to come
    null_ = bytes.OneOf(24);
  }
  T* get() { return null_ ? nullptr : reinterpret_cast<T*>(memory_.data()); }

 private:
  std::vector<std::uint64_t> memory_;
  bool null_ = false;
};

// `n` rows of some heads. Where they would take too much, or are to be missing, data is null.
class GivenRows {
 public:
  static constexpr std::int64_t kMostElements = 1 << 16;

  static kvs_rows Make(Bytes& bytes, std::int64_t heads, std::int64_t n, std::int64_t dim) {
    kvs_rows rows = {};
    rows.type = bytes.IntOr(KVS_F32);
    rows.reserved = bytes.IntOr(0);
    const bool fits = n >= 0 && n <= 64 && heads > 0 && heads * dim * n <= kMostElements;
    rows.data = fits ? bytes.OrNull(Elements()) : nullptr;
    if (!bytes.OneOf(6)) return rows;  // packed
    rows.head_stride = dim;
    rows.row_stride = heads * dim;
    static constexpr std::int64_t kWrong[] = {-1, 0, INT64_MIN, -4096};
    const std::int64_t wrong = kWrong[bytes.Next() % 4];
    if (bytes.OneOf(3)) rows.row_stride = n > 1 ? wrong : INT64_MAX;
    if (bytes.OneOf(3)) rows.head_stride = heads > 1 ? wrong : INT64_MAX;
    return rows;
  }

 private:
  static const float* Elements() {
    static const std::vector<float> elements = [] {
      std::vector<float> all(kMostElements);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i % 251) / 125 - 1;
      return all;
    }();
    return elements.data();
  }
};

// Increasing from `first`, or not.
class GivenPositions {
 public:
  GivenPositions(Bytes& bytes, std::int64_t first, std::int64_t n) {
    for (std::int64_t i = 0; i < 64; ++i) all_[i] = static_cast<std::int32_t>(first + i);
    if (bytes.OneOf(12)) all_[bytes.Next() % 64] = bytes.Int();
    data_ = n <= 64 ? bytes.OrNull(all_.data()) : nullptr;
  }
  const std::int32_t* data() const { return data_; }

 private:
  std::array<std::int32_t, 64> all_;
  const std::int32_t* data_;
};

}  // namespace kvsieve::fuzz

#endif  // KVSIEVE_TESTS_FUZZ_CAPI_GIVEN_H_
