// A fuzz target without libFuzzer: random bytes from a few seeds, for every build.
#include <gtest/gtest.h>
#include <unistd.h>

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

// What is wrong ends the process; the last number on stderr is the seed, or of a run that nobody
// watches one that is at most 999 before it.
TEST(RandomBytes, AreTakenWell) {
  const std::uint64_t first = FromEnvironment("KVS_SEED", 1);
  const std::uint64_t runs = FromEnvironment("KVS_RUNS", KVS_DEFAULT_RUNS);
  const bool watched = isatty(STDERR_FILENO) == 1;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> bytes(16 + random() % 150);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    bytes[0] = static_cast<std::uint8_t>(seed);  // lives: every pipeline
    if (watched || (seed - first) % 1000 == 0) {
      std::fprintf(stderr, watched ? "\r%llu " : "%llu\n", static_cast<unsigned long long>(seed));
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  if (watched) std::fprintf(stderr, "\n");
}

}  // namespace
