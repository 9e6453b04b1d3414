#include "tests/lib/state_bytes.h"

#include <cstdint>
#include <cstring>
#include <span>

#include "kvsieve/saved_state.h"
#include "lib/checksum.h"

namespace kvsieve::state_test {
namespace {

// Of the `count` bytes from `first` on, written behind them.
std::uint64_t SignPart(Bytes& state, std::size_t first, std::size_t count, std::uint64_t seed) {
  Checksum checksum(seed);
  checksum.Add(std::span(state).subspan(first, count));
  const std::uint64_t sum = checksum.value();
  std::memcpy(state.data() + first + count, &sum, sizeof sum);
  return sum;
}

}  // namespace

void Sign(Bytes& state) {
  constexpr std::size_t kPreamble = 16;
  constexpr std::size_t kSum = 8;
  if (state.size() < kPreamble + kSum) return;
  std::uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, state.data() + 12, sizeof header_bytes);
  if (header_bytes > state.size() - kPreamble - kSum) return;
  const std::uint64_t sum = SignPart(state, 0, kPreamble + header_bytes, 0);
  MemorySource source(state);
  const Result<StateInfo> info = ReadStateInfo(source);
  if (!info.ok()) return;
  std::size_t at = kPreamble + header_bytes + kSum;
  for (std::size_t i = 0; i < info->layers.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(info->layers[i].bytes);
    SignPart(state, at, bytes, sum + i);
    at += bytes + kSum;
  }
}

}  // namespace kvsieve::state_test
