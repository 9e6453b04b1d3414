// The fuzz target of lives without libFuzzer: random bytes from a few seeds, for every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// KVS_LIVES=100000 runs more, KVS_SEED others; a failure prints the seed's number and stops.
std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(RandomLives, MatchPlainVectors) {
  const std::uint64_t first = FromEnvironment("KVS_SEED", 1);
  const std::uint64_t lives = FromEnvironment("KVS_LIVES", 160);
  for (std::uint64_t seed = first; seed < first + lives; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(16 + random() % 150);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    bytes[0] = static_cast<std::uint8_t>(seed);  // every pipeline
    std::fprintf(stderr, "\rlife %llu ", static_cast<unsigned long long>(seed));
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::fprintf(stderr, "\n");
}

}  // namespace
