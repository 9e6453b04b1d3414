// Cases from the field that concern positions, RoPE and masks: faults of other systems, restated.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

oracle::HeadRows Stored(const Cache& cache) { return GatherHead(cache, 0, 0); }

// A trim counts tokens and leaves rows that are really there.
TEST(Cases, U15_ATrimCountsTokensAndLeavesOnlyRealRows) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  const Prompt prompt = MakePrompt(layer, 21, 1);
  Cache cache = MustCreate("recency(budget=4,sinks=2,recent=2) | kv=f16", {layer});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 20).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  ASSERT_EQ(Stored(cache).positions, (std::vector<TokenPos>{0, 1, 18, 19}));

  // 2 and 4 to 16 are gone for good, which the caller must know or accept.
  EXPECT_EQ(cache.TrimToPosition(17).error().code, ErrorCode::kNotExact);
  Result<std::int64_t> gone = cache.TrimToPosition(17, Trim::kAllowInexact);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ(*gone, 3);
  EXPECT_EQ(Stored(cache).positions, (std::vector<TokenPos>{0, 1}));
  EXPECT_EQ(cache.next_position(), 17);

  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 17, 1).ok());
  const std::vector<TokenPos> position = {17};
  const std::vector<float> queries = UniformRows(2 * 64, 2);
  EXPECT_EQ(Stored(cache).positions, (std::vector<TokenPos>{0, 1, 17}));
  ExpectAttentionNear(MustAttend(cache, 0, queries, position),
                      oracle::Attend(layer, GatherLayer(cache, 0), queries, position), 64, 1e-3,
                      1e-3);

  // More than there is: what there is goes, and the count says so.
  gone = cache.TrimToPosition(cache.next_position() - 100, Trim::kAllowInexact);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ(*gone, 18);
  EXPECT_EQ(cache.rows(0, 0), 0);
  EXPECT_EQ(cache.next_position(), 0);
}

// A mask is as wide as the rows that are held, not as the sequence is long; any other size is an
// error that says both.
TEST(Cases, U16_AMaskIsAsWideAsTheRowsHeld) {
  LayerSpec layer = MakeLayer(2, 1, 64, 64);
  layer.sliding_window = 128;
  const Prompt prompt = MakePrompt(layer, 305, 3);
  Cache cache = MustCreate("none | kv=f16", {layer});
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 300).ok());
  ASSERT_TRUE(cache.FinishPrefill().ok());
  ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 300, 5).ok());
  ASSERT_EQ(cache.rows(0, 0), 133);
  const std::vector<TokenPos> chunk = Positions(300, 5);

  std::vector<std::uint8_t> mask(5 * 133, 7);
  ASSERT_TRUE(cache.Visible(0, 0, chunk, mask).ok());
  const std::vector<TokenPos> held = Stored(cache).positions;
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t r = 0; r < 133; ++r) {
      const bool visible = held[r] <= chunk[i] && held[r] > chunk[i] - 128;
      ASSERT_EQ(mask[i * 133 + r], visible ? 1 : 0) << "query " << chunk[i] << " row " << held[r];
    }
  }

  // What Attend shows is what the mask says: with equal logits, as many rows as it has ones.
  const Attended attended = MustAttend(cache, 0, std::vector<float>(2 * 5 * 64), chunk);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(attended.lse[i], std::log(128.0), 1e-5);

  const std::string before = StateOf(cache);
  for (const std::size_t wrong : {5 * 305, 5 * 300, 5 * 128, 0}) {
    std::vector<std::uint8_t> other(wrong, 7);
    const Status status = cache.Visible(0, 0, chunk, other);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(std::to_string(wrong)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("133 rows take 665"), std::string::npos) << status.message();
    EXPECT_EQ(other, std::vector<std::uint8_t>(wrong, 7));
  }
  EXPECT_FALSE(cache.Visible(0, 1, chunk, mask).ok());
  EXPECT_FALSE(cache.Visible(1, 0, chunk, mask).ok());
  // Queries of another length than their positions.
  const std::vector<float> queries(2 * 133 * 64);
  std::vector<float> out(2 * 133 * 64);
  AttendScratch scratch;
  const Status status = cache.Attend(0, chunk, HeadsView::HeadMajor(queries.data(), 2, 133, 64), {},
                                     scratch, out.data(), nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("[2, 133, 64]"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("[2, 5, 64]"), std::string::npos) << status.message();
  EXPECT_EQ(StateOf(cache), before);
}

