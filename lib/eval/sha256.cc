#include "lib/eval/sha256.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace kvsieve::eval {
namespace {

constexpr std::size_t kBlockBytes = 64;

// Fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr std::uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

std::uint32_t LoadBigEndian(const std::byte* bytes) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

// One block of the message (FIPS 180-4, 6.2.2).
void Compress(const std::byte* block, State& state) {
  std::uint32_t schedule[64];
  for (int t = 0; t < 16; ++t) schedule[t] = LoadBigEndian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const std::uint32_t w2 = schedule[t - 2];
    const std::uint32_t w15 = schedule[t - 15];
    schedule[t] = (std::rotr(w2, 17) ^ std::rotr(w2, 19) ^ (w2 >> 10)) + schedule[t - 7] +
                  (std::rotr(w15, 7) ^ std::rotr(w15, 18) ^ (w15 >> 3)) + schedule[t - 16];
  }
  State s = state;
  for (int t = 0; t < 64; ++t) {
    const auto [a, b, c, d, e, f, g, h] = s;
    const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & f) ^ (~e & g)) + kRoundConstants[t] + schedule[t];
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    s = {t1 + t2, a, b, c, d + t1, e, f, g};
  }
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += s[i];
}

}  // namespace

std::string Sha256Hex(std::span<const std::byte> message) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const std::uint64_t message_bits = std::uint64_t{message.size()} * 8;
  for (; message.size() >= kBlockBytes; message = message.subspan(kBlockBytes)) {
    Compress(message.data(), state);
  }
  // The rest, a one bit, zeros, and the length in the last 8 bytes of one or two blocks.
  std::array<std::byte, 2 * kBlockBytes> last = {};
  std::copy(message.begin(), message.end(), last.begin());
  last[message.size()] = std::byte{0x80};
  const std::size_t last_bytes = message.size() < kBlockBytes - 8 ? kBlockBytes : 2 * kBlockBytes;
  for (std::size_t i = 0; i < 8; ++i) {
    last[last_bytes - 1 - i] = static_cast<std::byte>(message_bits >> (8 * i));
  }
  for (std::size_t i = 0; i < last_bytes; i += kBlockBytes) Compress(last.data() + i, state);
  std::string hex;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

}  // namespace kvsieve::eval
