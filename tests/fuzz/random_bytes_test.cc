// A fuzz target without libFuzzer: random bytes from a few seeds, for every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// KVS_RUNS=100000 runs more, KVS_SEED others.
std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// What is wrong ends the process; the last number on stderr is the seed.
TEST(RandomBytes, AreTakenWell) {
  const std::uint64_t first = FromEnvironment("KVS_SEED", 1);
  const std::uint64_t runs = FromEnvironment("KVS_RUNS", KVS_DEFAULT_RUNS);
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(16 + random() % 150);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    bytes[0] = static_cast<std::uint8_t>(seed);  // lives: every pipeline
    std::fprintf(stderr, "\r%llu ", static_cast<unsigned long long>(seed));
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::fprintf(stderr, "\n");
}

}  // namespace
