// Caches with something of everything, saved and loaded.
#ifndef KVSIEVE_TESTS_LIB_STATE_FIXTURE_H_
#define KVSIEVE_TESTS_LIB_STATE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/lib/cache_fixture.h"
#include "tests/lib/state_bytes.h"

namespace kvsieve::state_test {

// How far a cache has come.
enum class Stage : std::uint8_t { kEmpty, kPrompt, kFinished, kDecoded, kTrimmed };
inline constexpr Stage kStages[] = {Stage::kEmpty, Stage::kPrompt, Stage::kFinished,
                                    Stage::kDecoded, Stage::kTrimmed};

// A cache and the calls that it goes through, the same for all caches with this spec and layers.
struct Life {
  std::string spec;
  std::vector<LayerSpec> layers = {cache_test::MakeLayer(4, 2, 32, 32)};
  CacheOptions options = {};
  ElementType type = ElementType::kF32;
  std::int64_t prompt_rows = 200;

  Cache Empty() const { return cache_test::MustCreate(spec, layers, options); }
  // Tokens [first, first + count) of every layer, observed and, if the schedule says so, evicted.
  void Step(Cache& cache, Phase phase, std::int64_t first, std::int64_t count) const;
  Cache At(Stage stage) const;
  // What can still come: the rest of the prompt, and decoding with evictions and a trim.
  void GoOn(Cache& cache, Stage stage) const;
};

Bytes Saved(const Cache& cache, std::string_view identity = "test");
Status LoadBytes(const Bytes& state, Cache& cache, std::string_view identity = "test");

// All that calls can tell, but for room that is reserved: rows, reports, attention bit by bit, and
// what saving writes.
void ExpectSame(const Cache& loaded, const Cache& cache);

// Loading fails with one line that names all `parts`, and leaves the cache as it was.
void ExpectRefused(const Bytes& state, Cache& cache, const std::vector<std::string>& parts = {});

}  // namespace kvsieve::state_test

#endif  // KVSIEVE_TESTS_LIB_STATE_FIXTURE_H_
