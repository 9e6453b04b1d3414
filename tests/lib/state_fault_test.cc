// States that were cut, damaged or made up, sinks and sources that fail, memory that is refused:
// an error that names what is wrong, and a cache that is as it was.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/saved_state.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::MakeLayer;
using cache_test::StateOf;
using cache_test::TestAllocator;

// Small, with sinks, tail, statistics, a gap, an evicted layer and a note.
Life SmallLife() {
  Life life;
  life.spec = "recency(budget=12) | k=center+turbo2, v=int4 | exact_sinks=2, tail=3";
  life.layers = {MakeLayer(2, 2, 16, 16), MakeLayer(1, 1, 16, 16)};
  life.prompt_rows = 40;
  return life;
}

// The same with an unfinished prompt and queries.
Life SmallPrompt() {
  Life life = SmallLife();
  life.spec = "snapkv(budget=14,window=4,recent=2,sinks=1) | kv=int8 | schedule=per_chunk";
  return life;
}

struct Small {
  Life life;
  Cache cache;
};
std::vector<Small> Smalls() {
  std::vector<Small> smalls;
  smalls.push_back({SmallLife(), SmallLife().At(Stage::kFinished)});
  smalls[0].life.Step(smalls[0].cache, Phase::kDecode, 43, 6);
  smalls.push_back({SmallPrompt(), SmallPrompt().At(Stage::kPrompt)});
  return smalls;
}

TEST(StateFaults, AFlippedBitInAnyByteIsFound) {
  for (const Small& small : Smalls()) {
    const Bytes state = Saved(small.cache);
    ASSERT_LT(state.size(), 6000U);
    Cache cache = small.life.At(Stage::kFinished);
    for (std::size_t at = 0; at < state.size(); ++at) {
      Bytes damaged = state;
      damaged[at] ^= std::byte{1} << (at % 8);
      ExpectRefused(damaged, cache);
      if (HasFatalFailure()) FAIL() << "byte " << at;
    }
    ASSERT_TRUE(LoadBytes(state, cache).ok());
  }
}

TEST(StateFaults, AnEndThatIsMissingIsFoundAtEveryLength) {
  for (const Small& small : Smalls()) {
    const Bytes state = Saved(small.cache);
    Cache cache = small.life.At(Stage::kFinished);
    for (std::size_t length = 0; length < state.size(); ++length) {
      ExpectRefused(Bytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(length)),
                    cache);
      if (HasFatalFailure()) FAIL() << "length " << length;
    }
    Bytes longer = state;
    longer.push_back(std::byte{0});
    ExpectRefused(longer, cache, {"1 bytes follow"});
  }
}

// Behind right checksums anything may stand: what is not refused is a state that could have been
// saved, byte for byte, and can be used.
TEST(StateFaults, AnyByteMayChangeBehindRightChecksums) {
  for (const Small& small : Smalls()) {
    const Bytes state = Saved(small.cache);
    Cache cache = small.life.At(Stage::kFinished);
    int taken = 0;
    for (std::size_t at = 16; at < state.size(); ++at) {
      for (const std::uint8_t bits : {0x01, 0x80, 0xFF}) {
        Bytes changed = state;
        changed[at] ^= std::byte{bits};
        Sign(changed);
        if (!LoadBytes(changed, cache).ok()) continue;
        ++taken;
        ASSERT_TRUE(Saved(cache) == changed) << "byte " << at;
        for (int i = 0; i < cache.layers(); ++i) {
          const LayerSpec& layer = cache.layer(i);
          const std::vector<float> query(
              static_cast<std::size_t>(layer.query_heads * layer.key_dim), 0.5F);
          cache_test::MustAttend(cache, i, query, cache_test::Positions(150, 1));
        }
      }
    }
    // Codes, scales and exact rows are free: most of the bytes.
    EXPECT_GT(taken, std::ssize(state));
  }
}

TEST(StateFaults, ASectionOfAnotherStateOrLayerDoesNotFit) {
  Life life = SmallLife();
  life.layers[1] = life.layers[0];  // sections of one length
  const Bytes state = Saved(life.At(Stage::kFinished));
  const Bytes later = Saved(life.At(Stage::kFinished), "other");
  ASSERT_EQ(state.size(), later.size() - 1);  // identities of 4 and 5 bytes
  MemorySource source(state);
  const auto section = static_cast<std::size_t>(ReadStateInfo(source)->layers[0].bytes) + 8;
  Cache cache = life.At(Stage::kDecoded);
  Bytes swapped(state.begin(), state.end() - static_cast<std::ptrdiff_t>(2 * section));
  swapped.insert(swapped.end(), state.end() - static_cast<std::ptrdiff_t>(section), state.end());
  swapped.insert(swapped.end(), state.end() - static_cast<std::ptrdiff_t>(2 * section),
                 state.end() - static_cast<std::ptrdiff_t>(section));
  ExpectRefused(swapped, cache, {"layer 0", "checksum"});
  Bytes mixed = state;
  std::copy_n(later.end() - static_cast<std::ptrdiff_t>(section), section,
              mixed.end() - static_cast<std::ptrdiff_t>(section));
  ExpectRefused(mixed, cache, {"layer 0", "checksum"});
}

TEST(StateFaults, OtherVersionsAreRefusedByName) {
  Life life = SmallLife();
  Bytes state = Saved(life.At(Stage::kFinished));
  Cache cache = life.Empty();
  for (const std::uint32_t version : {0U, 4U, 77U}) {
    std::memcpy(state.data() + 8, &version, sizeof version);
    Sign(state);
    ExpectRefused(state, cache,
                  {"format is " + std::to_string(version), "this build reads 1 to 3"});
    EXPECT_EQ(LoadBytes(state, cache).error().code, ErrorCode::kUnsupported);
  }
}

