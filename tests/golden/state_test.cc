// Saved states of every format there was, in files that never change: this build still loads them,
// to the caches that they were made from, and still writes the newest format byte for byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvsieve/saved_state.h"
#include "kvsieve/str_cat.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {
namespace {

struct Golden {
  const char* name;
  const char* spec;
  Stage stage;
  std::vector<LayerSpec> layers;
  ElementType type;
  int since = 1;  // the oldest version whose files hold this cache
};

// No row is chosen by a sum of floats, which may differ between instruction sets in the last bits.
std::vector<Golden> Goldens() {
  LayerSpec sliding = cache_test::MakeLayer(2, 1, 16, 16);
  sliding.sliding_window = 24;
  sliding.layer = 3;
  LayerSpec latent = cache_test::MakeLayer(2, 1, 24, 16);
  latent.value_is_key_prefix = true;
  return {{"latent", "none | kv=int8 | tail=4", Stage::kFinished, {latent}, ElementType::kF16},
          {"tiers",
           "random(budget=40) | kv=int8 | cold(16)={k=center+turbo2, v=int4}",
           Stage::kFinished,
           {cache_test::MakeLayer(2, 1, 16, 16)},
           ElementType::kF32},
          {"means",
           "random(budget=40) | k=center+int8, v=center+int4 | cold(12)={k=center+turbo3, v=int4} "
           "| cold(8)={k=center+int4, v=center+turbo2} | exact_sinks=2",
           Stage::kFinished,
           {cache_test::MakeLayer(2, 2, 16, 16)},
           ElementType::kF32,
           3},
          {"stored",
           "random(budget=40) | k=center+turbo3, v=int4 | exact_sinks=2, tail=4",
           Stage::kFinished,
           {cache_test::MakeLayer(2, 2, 16, 24), sliding},
           ElementType::kF16},
          {"prompt",
           "snapkv(budget=64,window=4,recent=2,sinks=1) | kv=int8",
           Stage::kPrompt,
           {cache_test::MakeLayer(2, 1, 16, 16)},
           ElementType::kBF16},
          {"groups",
           "random(budget=48,select=block:16) | k=channel(bits=2,group=16), v=q8_0 | "
           "schedule=every(16)",
           Stage::kTrimmed,
           {cache_test::MakeLayer(2, 1, 32, 32)},
           ElementType::kF32}};
}

std::string PathOf(const Golden& golden, int version) {
  return StrCat(KVS_SOURCE_DIR, "/tests/golden/state/v", version, "_", golden.name, ".kvs");
}

Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TEST(GoldenStates, LoadAndAreStillWritten) {
  const char* write = std::getenv("KVS_WRITE_GOLDEN_STATES");
  for (const Golden& golden : Goldens()) {
    SCOPED_TRACE(golden.name);
    Life life;
    life.spec = golden.spec;
    life.layers = golden.layers;
    life.type = golden.type;
    life.prompt_rows = 60;
    const Cache cache = life.At(golden.stage);
    const Bytes state = Saved(cache, "golden");
    const std::string path = PathOf(golden, kStateVersion);
    if (write != nullptr) {
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(state.data()), std::ssize(state));
    }
    EXPECT_TRUE(state == ReadFile(path)) << "the format changed: it takes a new version";
    for (int version = golden.since; version <= kStateVersion; ++version) {
      const Bytes stored = ReadFile(PathOf(golden, version));
      MemorySource source(stored);
      const Result<Cache> loaded = Cache::FromState(source, "golden", {});
      ASSERT_TRUE(loaded.ok()) << "version " << version << ": " << loaded.message();
      ExpectSame(*loaded, cache);
    }
  }
}

}  // namespace
}  // namespace kvsieve::state_test
