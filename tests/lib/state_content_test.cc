// States with right checksums that no cache can have written: each is refused by the name of what
// is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/saved_state.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::state_test {
namespace {

using cache_test::MakeLayer;

// A state of one layer and head, and how it is made up: every field out of its range.
TEST(StateContent, WhatIsOutOfRangeIsNamed) {
  Life life;
  life.spec = "none | kv=int8 | tail=2";
  life.layers = {MakeLayer(1, 1, 16, 16)};
  Cache cache = life.Empty();
  life.Step(cache, Phase::kPrefill, 0, 5);
  life.Step(cache, Phase::kPrefill, 8, 5);  // positions 0..4, 8..12
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Bytes state = Saved(cache);
  MemorySource source(state);
  const auto section_bytes = static_cast<std::size_t>(ReadStateInfo(source)->layers[0].bytes);
  const std::size_t section = state.size() - section_bytes - 8;
  // Offsets in the section; docs/state.md has the layout. Progress 40, note 4, runs 8 + 2 * 8,
  // queries 8; then the sinks, which are empty, 24; the tier; the tail.
  const std::size_t runs = 44;
  const std::size_t tier = runs + 24 + 8 + 24;
  const std::size_t positions = tier + 16;
  const auto with = [&](std::size_t at, auto value) {
    Bytes changed = state;
    std::memcpy(changed.data() + section + at, &value, sizeof value);
    Sign(changed);
    return changed;
  };
  const auto expect = [&](std::size_t at, auto value, const std::vector<std::string>& parts) {
    std::vector<std::string> all = parts;
    all.emplace_back("layer 0");
    ExpectRefused(with(at, value), cache, all);
  };
  using I64 = std::int64_t;
  using I32 = std::int32_t;
  using U32 = std::uint32_t;
  using U8 = std::uint8_t;
  expect(0, I64{-1}, {"counts"});
  expect(8, I64{9}, {"lifetime_tokens", "9", "10"});
  expect(24, I32{-1}, {"next_position"});
  expect(24, I32{12}, {"next_position 12"});
  expect(28, I32{14}, {"sinks_end", "14", "13"});
  expect(32, I32{14}, {"exact_from", "14", "13"});
  expect(36, U8{2}, {"typed"});
  expect(36, U8{0}, {"element types"});
  expect(37, U8{3}, {"element types"});
  expect(39, U8{2}, {"evicted"});
  expect(40, U32{0xFFFFFFFF}, {"note"});
  expect(runs, I64{1} << 60, {"tokens seen"});
  expect(runs + 8, I32{5}, {"tokens seen", "5 to 4"});
  expect(runs + 16, I32{5}, {"tokens seen", "5 to 12"});  // would be part of the run before
  expect(runs + 24, I64{1}, {"queries", "at most 0"});
  expect(tier, I64{-1}, {"head 0", "tier 0", "saturated"});
  expect(tier + 8, U32{1}, {"head 0", "tier 0", "statistics", "expected 0"});
  expect(tier + 12, U32{0xFFFFFFFF}, {"head 0", "tier 0", "blocks"});
  expect(tier + 12, U32{0}, {"head 0", "tier 0", "slots"});
  expect(positions, I64{1} << 40, {"tier 0", "positions"});
  expect(positions + 8, I32{-1}, {"tier 0", "positions"});
  expect(positions + 8, I32{11}, {"tier 0", "positions"});
  expect(positions + 16, I32{7}, {"tier 0", "positions"});
  expect(positions + 20, U32{4}, {"tier 0", "positions", "form"});
  expect(positions + 20, U32{3 | 31 << 16}, {"tier 0", "positions", "form"});
  expect(positions + 24, U8{0x7F}, {"tier 0", "positions", "high bits"});
}

// A section of the state of some rows, with one number changed.
Bytes Changed(const Bytes& state, std::size_t at, std::uint64_t number, std::size_t bytes) {
  MemorySource source(state);
  const auto section = static_cast<std::size_t>(ReadStateInfo(source)->layers[0].bytes) + 8;
  Bytes changed = state;
  std::memcpy(changed.data() + state.size() - section + at, &number, bytes);
  Sign(changed);
  return changed;
}

TEST(StateContent, RowsThatCannotBeAreNamed) {
  Life life;
  life.layers = {MakeLayer(1, 1, 16, 16)};
  life.spec = "none | kv=int8 | tail=2";
  Cache cache = life.Empty();
  life.Step(cache, Phase::kPrefill, 0, 5);
  life.Step(cache, Phase::kPrefill, 8, 5);  // encoded 0..4, 8..10, exact 11, 12
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Bytes state = Saved(cache);
  MemorySource source(state);
  const auto end = static_cast<std::size_t>(ReadStateInfo(source)->layers[0].bytes);
  // Without low bits: bit `position + row`. Row 5 at 5 instead of 8, which is bit 10, not 13.
  const std::size_t split = 44 + 24 + 8 + 24 + 16 + 24;
  ExpectRefused(Changed(state, split, 0x028555, 3), cache, {"head 0", "not seen"});
  const std::size_t tail = end - 24 - 2 * 2 * 16 * 4;
  const std::uint64_t from_10_to_11 = 10 | std::uint64_t{11} << 32;
  ExpectRefused(Changed(state, tail + 8, from_10_to_11, 8), cache, {"10 of row 8", "after 10"});
  ExpectRefused(Changed(state, end - 4, 0x7FC00000, 4), cache, {"tail", "values", "NaN"});

  life.spec = "none | kv=int8";
  life.prompt_rows = 100;
  const Bytes blocks = Saved(life.At(Stage::kFinished));  // of 64 and 36 rows
  Cache other = life.Empty();
  const std::size_t slots = 44 + 16 + 8 + 24 + 16 + 24;
  const Bytes first = Changed(blocks, slots, ~std::uint64_t{0} >> 1, 8);
  ExpectRefused(Changed(first, slots + 8, (std::uint64_t{1} << 37) - 1, 8), other,
                {"tier 0", "slots", "block 0"});
}

// Rows at 0, 100 and 300 have 4 low bits: high bits 0, 6 + 1 and 18 + 2 in 4 bytes, then 0, 4, 12.
TEST(StateContent, SplitPositionsThatCannotBeAreNamed) {
  Life life;
  life.layers = {MakeLayer(1, 1, 16, 16)};
  life.spec = "none | kv=int8";
  Cache cache = life.Empty();
  for (const std::int64_t position : {0, 100, 300}) {
    life.Step(cache, Phase::kPrefill, position, 1);
  }
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Bytes state = Saved(cache);
  const std::size_t split = 44 + 32 + 8 + 24 + 16 + 24;
  const auto expect = [&](std::uint64_t bits, const std::string& part) {
    ExpectRefused(Changed(state, split, bits, 6), cache, {"tier 0", "positions", part});
  };
  ASSERT_EQ(Changed(state, split, 0x0C40'00100081, 6), state);
  expect(0x0C40'00100083, "high bits of 4 rows");
  expect(0x0C40'00100082, "high bits of 3 rows");
  expect(0x0C40'00200081, "the last at 21");
  expect(0xFC40'00100081, "low bits of no row");
  expect(0x0B40'00100081, "end at 299, expected 300");
  expect(0x0C41'00100081, "1 of row 0");
  expect(0x0C00'00100003, "0 of row 1 does not follow 0");
  ExpectRefused(Changed(state, split - 8, 1, 4), cache, {"tier 0", "a split from 1"});
  ExpectRefused(Changed(state, split - 4, 0x4'0002, 4), cache,
                {"tier 0", "low bits without split"});
}

TEST(StateContent, BitmapsAndListsThatCannotBeAreNamed) {
  Life life;
  life.layers = {MakeLayer(1, 1, 16, 16)};
  life.spec = "none | kv=int8";
  Cache cache = life.Empty();
  life.Step(cache, Phase::kPrefill, 0, 40);
  life.Step(cache, Phase::kPrefill, 42, 20);
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const Bytes dense = Saved(cache);
  const std::size_t bitmap = 44 + 24 + 8 + 24 + 16 + 24;
  ASSERT_EQ(Changed(dense, bitmap + 5, 0xFC, 1), dense);
  ExpectRefused(Changed(dense, bitmap + 5, 0xFE, 1), cache, {"tier 0", "a bitmap of 61 rows"});
  ExpectRefused(Changed(dense, bitmap + 5, 0xFA, 1), cache, {"head 0", "not seen"});  // 41, not 42

  Cache sparse = life.Empty();
  for (const std::int64_t position : {0, 1000000000, 2000000000}) {
    life.Step(sparse, Phase::kPrefill, position, 1);
  }
  ASSERT_TRUE(sparse.FinishPrefill().ok());
  const std::size_t list = 44 + 32 + 8 + 24 + 16 + 24;
  ExpectRefused(Changed(Saved(sparse), list + 4, 2100000000, 4), cache,
                {"tier 0", "positions", "2000000000 of row 2", "2100000000"});
  ExpectRefused(Changed(Saved(sparse), list + 8, 2000000001, 4), cache,
                {"tier 0", "a list from 0 to 2000000001, expected 0 to 2000000000"});
  ExpectRefused(Changed(Saved(sparse), list, 1, 4), cache,
                {"tier 0", "a list from 1 to 2000000000, expected 0 to 2000000000"});
}

// Sinks 0..3 exact, then a tier of 36 rows with the mean of K.
TEST(StateContent, SinksAndStatisticsThatCannotBeAreNamed) {
  Life life;
  life.layers = {MakeLayer(1, 1, 16, 16)};
  life.spec = "none | k=center+int8, v=int8 | exact_sinks=4";
  life.prompt_rows = 40;
  const Bytes state = Saved(life.At(Stage::kFinished));
  Cache cache = life.Empty();
  const std::size_t sinks_end = 28;
  ASSERT_EQ(Changed(state, sinks_end, 4, 4), state);
  ExpectRefused(Changed(state, sinks_end, 3, 4), cache,
                {"layer 0", "head 0", "sinks", "end at position 3, past 3"});
  const std::size_t tier = 44 + 16 + 8 + 24 + 4 * 2 * 16 * 4;
  const std::uint32_t infinity = 0x7F800000;
  for (const std::size_t number : {0, 15}) {
    ExpectRefused(Changed(state, tier + 16 + number * 4, infinity, 4), cache,
                  {"layer 0", "head 0", "tier 0", "statistics", "NaN or Inf"});
  }
}

// A tier without statistics is one without rows.
TEST(StateContent, StatisticsThatAreMissingAreNamed) {
  Life life;
  life.layers = {MakeLayer(1, 1, 16, 16)};
  life.spec = "random(budget=100%) | kv=int8 | cold(20)={k=center+int4, v=int4} | exact_sinks=0";
  life.prompt_rows = 40;
  const Bytes state = Saved(life.At(Stage::kFinished));
  Cache cache = life.Empty();
  // Tier 1: none saturated, the 16 numbers that follow, one block.
  const std::uint32_t record[] = {0, 0, 16, 1};
  const auto found = std::ranges::search(state, std::as_bytes(std::span(record))).begin();
  ASSERT_NE(found, state.end());
  const auto floats = static_cast<std::size_t>(found - state.begin()) + 8;
  MemorySource source(state);
  const std::int64_t section = ReadStateInfo(source)->layers[0].bytes;
  const std::size_t begin = state.size() - static_cast<std::size_t>(section) - 8;
  ExpectRefused(Changed(state, floats - begin, 17, 4), cache,
                {"tier 1", "statistics", "17 numbers, expected 16"});
  Bytes without = state;
  const auto behind = without.begin() + static_cast<std::ptrdiff_t>(floats) + 8;
  without.erase(behind, behind + 16 * 4);
  without[floats] = std::byte{0};
  const std::int64_t lengths[] = {section, section - 16 * 4};
  const auto bytes = std::as_bytes(std::span(lengths));
  const auto length = std::ranges::search(without, bytes.first(8)).begin();
  ASSERT_NE(length, without.end());
  std::ranges::copy(bytes.last(8), length);
  Sign(without);
  ExpectRefused(without, cache, {"layer 0", "head 0", "tier 1", "statistics", "missing"});
}

// V would be read past the end of its row.
TEST(StateContent, VThatLiesInKHasItsType) {
  Life life;
  life.spec = "none | kv=int8 | tail=2";
  life.layers = {MakeLayer(1, 1, 16, 16)};
  life.layers[0].value_is_key_prefix = true;
  life.type = ElementType::kF16;
  life.prompt_rows = 20;
  Bytes state = Saved(life.At(Stage::kFinished));
  Cache cache = life.Empty();
  MemorySource source(state);
  const std::int64_t section = ReadStateInfo(source)->layers[0].bytes + 8;
  state[static_cast<std::size_t>(std::ssize(state) - section) + 38] = std::byte{0};  // f32
  Sign(state);
  ExpectRefused(state, cache, {"layer 0", "element types", "V lies in K"});
}

}  // namespace
}  // namespace kvsieve::state_test
