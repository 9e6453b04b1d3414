// Cases from the field about saving and restoring: faults of other systems, restated.
#include <gtest/gtest.h>
#include <unistd.h>

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

using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::StateOf;
using cache_test::WithReserve;

Cache MustLoad(const Bytes& state, const CacheOptions& options = {}) {
  MemorySource source(state);
  Result<Cache> cache = Cache::FromState(source, std::nullopt, options);
  EXPECT_TRUE(cache.ok()) << cache.message();
  return *std::move(cache);
}

// Bytes of a row at dim 128, K or V: codes and scales.
//   f16 2 * 128; int8 128 + 2; q8_0 4 * 34; q4_0 4 * 18; int4 64 + 4 * 4; turbo4 64 + 2
// A saved row takes these, each 64 rows 8 more for their slots, and the rest does not depend on
// the number of rows. So a compressed cache is as small on disk as in memory, and says that it is
// not what came.
TEST(Cases, U74_AFileIsAsLargeAsItsFormatAndSaysWhatIsLost) {
  struct Format {
    const char* codec;
    std::int64_t row_bytes;
    bool lossy;
  };
  LayerSpec layer = MakeLayer(4, 2, 128, 128);
  const auto saved = [&](const char* codec, std::int64_t rows) {
    Life life;
    life.spec = StrCat("none | kv=", codec, " | exact_sinks=0");
    life.layers = {layer, layer};
    life.type = ElementType::kF16;
    life.prompt_rows = rows;
    return Saved(life.At(Stage::kFinished));
  };
  for (const Format& format : std::vector<Format>{{"f16", 256, false},
                                                  {"int8", 130, true},
                                                  {"q8_0", 136, true},
                                                  {"q4_0", 72, true},
                                                  {"int4", 80, true},
                                                  {"turbo4", 66, true}}) {
    SCOPED_TRACE(format.codec);
    const Bytes small = saved(format.codec, 64);
    const Bytes large = saved(format.codec, 1024);
    const std::int64_t rows_more = 960 * 2 * 2;  // layers, heads
    const std::int64_t slots_more = rows_more / 64 * 8;
    EXPECT_EQ(std::ssize(large) - std::ssize(small), rows_more * 2 * format.row_bytes + slots_more);
    EXPECT_LT(std::ssize(small), 64 * 2 * 2 * 2 * format.row_bytes + 1200);
    MemorySource source(large);
    EXPECT_EQ(ReadStateInfo(source)->lossy(), format.lossy);
  }
}

// Runs itself once more: the second process loads the state, attends and leaves the outputs.
TEST(Cases, U86_ARestoredCacheGoesOnInAnotherProcess) {
  Life life;
  life.spec = "snapkv(budget=80,window=16) | k=center+turbo4, v=int4 | tail=10";
  life.prompt_rows = 300;
  const auto step_and_attend = [&](Cache& cache) {
    life.Step(cache, Phase::kDecode, cache.next_position(), 1);
    const std::vector<float> queries = cache_test::UniformRows(4 * 32, 7);
    const cache_test::Attended attended =
        cache_test::MustAttend(cache, 0, queries, cache_test::Positions(cache.next_position(), 1));
    std::string bytes(attended.out.size() * 4, '\0');
    std::memcpy(bytes.data(), attended.out.data(), bytes.size());
    return bytes + StateOf(cache, WithReserve::kNo);
  };
  const auto read = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  constexpr const char* kRole = "KVS_U86_STATE";
  if (const char* path = std::getenv(kRole)) {  // the second process
    const std::string text = read(path);
    Bytes state(text.size());
    std::memcpy(state.data(), text.data(), text.size());
    Cache cache = MustLoad(state);
    std::ofstream(std::string(path) + ".out", std::ios::binary) << step_and_attend(cache);
    return;
  }
  Cache cache = life.At(Stage::kFinished);
  const Bytes state = Saved(cache);
  const std::string path = testing::TempDir() + "/kvs_u86.kvs";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(state.data()), std::ssize(state));
  setenv(kRole, path.c_str(), 1);
  const std::string again = StrCat("/proc/", getpid(), "/exe --gtest_filter=Cases.U86_*");
  const int code = std::system((again + " >/dev/null").c_str());
  unsetenv(kRole);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(read(path + ".out"), step_and_attend(cache));
  std::remove(path.c_str());
  std::remove((path + ".out").c_str());
}

