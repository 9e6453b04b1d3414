#include "kvsieve/eval/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kvsieve/eval/quality.h"
#include "kvsieve/float16.h"
#include "lib/eval/sha256.h"

namespace kvsieve::eval {
namespace {

// A file name of its own for each test, removed at the end.
class GenerateTraceTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void SetUp() override { std::filesystem::create_directories(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  Trace Make(const GenerateOptions& options) const {
    const Status status = GenerateTrace(options, Path("trace"));
    EXPECT_TRUE(status.ok()) << status.message();
    auto trace = Trace::Open(Path("trace"));
    EXPECT_TRUE(trace.ok()) << trace.message();
    return *std::move(trace);
  }

  std::string Bytes(const GenerateOptions& options) const {
    EXPECT_TRUE(GenerateTrace(options, Path("bytes")).ok());
    std::ifstream file(Path("bytes"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("kvs_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

ExactAttention Exact(const Trace& trace) {
  SerialParallel serial;
  auto exact = ExactAttention::Compute(trace, serial);
  EXPECT_TRUE(exact.ok());
  return *std::move(exact);
}

// Mean over all queries of the largest probability, and of the first column's.
struct Peaks {
  double largest = 0;
  double first = 0;
};

Peaks MeanPeaks(const Trace& trace) {
  const ExactAttention exact = Exact(trace);
  Peaks peaks;
  double count = 0;
  for (int layer = 0; layer < std::ssize(trace.layers()); ++layer) {
    for (int head = 0; head < trace.layers()[0].spec.query_heads; ++head) {
      for (std::int64_t query = 0; query < trace.n_eval(); ++query, ++count) {
        const auto p = exact.Probabilities(layer, head, query);
        peaks.largest += static_cast<double>(*std::max_element(p.begin(), p.end()));
        peaks.first += static_cast<double>(p[0]);
      }
    }
  }
  return {peaks.largest / count, peaks.first / count};
}

TEST_F(GenerateTraceTest, EveryPresetAndTypeOpensWithTheShapeAskedFor) {
  for (const StageInfo& preset : GeneratePresets()) {
    for (const ElementType dtype : {ElementType::kF16, ElementType::kBF16, ElementType::kF32}) {
      GenerateOptions options;
      options.preset = preset.name;
      options.tokens = 70;
      options.layers = 3;
      options.query_heads = 6;
      options.kv_heads = 3;
      options.key_dim = 33;
      options.value_dim = 80;
      options.window = 9;
      options.n_eval = 5;
      options.dtype = dtype;
      const Trace trace = Make(options);
      EXPECT_EQ(trace.tokens(), 70);
      EXPECT_EQ(trace.window(), 9);
      EXPECT_EQ(trace.n_eval(), 5);
      ASSERT_EQ(trace.layers().size(), 3U);
      EXPECT_EQ(trace.layers()[2].spec.group(), 2);
      EXPECT_EQ(trace.layers()[2].spec.value_dim, 80);
      EXPECT_EQ(trace.layers()[2].keys.type, dtype);
      // out_eval is the same computation over the same rows, stored as f32.
      EXPECT_EQ(*Exact(trace).engine_rel_error(), 0);
      EXPECT_EQ(Sha256Hex(std::as_bytes(trace.token_ids())), trace.metadata().at("prompt.sha256"));
    }
  }
}

TEST_F(GenerateTraceTest, SmallestTraceOpens) {
  for (const StageInfo& preset : GeneratePresets()) {
    GenerateOptions options;
    options.preset = preset.name;
    options.tokens = options.n_eval = 1;
    options.window = 0;
    options.layers = options.query_heads = options.kv_heads = options.key_dim = options.value_dim =
        1;
    EXPECT_EQ(Make(options).window(), 0);
  }
}

TEST_F(GenerateTraceTest, WindowLongerThanThePromptIsClipped) {
  GenerateOptions options;
  options.tokens = 10;
  EXPECT_EQ(Make(options).window(), 10);
}

TEST_F(GenerateTraceTest, SameOptionsGiveSameBytesAndTheSeedChangesThem) {
  GenerateOptions options;
  options.tokens = 100;
  const std::string first = Bytes(options);
  EXPECT_EQ(first, Bytes(options));
  options.seed = 1;
  EXPECT_NE(first, Bytes(options));
}

// Bytes are promised to be the same on every machine and compiler. A change of these hashes is a
// change of everybody's synthetic traces.
TEST_F(GenerateTraceTest, BytesAreTheGoldenOnes) {
  const std::pair<const char*, const char*> golden[] = {
      {"needle", "00273187981800d31569bd979674930c5eb71d1566f460df169c5330beb46794"},
      {"gaussian", "42a3a42c2b8acfb8e3e4c20b5730ab9f41e3b67918ab042cff3b907a3f63e6b6"},
      {"outlier", "3c444d849cd257a0849a98a9c2937b26b3b842067a1125161e1a4a967d22d2af"},
      {"sink", "44602708acbde91fa9b4394359aef26c569af2fb668362d40fdc05328595ed7f"},
  };
  for (const auto& [preset, hash] : golden) {
    GenerateOptions options;
    options.preset = preset;
    options.tokens = 64;
    options.seed = 42;
    options.dtype = ElementType::kF32;
    const std::string bytes = Bytes(options);
    EXPECT_EQ(Sha256Hex(std::as_bytes(std::span(bytes))), hash) << preset;
  }
}

TEST_F(GenerateTraceTest, GaussianIsDiffuse) {
  GenerateOptions options;
  options.preset = "gaussian";
  const Trace trace = Make(options);
  // Weights are e^N(0,1) over some 1000 rows: the largest is about e^3.2 of a sum of 1000 e^0.5.
  EXPECT_LT(MeanPeaks(trace).largest, 0.05);
  double sum = 0, square = 0;
  const HeadsView& keys = trace.layers()[0].keys;
  std::vector<float> row(64);
  for (std::int64_t r = 0; r < keys.rows; ++r) {
    ConvertToF32(keys.row(1, r), keys.type, 64, row.data());
    for (const float value : row) {
      sum += static_cast<double>(value);
      square += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  const double count = 1024 * 64;
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));  // 5 standard deviations
  EXPECT_NEAR(square / count, 1, 5 * std::sqrt(2.0) / std::sqrt(count));
}

TEST_F(GenerateTraceTest, NeedleHoldsMostOfTheMass) {
  GenerateOptions options;
  options.preset = "needle";
  // Lift ln(rows) + 3 against rows of mean weight e^0.5: e^3 / (e^3 + e^0.5) = 0.92, less in the
  // mean since the needle's own noise spreads it.
  EXPECT_GT(MeanPeaks(Make(options)).largest, 0.7);
}

TEST_F(GenerateTraceTest, SinkIsShortAndHeavy) {
  GenerateOptions options;
  options.preset = "sink";
  const Trace trace = Make(options);
  EXPECT_GT(MeanPeaks(trace).first, 0.5);
  const auto length = [&](std::int64_t r) {
    std::vector<float> row(64);
    ConvertToF32(trace.layers()[0].keys.row(0, r), ElementType::kF16, 64, row.data());
    double square = 0;
    for (const float value : row) square += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(square);
  };
  EXPECT_LT(length(0), length(1) / 5);
}

TEST_F(GenerateTraceTest, OutlierChannelsStandOut) {
  GenerateOptions options;
  options.preset = "outlier";
  const Trace trace = Make(options);
  const HeadsView& keys = trace.layers()[0].keys;
  std::vector<double> mean(64, 0);
  std::vector<float> row(64);
  for (std::int64_t r = 0; r < keys.rows; ++r) {
    ConvertToF32(keys.row(0, r), keys.type, 64, row.data());
    for (std::size_t d = 0; d < 64; ++d) mean[d] += static_cast<double>(row[d]) / 1024;
  }
  // Four draws of a channel, which may coincide; other means are N(0, 1).
  const auto outliers =
      std::count_if(mean.begin(), mean.end(), [](double m) { return std::abs(m) > 6; });
  EXPECT_GE(outliers, 1);
  EXPECT_LE(outliers, 4);
}

TEST_F(GenerateTraceTest, BadOptionsAreNamed) {
  const auto message = [&](auto edit) {
    GenerateOptions options;
    edit(options);
    const Status status = GenerateTrace(options, Path("bad"));
    EXPECT_FALSE(std::filesystem::exists(Path("bad")));
    return status.ok() ? "" : status.message();
  };
  EXPECT_NE(message([](auto& o) { o.preset = "needel"; }).find("did you mean needle"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.tokens = 0; }).find("option tokens: 0"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.n_eval = 0; }).find("option n_eval: 0"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.window = -1; }).find("option window: -1"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.layers = 0; }).find("option layers: 0"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.kv_heads = 3; }).find("not a multiple"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.key_dim = 0; }).find("key_dim 0"), std::string::npos);
  EXPECT_NE(message([](auto& o) {
              o.tokens = 1 << 24;
              o.layers = 1000;
            }).find("2^31"),
            std::string::npos);
}

TEST_F(GenerateTraceTest, FailedWritesLeaveNothingBehind) {
  const Status missing_folder = GenerateTrace({}, Path("no/such/folder"));
  ASSERT_FALSE(missing_folder.ok());
  EXPECT_EQ(missing_folder.error().code, ErrorCode::kIo);
  std::filesystem::create_directories(Path("taken/inside"));
  EXPECT_FALSE(GenerateTrace({}, Path("taken")).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Path("")), {}), 1);
}

}  // namespace
}  // namespace kvsieve::eval