// Staged rows, evicted rows, several heads: the rule is that of positions.
TEST(Cases, U16_AMaskFollowsPositionsInEveryState) {
  const LayerSpec layer = MakeLayer(4, 2, 64, 64);
  Cache cache = MustCreate("random(budget=30) | kv=int8 | exact_sinks=4 | tail=5", {layer});
  MustAppend(cache, 0, MakePrompt(layer, 100, 4));
  const std::vector<TokenPos> queries = {0, 50, 99, 120};
  for (const bool finished : {false, true}) {
    if (finished) {
      ASSERT_TRUE(cache.FinishPrefill().ok());
    }
    for (int head = 0; head < 2; ++head) {
      const std::vector<TokenPos> held = GatherHead(cache, 0, head).positions;
      std::vector<std::uint8_t> mask(queries.size() * held.size());
      ASSERT_TRUE(cache.Visible(0, head, queries, mask).ok());
      for (std::size_t i = 0; i < mask.size(); ++i) {
        ASSERT_EQ(mask[i], held[i % held.size()] <= queries[i / held.size()] ? 1 : 0);
      }
    }
  }
}

// A context that is full makes room without renumbering: the oldest rows of any store leave, those
// that stay keep codes and positions. A shift is refused when the pipeline is read, not in a call.
TEST(Cases, U91_OldRowsLeaveAnyStoreWithoutAShift) {
  const LayerSpec layer = MakeLayer(2, 1, 64, 64);
  const Prompt prompt = MakePrompt(layer, 128, 5);
  for (const std::string store : {"f16", "int8", "q8_0", "int4", "q4_0", "turbo4"}) {
    SCOPED_TRACE(store);
    const std::string spec = "recency(budget=64,sinks=4,recent=60) | k=" + store + ", v=int8";
    const Result<Pipeline> shifts = Pipeline::Parse(spec + " | positions=renumber");
    ASSERT_FALSE(shifts.ok());
    EXPECT_EQ(shifts.error().code, ErrorCode::kUnsupported) << shifts.message();

    Cache cache = MustCreate((spec + " | schedule=every(32)").c_str(), {layer});
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kPrefill, prompt, 0, 64).ok());
    ASSERT_TRUE(cache.FinishPrefill().ok());
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, 64, 32).ok());
    const oracle::HeadRows before = Stored(cache);
    ASSERT_EQ(before.positions.size(), 96U);
    ASSERT_TRUE(cache.Evict(0).ok());
    const oracle::HeadRows after = Stored(cache);
    ASSERT_EQ(after.positions.size(), 64U);
    EXPECT_EQ(after.positions[3], 3);
    EXPECT_EQ(after.positions[4], 36);
    EXPECT_EQ(cache.next_position(), 96);
    for (std::size_t r = 0; r < 64; ++r) {
      const std::size_t was = r < 4 ? r : r + 32;
      ASSERT_EQ(after.positions[r], before.positions[was]);
      for (std::size_t j = 0; j < 64; ++j) {
        ASSERT_EQ(after.keys[r * 64 + j], before.keys[was * 64 + j]);
        ASSERT_EQ(after.values[r * 64 + j], before.values[was * 64 + j]);
      }
    }
    const std::vector<TokenPos> position = {95};
    const std::vector<float> queries = UniformRows(2 * 64, 6);
    const std::vector<oracle::HeadRows> rows = GatherLayer(cache, 0);
    ExpectWithinKernelBound(layer, rows, queries, MustAttend(cache, 0, queries, position),
                            oracle::Attend(layer, rows, queries, position),
                            RoundingOf(spec, layer));
  }
}

