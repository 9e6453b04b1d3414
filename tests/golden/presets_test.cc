// The presets against the systems that they are named after: positions that stay, problem by
// problem, as recorded in the golden files beside this one (README.md says how they are made).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/cache_fixture.h"

namespace kvsieve::cache_test {
namespace {

using nlohmann::json;

// The prompt of a problem, as prompts.py makes it: elements are a hash of where they stand.
struct Problem {
  explicit Problem(const json& problem)
      : spec(problem["spec"].get<std::string>()),
        tokens(problem["tokens"]),
        layers(problem["layers"]),
        decode(problem.value("decode", 0)),
        seed(problem["seed"]),
        period(problem["period"]),
        kv_repeat(problem["kv_repeat"]),
        chunks(problem.value("chunks", std::vector<std::int64_t>{tokens - decode})) {
    shape = MakeLayer(problem["query_heads"], problem["kv_heads"], problem["dim"], problem["dim"]);
  }

  std::string spec;
  LayerSpec shape;
  std::int64_t tokens;
  int layers;
  std::int64_t decode;  // the last tokens, appended one by one after the prompt
  std::uint64_t seed;
  std::int64_t period;  // > 0: token t has the keys of token t % period
  int kv_repeat;        // KV heads h with equal h / kv_repeat are the same
  std::vector<std::int64_t> chunks;
};

enum Kind : std::uint8_t { kKeys, kValues, kQueries };

// A multiple of 1/8 in [-2, 2): dot products are exact in f32, so that equal keys tie to the bit.
float Element(std::uint64_t state) {
  // splitmix64 (Steele, Lea, Flood 2014).
  std::uint64_t x = state + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  x ^= x >> 31;
  return (static_cast<float>(x >> 59) - 16.0F) / 8.0F;
}

// f32 [heads, tokens, dim].
std::vector<float> MakeRows(const Problem& problem, int layer, Kind kind) {
  const bool queries = kind == kQueries;
  const int heads = queries ? problem.shape.query_heads : problem.shape.kv_heads;
  const int repeat = queries ? 1 : problem.kv_repeat;
  const auto dim = static_cast<std::uint64_t>(problem.shape.key_dim);
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(heads * problem.tokens) * dim);
  for (int head = 0; head < heads; ++head) {
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      const std::int64_t token = kind == kKeys && problem.period > 0 ? t % problem.period : t;
      const std::uint64_t row =
          problem.seed << 48 | static_cast<std::uint64_t>(layer) << 40 | std::uint64_t{kind} << 36 |
          static_cast<std::uint64_t>(head / repeat) << 28 | static_cast<std::uint64_t>(token) << 8;
      for (std::uint64_t d = 0; d < dim; ++d) rows.push_back(Element(row | d));
    }
  }
  return rows;
}

// One layer's rows and queries.
struct LayerPrompt {
  LayerPrompt(const Problem& problem, int layer)
      : prompt{problem.shape, Positions(0, problem.tokens), MakeRows(problem, layer, kKeys),
               MakeRows(problem, layer, kValues)},
        queries(MakeRows(problem, layer, kQueries)) {}

  void MustAppend(Cache& cache, int layer, Phase phase, std::int64_t first,
                  std::int64_t count) const {
    const Status appended = AppendRows(cache, layer, phase, prompt, first, count);
    ASSERT_TRUE(appended.ok()) << appended.message();
    if (phase == Phase::kDecode) return;
    const LayerSpec& shape = prompt.layer;
    HeadsView view =
        HeadsView::HeadMajor(queries.data(), shape.query_heads, prompt.rows(), shape.key_dim);
    view.data = queries.data() + first * shape.key_dim;
    view.rows = count;
    const Status observed = cache.Observe(layer, prompt.PositionView(first, count), view);
    ASSERT_TRUE(observed.ok()) << observed.message();
  }

  Prompt prompt;
  std::vector<float> queries;
};

// The cache after the problem's prompt and decode. A schedule per chunk evicts as an engine would:
// after every chunk of several rows.
Cache Solve(const Problem& problem) {
  std::vector<LayerSpec> specs(static_cast<std::size_t>(problem.layers), problem.shape);
  std::vector<LayerPrompt> layers;
  for (int i = 0; i < problem.layers; ++i) {
    specs[static_cast<std::size_t>(i)].layer = i;
    layers.emplace_back(problem, i);
  }
  Cache cache = MustCreate(problem.spec, specs);
  std::int64_t seen = 0;
  const auto append = [&](Phase phase, std::int64_t count) {
    for (int i = 0; i < problem.layers; ++i) {
      layers[static_cast<std::size_t>(i)].MustAppend(cache, i, phase, seen, count);
      if (phase == Phase::kDecode || count == 1) continue;
      const Status evicted = cache.Evict(i);
      ASSERT_TRUE(evicted.ok()) << evicted.message();
    }
    seen += count;
  };
  for (const std::int64_t count : problem.chunks) append(Phase::kPrefill, count);
  const Status finished = cache.FinishPrefill();
  EXPECT_TRUE(finished.ok()) << finished.message();
  for (std::int64_t i = 0; i < problem.decode; ++i) append(Phase::kDecode, 1);
  EXPECT_EQ(seen, problem.tokens);
  return cache;
}

