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

// Lines are broken where they get long.
std::string OnOneLine(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\n';
    if (!blank) line.push_back(c);
    if (blank && !line.ends_with(' ')) line.push_back(' ');
  }
  return line;
}

TEST(Explain, SaysInWordsWhatEachOptionDoes) {
  const struct {
    std::string_view spec;
    std::string_view words;
  } cases[] = {
      {"snapkv(budget=64)", "keeps 64 rows of each head"},
      {"snapkv(budget=25%)", "keeps 25% of each head's rows, rounded up"},
      {"snapkv(budget=auto)",
       "auto: a quarter of each head's rows, at least 1024 and at most 4096"},
      {"snapkv(budget=1MiB)",
       "as many rows as keep kept_bytes, right after the prompt, at or "
       "below 1048576 bytes; positions, statistics, tail"},
      {"snapkv(budget=2.5x)", "at or below full_bytes / 2.5; positions"},
      {"waterfill(budget=8x) | tiers=[kv=int8; kv=int4]",
       "gives every row the tier, or none, that loses least for its bytes; 8x: as many rows"},
      {"snapkv(budget=64,select=chunk:8)", "runs of 8 rows by mean score while they fit"},
      {"snapkv(budget=64,select=block:16)", "blocks of 16 rows, as a paged cache cuts them"},
      {"snapkv(budget=64,select=threshold:0.5)", "whose smoothed score reaches the threshold"},
      {"snapkv(budget=64,select=top_p:0.9)", "the fewest best rows that hold this share"},
      {"snapkv(budget=64,split=pyramid(beta=20))",
       "linearly over the layers, the last has 1/20 of"},
      {"snapkv(budget=64,split=adaptive(floor=0.3))",
       "the heads of a layer compete by score, each keeps at least 0.3 of its budget"},
      {"snapkv(budget=64,split=adaptive(scope=model))", "the heads of all layers compete by score"},
      {"snapkv(budget=64) | kv=f16", "once: rows are scored and dropped when the prompt ends"},
      {"random(budget=9) | schedule=per_chunk", "per_chunk: after each chunk, over the rows kept"},
      {"random(budget=9) | schedule=every(16)",
       "every(16): when the prompt ends, then again after so many tokens of decode"},
      {"random(budget=9) | kv=int8 | cold(35%)={kv=int4} | cold(5)={kv=int2} | schedule=every(16) "
       "| "
       "demote=yes",
       "demote yes: each selection moves rows that rank low to colder stores"},
      {"velox_snapkv(budget=64)", "preset velox_snapkv The SnapKV cache of VeloxQuant-MLX."},
  };
  for (const auto& [spec, words] : cases) {
    SCOPED_TRACE(spec);
    ExpectContains(OnOneLine(Explained(spec, 128, 128)), words);
  }
}

TEST(Explain, DescribesTheStoreOfEveryTier) {
  // Per row: 128 codes and a scale of 2 bytes, or half the codes and, per group of 32, 4 bytes.
  const std::string planned =
      OnOneLine(Explained("waterfill(budget=8x) | tiers=[kv=int8; kv=int4(group=32)]", 128, 128));
  ExpectContains(planned, "tier 0: also of decode rows keys and values, each: int8");
  ExpectContains(planned, "130 at dim 128");
  ExpectContains(planned, "tier 1 keys and values, each: int4");
  ExpectContains(planned, "80 at dim 128 (64 codes + 16 scales)");
  const std::string cold = OnOneLine(
      Explained("recency(budget=90) | kv=f16 | cold(35%)={kv=int8} | cold(5)={kv=int4}", 128, 128));
  ExpectContains(cold, "cold 35%: of the rows that stay the next lowest");
  ExpectContains(cold, "cold 5: of the rows that stay the lowest keys and values, each: int4");
}

TEST(Explain, TellsOfStatisticsThatLieWithTheFirstTier) {
  const std::string text = OnOneLine(Explained(
      "waterfill(budget=8x) | tiers=[k=center+turbo4, v=int8; k=center+turbo3, v=int4]", 128, 128));
  ExpectContains(text, "bytes per head 516, learnt from its rows kernels");
  ExpectContains(text, "bytes per head 4, learnt from its rows; 512 more are the first store's");
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