TEST(Cases, U87_AnEmptyCacheIsSavedAndRestored) {
  for (const char* spec : {"none | kv=f16", "snapkv(budget=80) | k=center+turbo4, v=int4 | tail=9",
                           "recency(budget=9) | kv=channel(bits=2,group=16)"}) {
    Life life;
    life.spec = spec;
    for (const bool finished : {false, true}) {
      Cache cache = life.Empty();
      if (finished) {
        ASSERT_TRUE(cache.FinishPrefill().ok());
      }
      Cache restored = life.At(Stage::kDecoded);
      ASSERT_TRUE(LoadBytes(Saved(cache), restored).ok());
      EXPECT_EQ(restored.rows(0, 0), 0);
      EXPECT_EQ(restored.Report().kept_bytes(), cache.Report().kept_bytes());
      ExpectSame(restored, cache);
    }
  }
}

TEST(Cases, U88_ALayerThatIsMissingIsRefused) {
  Life life;
  life.spec = "none | kv=int8";
  life.layers.assign(32, MakeLayer(1, 1, 16, 16));
  life.prompt_rows = 20;
  const Bytes state = Saved(life.At(Stage::kFinished));
  Cache cache = life.Empty();
  const std::string before = StateOf(cache);
  const auto expect_refused = [&](const Bytes& bytes, std::string_view what) {
    const Status status = LoadBytes(bytes, cache);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(StateOf(cache), before);
  };
  MemorySource source(state);
  const std::int64_t section = ReadStateInfo(source)->layers.back().bytes + 8;
  expect_refused(Bytes(state.begin(), state.end() - section),
                 "31 of 32 layers");  // the record went
  life.layers.pop_back();
  expect_refused(Saved(life.At(Stage::kFinished)),
                 "saved with 31, this cache has 32");  // it was never written
}

TEST(Cases, U89_TheStateOfAnotherModelOrPipelineIsRefused) {
  Life life;
  life.spec = "none | k=q8_0, v=f16";
  const Bytes state = Saved(life.At(Stage::kFinished), "llama 7b, build 12");
  const auto refused_with = [&](Cache cache, std::string_view identity,
                                const std::vector<std::string>& parts) {
    const std::string before = StateOf(cache);
    const Status status = LoadBytes(state, cache, identity);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    EXPECT_EQ(StateOf(cache), before);
  };
  refused_with(life.Empty(), "llama 7b, build 13", {"identity", "build 12", "build 13"});
  refused_with(life.Empty(), "", {"identity", "build 12", "''"});
  MemorySource forced(state);
  EXPECT_TRUE(Cache::FromState(forced, std::nullopt, {}).ok());

  const auto other = [&](const auto& change) {
    Life changed = life;
    change(changed);
    return changed.At(Stage::kFinished);
  };
  refused_with(other([](Life& l) { l.spec = "none | k=q4_0, v=f16"; }), "llama 7b, build 12",
               {"spec", "q8_0", "q4_0"});
  refused_with(other([](Life& l) { l.spec += " | tail=4"; }), "llama 7b, build 12",
               {"spec", "tail=4"});
  refused_with(other([](Life& l) { l.layers[0].scale *= 2; }), "llama 7b, build 12",
               {"shape", "scale"});
  refused_with(other([](Life& l) { l.layers[0] = MakeLayer(4, 2, 64, 32); }), "llama 7b, build 12",
               {"shape", "32/32", "64/32"});
  refused_with(other([](Life& l) { l.layers.push_back(l.layers[0]); }), "llama 7b, build 12",
               {"saved with 1, this cache has 2"});
  refused_with(other([](Life& l) { l.options.decode_rows = DecodeRows::kExact; }),
               "llama 7b, build 12", {"decode_rows", "stored", "exact"});
}

