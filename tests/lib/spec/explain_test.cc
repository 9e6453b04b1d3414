#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kvsieve/pipeline.h"

namespace kvsieve {
namespace {

std::string Explained(std::string_view spec, int key_dim, int value_dim) {
  const Result<Pipeline> pipeline = Pipeline::Parse(spec);
  EXPECT_TRUE(pipeline.ok()) << pipeline.message();
  const Result<std::string> text = Explain(*pipeline, key_dim, value_dim);
  EXPECT_TRUE(text.ok()) << text.message();
  return *text;
}

void ExpectContains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in\n" << text;
}

// What a user must learn of a codec before trusting its default.
TEST(Cases, U46_EveryCodecSaysHowItStoresARow) {
  for (const StageInfo& info : CodecInfos()) {
    const std::string text = Explained("none | kv=" + std::string(info.name), 128, 128);
    // Labels begin their lines, and a label without text is not written.
    for (const std::string_view label :
         {"  format", "  granularity", "  group axis", "  scale rule", "  rounding", "residual"}) {
      ExpectContains(text, "\n  " + std::string(label) + " ");
    }
  }
}

TEST(Explain, SaysFormulaDefaultsAndApproximationOfEveryEvictStage) {
  for (const StageInfo& info : EvictorInfos()) {
    const std::string terms = info.name == "mix" ? "1*recency," : "";
    const std::string text =
        Explained(std::string(info.name) + "(" + terms + "budget=50%)", 128, 128);
    for (const std::string_view label : {"formula", "in force", "approximates", "budget=50%"}) {
      ExpectContains(text, label);
    }
  }
}

TEST(Explain, GivesBytesPerRowOfBothSides) {
  // Per row: int8 has a code a dimension and a bf16 scale; int4 two codes a byte and 4 bytes a
  // group.
  const std::string text = Explained("none | k=int8, v=int4(group=32) | tail=64", 128, 64);
  ExpectContains(text, "130 at dim 128 (128 codes + 2 scales); f16 takes 256");
  ExpectContains(text, "40 at dim 64 (32 codes + 8 scales); f16 takes 128");
  ExpectContains(text, "tail=64");
}

TEST(Explain, ListsOverridesAndExactRows) {
  const std::string text =
      Explained("none | k=center+turbo4, v=turbo4 | layers(0..1,-2..-1)={kv=f16}", 128, 128);
  ExpectContains(text, "layers 0..1,-2..-1");
  ExpectContains(text, "exact_sinks=4, tail=0");
  ExpectContains(text, "center");
  ExpectContains(text, "66 at dim 128");
}

TEST(Explain, RefusesADimensionThatTheChainCannotStore) {
  const Result<Pipeline> pipeline = Pipeline::Parse("none | kv=int4(group=40)");
  ASSERT_TRUE(pipeline.ok());
  const Result<std::string> text = Explain(*pipeline, 128, 128);
  ASSERT_FALSE(text.ok());
  EXPECT_TRUE(text.message().starts_with("column ")) << text.message();
}

TEST(Explain, LinesFitATerminal) {
  std::string text = Explained("snapkv(budget=512) | k=center+turbo4, v=int4", 128, 128);
  text.erase(0, text.find("\n\n"));  // the canonical spec stays in one piece, to be copied
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

}  // namespace
}  // namespace kvsieve
