// Random damage to valid specs: whatever comes out either parses to a pipeline whose canonical
// form is stable, or is refused by one line with a column inside the text.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "kvsieve/pipeline.h"

namespace kvsieve {
namespace {

constexpr std::string_view kSeeds[] = {
    "snapkv(budget=25%,window=32,sinks=4,pool=max:7) | k=int8, v=int4(group=32) | tail=64",
    "none | k=center+turbo(bits=4), v=turbo(bits=4) | layers(0..1,-2..-1)={kv=f16}",
    "snapkv(budget=512,protect=[4..9],recent=budget/8,split=adaptive(floor=0.2)) | kv=turbo4",
    "snapkv(budget=60%) | k=center+turbo4, v=turbo4 | cold(35%)={k=center+turbo3, v=turbo2}",
    "waterfill(budget=8x) | tiers=[k=center+turbo5, v=turbo5; k=center+turbo3, v=turbo2]",
    "random(budget=10,seed=3) | kv=hadamard+int4(group=row,sym) | exact_sinks=3 | nonfinite=zero",
    "mix(0.9*window_attention(window=8),0.1*key_norm,budget=9) | schedule=every(4)",
};
constexpr std::string_view kAlphabet = "kv=|,()+{}[].;:*/%-_ 0123456789abcxyz\t\n";

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::string Next() {
    std::string text(kSeeds[Below(std::size(kSeeds))]);
    const std::size_t edits = 1 + Below(4);
    for (std::size_t i = 0; i < edits; ++i) Edit(text);
    return text;
  }

 private:
  std::size_t Below(std::size_t n) { return random_() % n; }

  void Edit(std::string& text) {
    const std::size_t at = Below(text.size() + 1);
    const std::size_t count = Below(12);
    switch (Below(5)) {
      case 0:
        text.erase(at, count);
        return;
      case 1:
        text.insert(at, 1, kAlphabet[Below(kAlphabet.size())]);
        return;
      case 2:
        text.insert(at, text.substr(Below(text.size() + 1), count));
        return;
      case 3: {
        const std::string_view other = kSeeds[Below(std::size(kSeeds))];
        text = text.substr(0, at) + std::string(other.substr(Below(other.size())));
        return;
      }
      default:
        if (at < text.size()) text[at] = static_cast<char>(Below(256));
        return;
    }
  }

  std::mt19937 random_;
};

void CheckOutcome(const std::string& text) {
  const Result<Pipeline> pipeline = Pipeline::Parse(text);
  if (pipeline.ok()) {
    const Result<Pipeline> again = Pipeline::Parse(pipeline->Canonical());
    ASSERT_TRUE(again.ok()) << pipeline->Canonical() << ": " << again.message();
    EXPECT_EQ(again->Canonical(), pipeline->Canonical());
    return;
  }
  const std::string& message = pipeline.message();
  EXPECT_EQ(message.find_first_of("\n\r"), std::string::npos) << message;
  ASSERT_TRUE(message.starts_with("column ")) << message;
  const int column = std::stoi(message.substr(7));
  EXPECT_GE(column, 1) << message;
  EXPECT_LE(column, static_cast<int>(text.size()) + 1) << message;
}

TEST(SpecMutation, DamagedSpecsParseOrAreRefusedInOneLine) {
  constexpr std::uint32_t kSeed = 20240607;
  Mutator mutator(kSeed);
  for (int i = 0; i < 200000; ++i) {
    const std::string text = mutator.Next();
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", round " << i << ": " << text);
    CheckOutcome(text);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvsieve
