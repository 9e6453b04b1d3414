#include "tests/lib/draft_fixture.h"

#include <gtest/gtest.h>

namespace kvsieve::state_test {
namespace {

using cache_test::AppendRows;
using cache_test::MakeLayer;
using cache_test::MakePrompt;
using cache_test::Prompt;

std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers = {MakeLayer(4, 2, 32, 32), MakeLayer(2, 2, 32, 32),
                                   MakeLayer(4, 1, 48, 32)};
  layers[1].sliding_window = 24;
  layers[2].value_is_key_prefix = true;
  for (int i = 0; i < 3; ++i) layers[static_cast<std::size_t>(i)].layer = 10 + i;
  return layers;
}

}  // namespace

Life LifeOf(const char* spec) {
  Life life;
  life.spec = spec;
  life.layers = Layers();
  return life;
}

void AppendNext(Cache& cache, Phase phase, std::int64_t count) {
  const TokenPos first = cache.next_position();
  for (int i = 0; i < cache.layers(); ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 * i + first);
    Prompt rows = MakePrompt(cache.layer(i), 1000, seed, first);
    const Status added = AppendRows(cache, i, phase, rows, 0, count);
    ASSERT_TRUE(added.ok()) << added.message();
  }
}

void AppendPieces(Cache& cache, Phase phase, const std::vector<std::int64_t>& pieces) {
  const TokenPos first = cache.next_position();
  for (int i = 0; i < cache.layers(); ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 * i + first);
    Prompt rows = MakePrompt(cache.layer(i), 1000, seed, first);
    std::int64_t done = 0;
    for (const std::int64_t piece : pieces) {
      const Status added = AppendRows(cache, i, phase, rows, done, piece);
      ASSERT_TRUE(added.ok()) << added.message();
      done += piece;
    }
  }
}

}  // namespace kvsieve::state_test