// Fails at the n-th call, or gives less than it promised.
class FailingStream final : public ByteSink, public ByteSource {
 public:
  explicit FailingStream(int fail_at, const Bytes& bytes = {}) : fail_at_(fail_at), from_(bytes) {}
  Status Write(std::span<const std::byte> bytes) override {
    if (fail_at_-- == 0) return Status(ErrorCode::kIo, "No space left on device");
    return written.Write(bytes);
  }
  std::int64_t bytes_left() const override { return from_.bytes_left(); }
  Status Read(std::span<std::byte> to) override {
    if (fail_at_-- == 0) return Status(ErrorCode::kIo, "Input/output error");
    return from_.Read(to);
  }
  MemorySink written;

 private:
  int fail_at_;
  MemorySource from_;
};

// Blocks and exact rows of more than one piece.
Life LargeLife() {
  Life life;
  life.spec = "none | kv=f16 | tail=200";
  life.layers = {MakeLayer(2, 2, 256, 256), MakeLayer(2, 2, 256, 256)};
  life.prompt_rows = 600;
  return life;
}

TEST(StateFaults, ASinkThatFailsEndsTheSaveWithItsError) {
  const Cache cache = LargeLife().At(Stage::kFinished);
  const std::string before = StateOf(cache);
  int failures = 0;
  for (int n = 0;; ++n) {
    FailingStream stream(n);
    const Status status = cache.Save("test", stream);
    if (status.ok()) {
      EXPECT_TRUE(stream.written.bytes() == Saved(cache));
      break;
    }
    ++failures;
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(status.message(), "No space left on device");
  }
  EXPECT_GT(failures, 10);
  EXPECT_EQ(StateOf(cache), before);
}

TEST(StateFaults, ASourceThatFailsLeavesTheCacheAsItWas) {
  const Life life = LargeLife();
  const Cache cache = life.At(Stage::kFinished);
  const Bytes state = Saved(cache);
  Cache loaded = life.At(Stage::kPrompt);
  const std::string before = StateOf(loaded);
  int failures = 0;
  for (int n = 0;; ++n) {
    FailingStream stream(n, state);
    const Status status = loaded.Load(stream, "test");
    if (status.ok()) break;
    ++failures;
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(status.message(), "Input/output error");
    ASSERT_EQ(StateOf(loaded), before);
  }
  EXPECT_GT(failures, 10);
  ExpectSame(loaded, cache);
}

// A source that ends early although it promised more.
class ShortSource final : public ByteSource {
 public:
  ShortSource(const Bytes& bytes, std::int64_t given) : bytes_(bytes), given_(given) {}
  std::int64_t bytes_left() const override {
    const auto left = static_cast<std::int64_t>(bytes_.size()) - read_;
    return read_ >= given_ ? 0 : left;
  }
  Status Read(std::span<std::byte> to) override {
    std::memcpy(to.data(), bytes_.data() + read_, to.size());
    read_ += static_cast<std::int64_t>(to.size());
    return Status::Ok();
  }

 private:
  const Bytes& bytes_;
  std::int64_t given_;
  std::int64_t read_ = 0;
};

TEST(StateFaults, ASourceThatBreaksItsPromiseIsAnError) {
  const Life life = LargeLife();
  const Bytes state = Saved(life.At(Stage::kFinished));
  Cache cache = life.Empty();
  for (const std::int64_t given : {std::int64_t{1}, std::int64_t{100000}, std::int64_t{700000}}) {
    ShortSource source(state, given);
    const Status status = cache.Load(source, "test");
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo) << status.message();
  }
}

// Memory for rows, at most what the state holds: nothing is taken for what is not there.
TEST(StateFaults, LoadingTakesNoMoreMemoryThanTheStateHolds) {
  for (const Stage stage : kStages) {
    Life life = LargeLife();
    const Bytes state = Saved(life.At(stage));
    TestAllocator allocator;
    life.options.allocator = &allocator;
    Cache cache = life.Empty();
    ASSERT_TRUE(LoadBytes(state, cache).ok());
    EXPECT_EQ(allocator.live_bytes, cache.Report().resident_bytes());
    EXPECT_EQ(allocator.peak_bytes, allocator.live_bytes);
    EXPECT_LE(allocator.peak_bytes, std::ssize(state));
  }
}

TEST(StateFaults, RefusedMemoryLeavesTheCacheAsItWas) {
  for (const Small& small : Smalls()) {
    const Bytes state = Saved(small.cache);
    TestAllocator allocator;
    Life life = small.life;
    life.options.allocator = &allocator;
    Cache loaded = life.At(Stage::kFinished);
    const std::string before = StateOf(loaded);
    const std::int64_t held = allocator.live_bytes;
    int refused = 0;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      allocator.fail_at = n;
      const Status status = LoadBytes(state, loaded);
      allocator.fail_at = -1;
      if (status.ok()) break;
      ++refused;
      EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.message();
      EXPECT_EQ(allocator.live_bytes, held);
      ASSERT_EQ(StateOf(loaded), before);
    }
    EXPECT_GT(refused, 3);
    EXPECT_EQ(allocator.live_bytes, loaded.Report().resident_bytes());
    ExpectSame(loaded, small.cache);
  }
}

}  // namespace
}  // namespace kvsieve::state_test
