#include "lib/checksum.h"

#include <new>

#define XXH_INLINE_ALL  // header only: nothing to link
#include <xxhash.h>

namespace kvsieve {
namespace {

const XXH3_state_t* State(const std::byte* bytes) {
  return std::launder(reinterpret_cast<const XXH3_state_t*>(bytes));
}
XXH3_state_t* State(std::byte* bytes) {
  return std::launder(reinterpret_cast<XXH3_state_t*>(bytes));
}

}  // namespace

Checksum::Checksum(std::uint64_t seed) : state_{} {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset_withSeed(::new (state_) XXH3_state_t, seed);
}

void Checksum::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(State(state_), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(State(state_)); }

}  // namespace kvsieve
