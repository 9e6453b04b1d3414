// XXH3, 64 bits: against bytes that changed by accident, not on purpose.
#ifndef KVSIEVE_LIB_CHECKSUM_H_
#define KVSIEVE_LIB_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvsieve {

class Checksum {
 public:
  explicit Checksum(std::uint64_t seed);
  // Pieces may be cut anywhere.
  void Add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  // An XXH3_state_t; its header stays out of ours.
  static constexpr std::size_t kStateBytes = 576;
  alignas(64) std::byte state_[kStateBytes];
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_CHECKSUM_H_