// Renumbering is refused by name. Keys are never turned again, so nothing drifts, however often
// rows fall out of the middle.
TEST(Cases, U18_KeysKeepTheirRotationAndTheNewestItsPosition) {
  const Result<Pipeline> renumber = Pipeline::Parse("none | kv=f16 | positions=renumber");
  ASSERT_FALSE(renumber.ok());
  EXPECT_EQ(renumber.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(renumber.message().find("positions=renumber is not supported"), std::string::npos)
      << renumber.message();

  const LayerSpec layer = MakeLayer(1, 1, 64, 64);
  Prompt prompt = MakePrompt(layer, 1020, 5);
  prompt.keys = RoundedToF16(prompt.keys);
  Cache cache =
      MustCreate("recency(budget=12,sinks=4,recent=8) | kv=f16 | schedule=every(1)", {layer});
  ASSERT_TRUE(cache.FinishPrefill().ok());
  for (TokenPos token = 0; token < 1020; ++token) {
    ASSERT_TRUE(AppendRows(cache, 0, Phase::kDecode, prompt, token, 1).ok());
    ASSERT_TRUE(cache.Evict(0).ok());
    const oracle::HeadRows rows = Stored(cache);
    ASSERT_EQ(rows.positions.back(), token);
    if (token < 12) continue;
    std::vector<TokenPos> expected = {0, 1, 2, 3};
    for (TokenPos p = token - 7; p <= token; ++p) expected.push_back(p);
    ASSERT_EQ(rows.positions, expected);
    for (std::size_t r = 0; r < rows.positions.size(); ++r) {
      for (std::size_t d = 0; d < 64; ++d) {
        const auto at = static_cast<std::size_t>(rows.positions[r]) * 64 + d;
        ASSERT_EQ(rows.keys[r * 64 + d], prompt.keys[at]) << "token " << token;
      }
    }
  }
}

enum class RopeStyle { kHalfSplit, kInterleaved };

// Turns the first `rotary` dims of one row to `position`, base 10 000.
std::vector<double> Rotated(std::vector<double> row, RopeStyle style, std::size_t rotary,
                            double position) {
  for (std::size_t pair = 0; pair < rotary / 2; ++pair) {
    const double exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(rotary);
    const double angle = position * std::pow(10000.0, -exponent);
    const bool half = style == RopeStyle::kHalfSplit;
    double& x = row[half ? pair : 2 * pair];
    double& y = row[half ? pair + rotary / 2 : 2 * pair + 1];
    const double turned = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = turned;
  }
  return row;
}

// Whatever the style, base and number of rotary dims: keys come back to the bit, and a query meets
// a key at the distance of their own positions, not of their rows. Nothing has to be told.
TEST(Cases, U19_AnyRopeStyleIsKeptAsItCame) {
  constexpr int kDim = 8;
  const LayerSpec layer = MakeLayer(1, 1, kDim, kDim);
  for (const RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
    for (const std::size_t rotary : {8, 4}) {
      Prompt prompt = MakePrompt(layer, 40, 6);
      const std::vector<float> plain = prompt.keys;
      const auto plain_row = [&](TokenPos token) {
        return std::vector<double>(plain.begin() + token * kDim,
                                   plain.begin() + (token + 1) * kDim);
      };
      for (const TokenPos token : prompt.positions) {
        const std::vector<double> turned = Rotated(plain_row(token), style, rotary, token);
        for (int d = 0; d < kDim; ++d) {
          prompt.keys[token * kDim + d] = static_cast<float>(turned[d]);
        }
      }
      // Exact rows: what is left of the prompt is not encoded.
      Cache cache = MustCreate("random(budget=10) | kv=f16 | tail=10", {layer});
      MustAppend(cache, 0, prompt);
      ASSERT_TRUE(cache.FinishPrefill().ok());
      const oracle::HeadRows rows = Stored(cache);
      ASSERT_EQ(rows.rows(), 10);

      const std::vector<double> query(kDim, 0.7);
      double sum = 0.0;
      for (std::size_t r = 0; r < 10; ++r) {
        const TokenPos token = rows.positions[r];
        for (int d = 0; d < kDim; ++d) {
          ASSERT_EQ(rows.keys[r * kDim + d], prompt.keys[token * kDim + d]);
        }
        // Turned by the distance alone: 40 - token, whichever row it is.
        const std::vector<double> met = Rotated(plain_row(token), style, rotary, token - 40.0);
        double dot = 0.0;
        for (int d = 0; d < kDim; ++d) dot += query[d] * met[d];
        sum += std::exp(dot * layer.scale);
      }
      const std::vector<double> turned = Rotated(query, style, rotary, 40);
      const std::vector<float> queries(turned.begin(), turned.end());
      // Eight products of rows and queries rounded to f32: 8 * 2 * 2^-24 * 1.8 * 0.7 < 2e-6.
      EXPECT_NEAR(MustAttend(cache, 0, queries, Positions(40, 1)).lse[0], std::log(sum), 4e-6);
    }
  }
}

// Positions index no table: far out, a cache takes the memory that it takes near zero.
TEST(Cases, U20_FarPositionsCostNothing) {
  constexpr TokenPos kFar = 131072;
  LayerSpec windowed = MakeLayer(2, 1, 64, 64);
  windowed.sliding_window = 1024;
  const LayerSpec plain = MakeLayer(2, 1, 64, 64);
  struct Setup {
    const char* spec;
    const LayerSpec& layer;
  };
  for (const Setup& setup : {Setup{"none | kv=int8", windowed},
                             {"none | kv=f16 | tail=9", plain},
                             {"key_norm(budget=300) | kv=int4", plain}}) {
    SCOPED_TRACE(setup.spec);
    const auto run = [&](TokenPos first) {
      Cache cache = MustCreate(setup.spec, {setup.layer});
      MustAppend(cache, 0, MakePrompt(setup.layer, 1200, 7, first), 500);
      EXPECT_TRUE(cache.FinishPrefill().ok());
      MustAppend(cache, 0, MakePrompt(setup.layer, 200, 8, first + 1200), 1, Phase::kDecode);
      return cache;
    };
    const Cache near = run(0);
    const Cache far = run(kFar - 700);
    EXPECT_EQ(BytesText(far.Report()), BytesText(near.Report()));
    const std::vector<TokenPos> position = {kFar + 699};
    const std::vector<float> queries = UniformRows(2 * 64, 9);
    const std::vector<oracle::HeadRows> heads = GatherLayer(far, 0);
    EXPECT_EQ(heads[0].positions.back(), kFar + 699);
    ExpectWithinKernelBound(setup.layer, heads, queries, MustAttend(far, 0, queries, position),
                            oracle::Attend(setup.layer, heads, queries, position));
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(far.rows(0, 0)));
    EXPECT_TRUE(far.Visible(0, 0, position, mask).ok());
  }

  // A jump in the middle: at most four bytes a row.
  Cache jump = MustCreate("none | kv=f16", {plain});
  MustAppend(jump, 0, MakePrompt(plain, 10, 10));
  MustAppend(jump, 0, MakePrompt(plain, 10, 11, kFar));
  ASSERT_TRUE(jump.FinishPrefill().ok());
  EXPECT_LE(jump.Report().metadata_bytes, 20 * 4);
  EXPECT_EQ(jump.next_position(), kFar + 10);
}