std::vector<TokenPos> KeptPositions(const Cache& cache, int layer, int head) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(cache.rows(layer, head)));
  EXPECT_TRUE(cache.Gather(layer, head, positions, {}, {}).ok());
  return positions;
}

// "0-3,17,40-63".
std::vector<TokenPos> ParseRanges(const std::string& text) {
  std::vector<TokenPos> positions;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const auto first = static_cast<TokenPos>(std::strtol(at, &end, 10));
    TokenPos last = first;
    if (*end == '-') last = static_cast<TokenPos>(std::strtol(end + 1, &end, 10));
    for (TokenPos position = first; position <= last; ++position) positions.push_back(position);
    at = *end == ',' ? end + 1 : end;
  }
  return positions;
}

// One head against its entry: the rows, or, where the original leaves ties open, those that must
// be there, those that may, and how many there are.
void ExpectKept(const std::vector<TokenPos>& kept, const json& expected) {
  if (expected.is_string()) {
    EXPECT_EQ(kept, ParseRanges(expected));
    return;
  }
  const std::vector<TokenPos> certain = ParseRanges(expected["certain"]);
  const std::vector<TokenPos> tied = ParseRanges(expected["tied"]);
  EXPECT_EQ(kept.size(), expected["rows"].get<std::size_t>());
  EXPECT_TRUE(std::includes(kept.begin(), kept.end(), certain.begin(), certain.end()))
      << ::testing::PrintToString(kept) << " lacks some of " << expected["certain"];
  std::vector<TokenPos> others;
  std::set_difference(kept.begin(), kept.end(), certain.begin(), certain.end(),
                      std::back_inserter(others));
  EXPECT_TRUE(std::includes(tied.begin(), tied.end(), others.begin(), others.end()))
      << ::testing::PrintToString(others) << " are not all among " << expected["tied"];
}

// `kept`: [layer][kv_head], or one entry for all.
void ExpectSolved(const json& entry) {
  const Problem problem(entry);
  SCOPED_TRACE(StrCat(problem.spec, ", seed ", problem.seed));
  const Cache cache = Solve(problem);
  const json& kept = entry["kept"];
  for (int layer = 0; layer < problem.layers; ++layer) {
    for (int head = 0; head < problem.shape.kv_heads; ++head) {
      SCOPED_TRACE(StrCat("layer ", layer, ", head ", head));
      const json& expected =
          kept.is_array() ? kept[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)]
                          : kept;
      ExpectKept(KeptPositions(cache, layer, head), expected);
    }
  }
}

class GoldenPreset : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    std::ifstream file(StrCat(KVS_SOURCE_DIR "/tests/golden/", GetParam(), ".json"));
    ASSERT_TRUE(file.is_open());
    golden_ = json::parse(file);
    ASSERT_EQ(golden_["preset"], GetParam());
  }

  json golden_;
};

TEST_P(GoldenPreset, KeepsTheRowsOfTheOriginal) {
  ASSERT_GE(golden_["problems"].size(), 20U);
  OnEveryTarget([&] {
    for (const json& problem : golden_["problems"]) {
      SCOPED_TRACE(problem["name"]);
      ExpectSolved(problem);
    }
  });
}

// Where the original is wrong: its rows and the right ones, of which the preset keeps those that
// the file says.
TEST_P(GoldenPreset, KeepsTheRightRowsBesideThoseOfTheOriginal) {
  ASSERT_FALSE(golden_["contrasts"].empty());
  for (const json& contrast : golden_["contrasts"]) {
    SCOPED_TRACE(contrast["name"]);
    EXPECT_NE(contrast["original"]["kept"], contrast["right"]["kept"]);
    const std::string preset = contrast["preset"];
    EXPECT_EQ(contrast[preset]["spec"].get<std::string>().find(GetParam()), 0U);
    for (const char* side : {"original", "right"}) {
      SCOPED_TRACE(side);
      // What only the original can do has no spec.
      if (contrast[side].contains("spec")) ExpectSolved(contrast[side]);
    }
  }
}

TEST_P(GoldenPreset, NamesWhatItWasMadeFrom) {
  for (const char* key : {"system", "version", "day"}) {
    EXPECT_FALSE(golden_[key].get<std::string>().empty()) << key;
  }
  const bool runs = GetParam() == "kvpress_snapkv" || GetParam() == "velox_snapkv";
  EXPECT_EQ(golden_["how"], runs ? "run" : "transcribed");
}

// docs/presets/NAME.md begins with the preset and, on the next line, what it stands for.
TEST_P(GoldenPreset, IsWhatItsPageSays) {
  std::ifstream page(StrCat(KVS_SOURCE_DIR "/docs/presets/", GetParam(), ".md"));
  std::string line;
  while (std::getline(page, line) && line != "```spec") {
  }
  std::string preset;
  std::string expansion;
  ASSERT_TRUE(std::getline(page, preset) && std::getline(page, expansion));
  EXPECT_EQ(preset.find(GetParam()), 0U);
  EXPECT_NE(expansion.find(GetParam()), 0U);
  EXPECT_EQ(MustParse(preset)->Canonical(), MustParse(expansion)->Canonical());
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenPreset,
                         ::testing::Values("snapkv_paper", "snapkv_reference", "snapkv_d",
                                           "velox_snapkv", "sharp_snapkv", "kvpress_snapkv"),
                         [](const auto& preset) { return std::string(preset.param); });

}  // namespace
}  // namespace kvsieve::cache_test
