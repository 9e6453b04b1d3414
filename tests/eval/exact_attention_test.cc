#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kvsieve/eval/quality.h"
#include "kvsieve/eval/thread_pool.h"
#include "kvsieve/float16.h"
#include "tests/eval/test_trace.h"

namespace kvsieve::eval {
namespace {

Trace OpenGood(const TestFile& file) {
  auto trace = Trace::FromBytes(file.Encode(), "test");
  EXPECT_TRUE(trace.ok()) << trace.message();
  return *std::move(trace);
}

ExactAttention ComputeWith(const Trace& trace, int threads) {
  ThreadPool pool(threads);
  auto exact = ExactAttention::Compute(trace, pool);
  EXPECT_TRUE(exact.ok()) << exact.message();
  return *std::move(exact);
}

std::vector<double> RowOf(const HeadsView& view, int head, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(view.dim));
  ConvertToF32(view.row(head, row), view.type, view.dim, values.data());
  return {values.begin(), values.end()};
}

// Attention of one query in double precision, straight from the definition.
struct Expected {
  std::vector<double> logits;         // [columns], -inf where not visible
  std::vector<double> probabilities;  // [columns]
  std::vector<double> output;
};

Expected Define(const Trace& trace, const TraceLayer& layer, int query_head, std::int64_t query) {
  const LayerSpec& spec = layer.spec;
  const int head = query_head / spec.group();
  const std::vector<double> q = RowOf(layer.eval_queries, query_head, query);
  const TokenPos at = trace.eval_positions()[static_cast<std::size_t>(query)];
  Expected expected;
  std::vector<std::vector<double>> values;
  for (std::int64_t c = 0; c < trace.tokens() + trace.n_eval(); ++c) {
    const bool prompt = c < trace.tokens();
    const std::int64_t row = prompt ? c : c - trace.tokens();
    const TokenPos position = prompt ? trace.positions()[static_cast<std::size_t>(row)]
                                     : trace.eval_positions()[static_cast<std::size_t>(row)];
    const bool stored = prompt || layer.eval_keys.data != nullptr;
    double logit = -INFINITY;
    values.emplace_back(static_cast<std::size_t>(spec.value_dim), 0.0);
    if (stored && position <= at &&
        (spec.sliding_window == 0 || position > at - spec.sliding_window)) {
      const std::vector<double> k = RowOf(prompt ? layer.keys : layer.eval_keys, head, row);
      values.back() = RowOf(prompt ? layer.values : layer.eval_values, head, row);
      logit = 0;
      for (std::size_t d = 0; d < q.size(); ++d) logit += q[d] * k[d];
      logit *= static_cast<double>(spec.scale);
      const auto cap = static_cast<double>(spec.softcap);
      if (cap > 0) logit = cap * std::tanh(logit / cap);
    }
    expected.logits.push_back(logit);
  }
  const double max = *std::max_element(expected.logits.begin(), expected.logits.end());
  double total = 0;
  for (const double logit : expected.logits) total += std::exp(logit - max);
  expected.output.assign(static_cast<std::size_t>(spec.value_dim), 0);
  for (std::size_t c = 0; c < values.size(); ++c) {
    const bool none = std::isinf(max);
    expected.probabilities.push_back(none ? 0 : std::exp(expected.logits[c] - max) / total);
    for (std::size_t d = 0; d < values[c].size(); ++d) {
      expected.output[d] += expected.probabilities[c] * values[c][d];
    }
  }
  return expected;
}

// Products are rounded to f32 once (relative 2^-24), sums are f64, weights and results are rounded
// to f32 once more. A logit is a sum of `dim` products of absolute size |q||k|scale at most, so it
// is off by at most that * 2^-24, and a probability by the same, relatively. The test traces keep
// |q||k|scale below 32: 32 * 2^-24 = 2e-6, doubled for the normalisation and the roundings.
constexpr double kTolerance = 4e-6;

void ExpectDefinition(const Trace& trace, const ExactAttention& exact) {
  for (int layer = 0; layer < std::ssize(trace.layers()); ++layer) {
    const TraceLayer& recorded = trace.layers()[static_cast<std::size_t>(layer)];
    for (int head = 0; head < recorded.spec.query_heads; ++head) {
      for (std::int64_t query = 0; query < trace.n_eval(); ++query) {
        const Expected expected = Define(trace, recorded, head, query);
        const auto probabilities = exact.Probabilities(layer, head, query);
        ASSERT_EQ(probabilities.size(), expected.probabilities.size());
        for (std::size_t c = 0; c < probabilities.size(); ++c) {
          ASSERT_NEAR(probabilities[c], expected.probabilities[c],
                      kTolerance * expected.probabilities[c] + 1e-38)
              << "layer " << layer << " head " << head << " query " << query << " column " << c;
        }
        double size = 0;  // of the values that the output averages
        const auto output = exact.Output(layer, head, query);
        for (const double value : expected.output) size = std::max(size, std::abs(value));
        for (std::size_t d = 0; d < output.size(); ++d) {
          // Values are at most 5 in size: the output's absolute error is bounded by theirs.
          ASSERT_NEAR(output[d], expected.output[d], 5 * kTolerance) << "size " << size;
        }
      }
    }
  }
}

TEST(ExactAttention, EqualsTheDefinitionForEveryShape) {
  const struct {
    int query_heads, kv_heads, key_dim, value_dim, tokens, n_eval;
  } shapes[] = {{1, 1, 1, 1, 1, 1},       {4, 2, 3, 5, 6, 2},      {9, 3, 64, 64, 63, 3},
                {7, 1, 33, 80, 64, 1},    {8, 8, 128, 16, 65, 5},  {28, 4, 80, 96, 200, 4},
                {2, 1, 192, 128, 500, 2}, {71, 1, 64, 64, 100, 2}, {2, 2, 256, 256, 130, 64}};
  for (const auto& s : shapes) {
    for (const std::string dtype : {"F32", "F16", "BF16"}) {
      TestFile file = MakeTestTrace({.layers = {0, 5},
                                     .query_heads = s.query_heads,
                                     .kv_heads = s.kv_heads,
                                     .key_dim = s.key_dim,
                                     .value_dim = s.value_dim,
                                     .tokens = s.tokens,
                                     .window = 1,
                                     .n_eval = s.n_eval,
                                     .dtype = dtype});
      file.SetMetadata("attn.scale", std::to_string(1 / std::sqrt(s.key_dim)));
      const Trace trace = OpenGood(file);
      ExpectDefinition(trace, ComputeWith(trace, 2));
    }
  }
}

TEST(ExactAttention, HonoursWindowsAndSoftcapOfEachLayer) {
  TestFile file = MakeTestTrace({.layers = {0, 1, 2, 3}, .tokens = 100, .n_eval = 9});
  file.SetMetadata("attn.sliding_window", "0,1,7,1000");
  file.SetMetadata("attn.softcap", "2,0,0.5,0");
  const Trace trace = OpenGood(file);
  ExpectDefinition(trace, ComputeWith(trace, 2));
}

TEST(ExactAttention, SeesPositionsNotColumns) {
  TestFile file = MakeTestTrace({});
  file.Get("positions").bytes = EncodeInts({0, 10, 20, 30, 40, 50});
  file.Get("q_window_positions").bytes = EncodeInts({30, 40, 50});
  file.Get("q_eval_positions").bytes = EncodeInts({60, 70});
  file.SetMetadata("attn.sliding_window", "25");
  const Trace trace = OpenGood(file);
  const ExactAttention exact = ComputeWith(trace, 1);
  ExpectDefinition(trace, exact);
  EXPECT_EQ(exact.TopColumns(0, 0, 0).size(), 3U);  // 40, 50 and itself
}

TEST(ExactAttention, WithoutEvalRowsOnlyThePromptIsSeen) {
  const Trace trace = OpenGood(MakeTestTrace({.eval_rows = false, .eval_outputs = false}));
  const ExactAttention exact = ComputeWith(trace, 2);
  ExpectDefinition(trace, exact);
  EXPECT_EQ(exact.Probabilities(0, 0, 0).size(), 8U);
  EXPECT_EQ(exact.Probabilities(0, 0, 1)[6], 0);
  EXPECT_FALSE(exact.engine_rel_error().has_value());
}

TEST(ExactAttention, WithoutAVisibleRowTheOutputIsZero) {
  TestFile file = MakeTestTrace({.eval_rows = false});
  file.SetMetadata("attn.sliding_window", "1");
  const Trace trace = OpenGood(file);
  const ExactAttention exact = ComputeWith(trace, 1);
  for (const float value : exact.Output(0, 0, 1)) EXPECT_EQ(value, 0);
  for (const float p : exact.Probabilities(0, 0, 1)) EXPECT_EQ(p, 0);
  EXPECT_TRUE(exact.TopColumns(0, 0, 1).empty());
}

TEST(ExactAttention, SurvivesLargeLogits) {
  TestFile file = MakeTestTrace({.key_scale = 1e4});
  const Trace trace = OpenGood(file);
  const ExactAttention exact = ComputeWith(trace, 1);
  for (int head = 0; head < 4; ++head) {
    double sum = 0;
    for (const float p : exact.Probabilities(0, head, 1)) sum += p;
    EXPECT_NEAR(sum, 1, 1e-6);  // eight roundings to f32
  }
}

// Writes `value` into one row of a [heads, rows, dim] tensor of f32, with alternating signs if
// asked.
void FillRow(TestTensor& tensor, std::size_t head, std::size_t row, float value, float sign = 1) {
  const std::size_t dim = tensor.shape[2];
  std::vector<float> values(dim);
  for (std::size_t d = 0; d < dim; ++d) values[d] = d % 2 == 0 ? value : sign * value;
  const std::string bytes = EncodeElements("F32", values);
  tensor.bytes.replace((head * tensor.shape[1] + row) * bytes.size(), bytes.size(), bytes);
}

// 1e20 * 1e20 is Inf in f32; with opposite signs the sum of the products is NaN.
TEST(ExactAttention, RefusesLogitsBeyondF32) {
  for (const float sign : {1.0F, -1.0F}) {
    for (const std::string softcap : {"0", "30"}) {
      for (const int threads : {1, 3}) {
        TestFile file = MakeTestTrace({});
        file.SetMetadata("attn.softcap", softcap);
        FillRow(file.Get("layer.3.k"), 1, 4, 1e20F);
        FillRow(file.Get("layer.3.q_eval"), 2, 1, 1e20F, sign);
        const Trace trace = OpenGood(file);
        ThreadPool pool(threads);
        const auto exact = ExactAttention::Compute(trace, pool);
        ASSERT_FALSE(exact.ok());
        EXPECT_EQ(exact.error().code, ErrorCode::kNonFinite);
        EXPECT_TRUE(exact.message().starts_with(
            "test: layer 3, query head 2, eval query 1: the logit of prompt row 4 is beyond f32; "))
            << exact.message();
        EXPECT_EQ(exact.message().find('\n'), std::string::npos);
      }
    }
  }
}

TEST(ExactAttention, IsFiniteUpToTheLargestF32) {
  TestFile file = MakeTestTrace({.layers = {0}, .key_scale = 1e37});
  for (std::size_t row = 0; row < 6; ++row) {
    FillRow(file.Get("layer.0.v"), 0, row, std::numeric_limits<float>::max());
    FillRow(file.Get("layer.0.k"), 0, row, 1e37F);  // equal logits: an average of largest values
  }
  const Trace trace = OpenGood(file);
  const ExactAttention exact = ComputeWith(trace, 1);
  for (int head = 0; head < 4; ++head) {
    for (const float p : exact.Probabilities(0, head, 1)) EXPECT_TRUE(std::isfinite(p));
    for (const float o : exact.Output(0, head, 1)) EXPECT_TRUE(std::isfinite(o));
  }
  EXPECT_TRUE(std::isfinite(exact.engine_rel_error().value_or(NAN)));
}

// x - cap tanh(x / cap) is x^3 / (3 cap^2) at most: 2e-7 for logits of 16 under a cap of 1e5.
TEST(ExactAttention, SoftcapFarAboveTheLogitsChangesNothing) {
  const TestShape shape{.tokens = 100};
  const Trace plain = OpenGood(MakeTestTrace(shape));
  const ExactAttention expected = ComputeWith(plain, 1);
  for (const std::string softcap : {"1e5", "1e8", "3e38"}) {
    TestFile file = MakeTestTrace(shape);
    file.SetMetadata("attn.softcap", softcap);
    const Trace trace = OpenGood(file);
    const ExactAttention exact = ComputeWith(trace, 1);
    for (std::size_t c = 0; c < 101; ++c) {
      const float p = expected.Probabilities(1, 3, 0)[c];
      ASSERT_NEAR(exact.Probabilities(1, 3, 0)[c], p, 1e-6F * p) << softcap << " column " << c;
    }
  }
}

TEST(ExactAttention, TopColumnsAreTheStrongest) {
  const Trace trace = OpenGood(MakeTestTrace({.tokens = 200, .n_eval = 5}));
  const ExactAttention exact = ComputeWith(trace, 2);
  for (std::int64_t query = 0; query < 5; ++query) {
    const auto top = exact.TopColumns(1, 3, query);
    ASSERT_EQ(std::ssize(top), kTopColumns);
    EXPECT_TRUE(std::is_sorted(top.begin(), top.end()));
    const Expected expected = Define(trace, trace.layers()[1], 3, query);
    std::vector<double> sorted = expected.logits;
    std::sort(sorted.rbegin(), sorted.rend());
    for (const std::int32_t column : top) {
      EXPECT_GE(expected.logits[static_cast<std::size_t>(column)], sorted[kTopColumns - 1] - 1e-5);
    }
  }
}

TEST(ExactAttention, EqualLogitsPreferTheLowerColumn) {
  TestFile file = MakeTestTrace({.tokens = 100});
  for (const std::string part : {"k", "k_eval"}) {
    TestTensor& keys = file.Get("layer.0." + part);
    keys.bytes.assign(keys.bytes.size(), '\0');
  }
  const Trace trace = OpenGood(file);
  const ExactAttention exact = ComputeWith(trace, 1);
  const auto top = exact.TopColumns(0, 0, 0);
  ASSERT_EQ(std::ssize(top), kTopColumns);
  EXPECT_EQ(top.front(), 0);
  EXPECT_EQ(top.back(), kTopColumns - 1);
}

TEST(ExactAttention, IsTheSameForAnyNumberOfThreads) {
  const auto trace = Trace::Open(KVS_DATA_DIR "/smollm2-135m-small.safetensors");
  ASSERT_TRUE(trace.ok()) << trace.message();
  const ExactAttention serial = ComputeWith(*trace, 1);
  const ExactAttention threaded = ComputeWith(*trace, 5);
  for (int layer = 0; layer < 5; ++layer) {
    for (int head = 0; head < 9; ++head) {
      const auto a = serial.Probabilities(layer, head, 47);
      const auto b = threaded.Probabilities(layer, head, 47);
      ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
      const auto output_a = serial.Output(layer, head, 47);
      const auto output_b = threaded.Output(layer, head, 47);
      ASSERT_TRUE(std::equal(output_a.begin(), output_a.end(), output_b.begin(), output_b.end()));
    }
  }
  EXPECT_EQ(*serial.engine_rel_error(), *threaded.engine_rel_error());
}

// The capture stores K, V and Q as f16 (relative error up to 2^-11 = 4.9e-4 each), the engine used
// f32: 2e-3 is what the project promises for its traces; measured 5.05e-4.
TEST(ExactAttention, AgreesWithTheEngineOfTheBundledCapture) {
  const auto trace = Trace::Open(KVS_DATA_DIR "/smollm2-135m-small.safetensors");
  ASSERT_TRUE(trace.ok()) << trace.message();
  const ExactAttention exact = ComputeWith(*trace, 2);
  ASSERT_TRUE(exact.engine_rel_error().has_value());
  EXPECT_LT(*exact.engine_rel_error(), 2e-3);
  EXPECT_GT(*exact.engine_rel_error(), 1e-5);  // f16 was stored: an exact match would be suspect
}

}  // namespace
}  // namespace kvsieve::eval