// Going back behind what was evicted is an error that names the position, and the engine could
// have known before.
TEST(Cases, U22_RewindingBehindTheOldestExactPositionIsRefused) {
  const LayerSpec layer = MakeLayer(1, 1, 16, 16);
  Cache cache = MustCreate("recency(budget=1000,sinks=4) | kv=int8", {layer});
  MustAppend(cache, 0, MakePrompt(layer, 5632, 12));
  ASSERT_TRUE(cache.FinishPrefill().ok());
  const std::string finished = StateOf(cache, WithReserve::kNo);
  MustAppend(cache, 0, MakePrompt(layer, 300, 13, 5632), 50, Phase::kDecode);
  ASSERT_EQ(cache.oldest_exact_position(), 5632);

  const std::string before = StateOf(cache);
  const Result<std::int64_t> rewound = cache.TrimToPosition(5204);
  ASSERT_FALSE(rewound.ok());
  EXPECT_EQ(rewound.error().code, ErrorCode::kNotExact);
  EXPECT_NE(rewound.message().find("position 5204"), std::string::npos) << rewound.message();
  EXPECT_NE(rewound.message().find("5632"), std::string::npos) << rewound.message();
  EXPECT_NE(rewound.message().find("evicted"), std::string::npos) << rewound.message();
  EXPECT_EQ(StateOf(cache), before);

  const Result<std::int64_t> exact = cache.TrimToPosition(5632);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(*exact, 300);
  const auto without_lifetime = [](std::string state) {
    return state.substr(0, state.find(" lifetime "));
  };
  EXPECT_EQ(without_lifetime(StateOf(cache, WithReserve::kNo)), without_lifetime(finished));
}

}  // namespace
}  // namespace kvsieve::cache_test