TEST(Cases, U89_AnIdentityIsOneLineOfText) {
  const Cache cache = Life{.spec = "none"}.At(Stage::kFinished);
  for (const std::string& identity :
       {std::string("two\nlines"), std::string("\x7F"), std::string(100000, 'x')}) {
    MemorySink sink;
    const Status status = cache.Save(identity, sink);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("identity"), std::string::npos) << status.message();
    EXPECT_TRUE(sink.bytes().empty());
  }
}

// Ten times: save, load, take 5 tokens back, append 5. Old rows are never encoded again.
TEST(Cases, U30_CyclesOfSaveTrimAndAppendKeepOldRows) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = cache_test::MustCreate("none | kv=q4_0", {layer});
  cache_test::MustAppend(cache, 0, MakePrompt(layer, 100, 1));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const oracle::HeadRows before = cache_test::GatherHead(cache, 0, 1);
  for (std::uint64_t cycle = 0; cycle < 10; ++cycle) {
    Cache restored = MustLoad(Saved(cache));
    ASSERT_TRUE(restored.TrimToPosition(95).ok());
    cache_test::MustAppend(restored, 0, MakePrompt(layer, 5, 20 + cycle, 95), 0, Phase::kDecode);
    cache = std::move(restored);
  }
  const oracle::HeadRows after = cache_test::GatherHead(cache, 0, 1);
  ASSERT_EQ(after.rows(), 100);
  for (std::size_t i = 0; i < 95 * 64; ++i) {
    ASSERT_EQ(after.keys[i], before.keys[i]);
    ASSERT_EQ(after.values[i], before.values[i]);
  }
}

// A prefix that was saved, then a second turn: as a run that never stopped, where nothing was
// evicted; where rows were, the cache says from where on it is exact.
TEST(Cases, U29_ASecondTurnOverASavedPrefixIsTheUninterruptedRun) {
  for (const bool evicts : {false, true}) {
    Life life;
    life.spec = evicts ? "snapkv(budget=200,window=16) | kv=int8" : "none | kv=int8";
    life.prompt_rows = 1000;
    Cache cold = life.At(Stage::kFinished);
    life.Step(cold, Phase::kDecode, 1000, 50);
    Cache reused = MustLoad(Saved(cold));
    EXPECT_EQ(reused.oldest_exact_position(), evicts ? 1000 : 0);
    for (Cache* cache : {&cold, &reused}) life.Step(*cache, Phase::kDecode, 1050, 100);
    ExpectSame(reused, cold);
  }
}

// A compressed snapshot is as good as another: bytes are counted, and no layer quietly stays as it
// was.
TEST(Cases, U31_ACompressedSnapshotIsRestoredAsItWasStored) {
  Life life;
  life.spec = "snapkv(budget=80,window=16) | kv=q4_0 | layers(0..0)={kv=int8}";
  life.layers.assign(3, MakeLayer(4, 2, 64, 64));
  const Cache cache = life.At(Stage::kDecoded);
  const Cache restored = MustLoad(Saved(cache));
  EXPECT_GT(restored.Report().kept_bytes(), 0);
  for (int i = 0; i < 3; ++i) {
    const LayerReport report = restored.ReportLayer(i);
    EXPECT_EQ(report.applied, cache.ReportLayer(i).applied);
    EXPECT_EQ(report.applied, report.requested);
    EXPECT_NE(report.applied.find(i == 0 ? "int8" : "q4_0"), std::string::npos);
    EXPECT_EQ(report.bytes.payload_bytes, cache.ReportLayer(i).bytes.payload_bytes);
  }
}

}  // namespace
}  // namespace kvsieve::state_test
