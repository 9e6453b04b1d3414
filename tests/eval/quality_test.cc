#include "kvsieve/eval/quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/eval/test_trace.h"

namespace kvsieve::eval {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

struct Fixture {
  Trace trace;
  ExactAttention exact;

  static Fixture Make(const TestFile& file) {
    auto trace = Trace::FromBytes(file.Encode(), "test");
    EXPECT_TRUE(trace.ok()) << trace.message();
    SerialParallel serial;
    auto exact = ExactAttention::Compute(*trace, serial);
    EXPECT_TRUE(exact.ok());
    return {*std::move(trace), *std::move(exact)};
  }

  // Logits of the given columns up to a constant, as a perfect store would give them.
  std::vector<float> Logits(int layer, int head, std::int64_t query,
                            std::span<const std::int64_t> columns) const {
    std::vector<float> logits;
    for (const std::int64_t column : columns) {
      logits.push_back(
          std::log(exact.Probabilities(layer, head, query)[static_cast<std::size_t>(column)]));
    }
    return logits;
  }
};

std::vector<std::int64_t> Columns(std::int64_t count) {
  std::vector<std::int64_t> columns(static_cast<std::size_t>(count));
  std::iota(columns.begin(), columns.end(), 0);
  return columns;
}

TEST(Accuracy, NothingLostIsPerfect) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({.tokens = 100}));
  const auto columns = Columns(102);
  AccuracyMeter meter;
  for (std::int64_t query = 0; query < 2; ++query) {
    meter.Add(fixture.exact, 0, 0, query, columns, fixture.Logits(0, 0, query, columns),
              fixture.exact.Output(0, 0, query));
  }
  const Accuracy accuracy = meter.Summary();
  EXPECT_EQ(accuracy.output_rel_error.mean, 0);
  EXPECT_NEAR(accuracy.output_cosine, 1, 1e-12);  // one division in f64
  EXPECT_NEAR(accuracy.attention_kl, 0, 1e-6);    // logits are rounded to f32: 8 * 2^-24
  EXPECT_NEAR(accuracy.attention_mass_kept, 1, 1e-6);
  EXPECT_EQ(accuracy.top32_overlap, 1);
}

// Dropping rows and changing nothing else leaves p / mass: KL = -log mass, whichever rows stay.
TEST(Accuracy, DivergenceOfPureEvictionIsMinusLogMass) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({.tokens = 100}));
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> kept;
    double mass = 0;
    for (std::int64_t column = 0; column < 101; ++column) {
      if (random() % 4 != 0) continue;
      kept.push_back(column);
      mass += static_cast<double>(
          fixture.exact.Probabilities(1, 2, 0)[static_cast<std::size_t>(column)]);
    }
    AccuracyMeter meter;
    meter.Add(fixture.exact, 1, 2, 0, kept, fixture.Logits(1, 2, 0, kept),
              fixture.exact.Output(1, 2, 0));
    const Accuracy accuracy = meter.Summary();
    EXPECT_NEAR(accuracy.attention_mass_kept, mass, 1e-12);
    // Each f32 logit (below 16 in size) is off by 2^-21 at most.
    EXPECT_NEAR(accuracy.attention_kl, -std::log(mass), 1e-6) << "round " << round;
  }
}

// The measures by plain double loops, for logits and outputs that are off.
TEST(Accuracy, EqualsTheDefinitions) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({.tokens = 150, .n_eval = 3}));
  std::mt19937 random(11);
  std::normal_distribution<double> noise(0, 0.3);
  AccuracyMeter meter;
  std::vector<double> errors;
  double cosine = 0, kl = 0, mass = 0, top32 = 0;
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 4; ++head) {
      for (std::int64_t query = 0; query < 3; ++query) {
        const auto full = fixture.exact.Probabilities(layer, head, query);
        std::vector<std::int64_t> kept;
        std::vector<float> logits;
        for (std::int64_t column = 0; column < 153; ++column) {
          if (random() % 3 == 0) continue;
          const float p = full[static_cast<std::size_t>(column)];
          kept.push_back(column);
          logits.push_back(p > 0 ? std::log(p) + static_cast<float>(noise(random)) : kHidden);
        }
        const auto reference = fixture.exact.Output(layer, head, query);
        std::vector<float> output(reference.begin(), reference.end());
        for (float& value : output) value += static_cast<float>(noise(random));
        meter.Add(fixture.exact, layer, head, query, kept, logits, output);

        double difference = 0, norm = 0, output_norm = 0, dot = 0;
        for (std::size_t d = 0; d < output.size(); ++d) {
          const double o = output[d], r = reference[d];
          difference += (o - r) * (o - r);
          norm += r * r;
          output_norm += o * o;
          dot += o * r;
        }
        errors.push_back(std::sqrt(difference / norm));
        cosine += dot / std::sqrt(norm * output_norm);
        double total = 0;
        for (const float logit : logits) total += std::exp(static_cast<double>(logit));
        for (std::size_t i = 0; i < kept.size(); ++i) {
          const double p = std::exp(static_cast<double>(logits[i])) / total;
          const double f = full[static_cast<std::size_t>(kept[i])];
          if (p > 0) kl += p * std::log(p / f);
          mass += f;
        }
        std::vector<std::int64_t> strongest(kept.size());
        std::iota(strongest.begin(), strongest.end(), 0);
        std::sort(strongest.begin(), strongest.end(), [&](std::int64_t a, std::int64_t b) {
          return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
        });
        std::vector<float> sorted(full.begin(), full.end());
        std::sort(sorted.rbegin(), sorted.rend());
        for (std::size_t i = 0; i < 32; ++i) {
          const std::int64_t column = kept[static_cast<std::size_t>(strongest[i])];
          top32 += full[static_cast<std::size_t>(column)] >= sorted[31] ? 1.0 / 32 : 0;
        }
      }
    }
  }
  const Accuracy accuracy = meter.Summary();
  const auto count = static_cast<double>(errors.size());
  // Both sides work in f64 on the same f32 inputs; 24 samples of some 150 terms each.
  constexpr double kRounding = 1e-12;
  EXPECT_NEAR(accuracy.output_rel_error.mean,
              std::accumulate(errors.begin(), errors.end(), 0.0) / count, kRounding);
  std::sort(errors.begin(), errors.end());
  EXPECT_NEAR(accuracy.output_rel_error.p50, errors[11], kRounding);  // 12th of 24
  EXPECT_NEAR(accuracy.output_rel_error.p99, errors[23], kRounding);
  EXPECT_NEAR(accuracy.output_rel_error.max, errors[23], kRounding);
  EXPECT_NEAR(accuracy.output_cosine, cosine / count, kRounding);
  EXPECT_NEAR(accuracy.attention_kl, kl / count, kRounding);
  EXPECT_NEAR(accuracy.attention_mass_kept, mass / count, kRounding);
  EXPECT_NEAR(accuracy.top32_overlap, top32 / count, kRounding);
}

TEST(Accuracy, TopOverlapDividesByTheVisibleRowsWhenTheyAreFew) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({}));  // 6 tokens: 7 visible to query 0
  const std::vector<std::int64_t> kept = {1, 3, 6};
  AccuracyMeter meter;
  meter.Add(fixture.exact, 0, 0, 0, kept, fixture.Logits(0, 0, 0, kept),
            fixture.exact.Output(0, 0, 0));
  EXPECT_DOUBLE_EQ(meter.Summary().top32_overlap, 3.0 / 7);
}

TEST(Accuracy, HiddenRowsCountForNothing) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({}));
  const std::vector<std::int64_t> kept = {1, 3, 6, 7};  // 7 comes after query 0
  std::vector<float> logits = fixture.Logits(0, 0, 0, std::vector<std::int64_t>{1, 3, 6});
  logits.push_back(kHidden);
  AccuracyMeter meter;
  meter.Add(fixture.exact, 0, 0, 0, kept, logits, fixture.exact.Output(0, 0, 0));
  EXPECT_DOUBLE_EQ(meter.Summary().top32_overlap, 3.0 / 7);
  EXPECT_NEAR(meter.Summary().attention_kl, -std::log(meter.Summary().attention_mass_kept), 1e-6);
}

void ExpectFinite(const Accuracy& accuracy) {
  for (const double figure :
       {accuracy.output_rel_error.mean, accuracy.output_rel_error.p50,
        accuracy.output_rel_error.p99, accuracy.output_rel_error.max, accuracy.output_cosine,
        accuracy.attention_kl, accuracy.attention_mass_kept, accuracy.top32_overlap}) {
    EXPECT_TRUE(std::isfinite(figure));
  }
}

TEST(Accuracy, NothingKeptIsTheWorstAndStillANumber) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({}));
  AccuracyMeter meter;
  const std::vector<float> zero(5, 0.0F);
  meter.Add(fixture.exact, 0, 0, 0, {}, {}, zero);
  const Accuracy accuracy = meter.Summary();
  ExpectFinite(accuracy);
  EXPECT_EQ(accuracy.output_rel_error.mean, 1);
  EXPECT_EQ(accuracy.output_cosine, 0);
  EXPECT_EQ(accuracy.attention_mass_kept, 0);
  EXPECT_EQ(accuracy.top32_overlap, 0);
  EXPECT_NEAR(accuracy.attention_kl, 126 * std::log(2.0), 1e-9);  // -log of the least f32 normal
}

TEST(Accuracy, BrokenOutputsAndLogitsAreFlaggedNotAveragedAway) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({}));
  const auto columns = Columns(7);
  const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()};
  for (const float bad : bad_values) {
    for (std::size_t place = 0; place < 5; ++place) {
      std::vector<float> logits = fixture.Logits(0, 0, 0, columns);
      logits[place] = bad;
      std::vector<float> output(5, 1.0F);
      output[place] = bad;
      AccuracyMeter meter;
      meter.Add(fixture.exact, 0, 0, 0, columns, logits, output);
      ExpectFinite(meter.Summary());
      EXPECT_EQ(meter.Summary().output_rel_error.max, kNonFiniteError);
      EXPECT_GT(meter.Summary().attention_kl, 87);
    }
  }
}

TEST(Accuracy, QueryThatSeesNothingLosesNothing) {
  TestFile file = MakeTestTrace({.eval_rows = false});
  file.SetMetadata("attn.sliding_window", "1");
  const Fixture fixture = Fixture::Make(file);
  AccuracyMeter meter;
  const std::vector<float> zero(5, 0.0F);
  meter.Add(fixture.exact, 0, 0, 1, Columns(6), std::vector<float>(6, kHidden), zero);
  const Accuracy accuracy = meter.Summary();
  EXPECT_EQ(accuracy.output_rel_error.mean, 0);
  EXPECT_EQ(accuracy.output_cosine, 1);
  EXPECT_EQ(accuracy.attention_kl, 0);
  EXPECT_EQ(accuracy.attention_mass_kept, 1);
  EXPECT_EQ(accuracy.top32_overlap, 1);
}

TEST(Accuracy, UnderflowedProbabilitiesGiveAFiniteDivergence) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({.key_scale = 1e4}));
  const auto full = fixture.exact.Probabilities(0, 0, 0);
  const auto weakest = std::min_element(full.begin(), full.begin() + 7) - full.begin();
  ASSERT_EQ(full[static_cast<std::size_t>(weakest)], 0);
  AccuracyMeter meter;
  meter.Add(fixture.exact, 0, 0, 0, std::vector<std::int64_t>{weakest}, std::vector<float>{-300.0F},
            fixture.exact.Output(0, 0, 0));
  ExpectFinite(meter.Summary());
  EXPECT_GT(meter.Summary().attention_kl, 87);
}

TEST(Accuracy, RelativeErrorDefinesItsEdges) {
  const std::vector<float> zero = {0, 0}, one = {3, 4}, off = {3, 5}, tiny = {1e-40F, 0};
  EXPECT_EQ(RelativeError(zero, zero), 0);
  EXPECT_EQ(RelativeError(one, zero), 1);
  EXPECT_EQ(RelativeError(zero, one), 1);
  EXPECT_DOUBLE_EQ(RelativeError(off, one), 0.2);
  EXPECT_EQ(RelativeError(one, tiny), kNonFiniteError);
}

// 320 samples of different size: in another order the f64 sums would differ in their last bits.
TEST(Accuracy, SummaryDoesNotDependOnOrderOrMerging) {
  const Fixture fixture = Fixture::Make(MakeTestTrace({.tokens = 40, .n_eval = 40}));
  std::mt19937 random(3);
  struct Query {
    int layer, head;
    std::int64_t query;
    std::vector<float> output;
  };
  std::vector<Query> queries;
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 4; ++head) {
      for (std::int64_t query = 0; query < 40; ++query) {
        std::vector<float> output(5);
        for (float& value : output) value = static_cast<float>(random() % 1000) / 500 - 1;
        queries.push_back({layer, head, query, output});
      }
    }
  }
  const auto add = [&](AccuracyMeter& meter, const Query& q) {
    const auto columns = Columns(41 + q.query);
    meter.Add(fixture.exact, q.layer, q.head, q.query, columns,
              fixture.Logits(q.layer, q.head, q.query, columns), q.output);
  };
  AccuracyMeter in_order;
  for (const Query& query : queries) add(in_order, query);
  std::shuffle(queries.begin(), queries.end(), random);
  AccuracyMeter parts[3];
  for (std::size_t i = 0; i < queries.size(); ++i) add(parts[i % 3], queries[i]);
  AccuracyMeter merged;
  for (const AccuracyMeter& part : parts) merged.Merge(part);
  EXPECT_EQ(in_order.Summary().output_rel_error.mean, merged.Summary().output_rel_error.mean);
  EXPECT_EQ(in_order.Summary().output_cosine, merged.Summary().output_cosine);
  EXPECT_EQ(in_order.Summary(1).attention_kl, merged.Summary(1).attention_kl);
  const double both =
      (merged.Summary(0).output_rel_error.mean + merged.Summary(1).output_rel_error.mean) / 2;
  EXPECT_NEAR(merged.Summary().output_rel_error.mean, both, 1e-14);  // layers of equal size
}

TEST(Accuracy, WithoutSamplesAllIsZero) {
  const Accuracy accuracy = AccuracyMeter().Summary();
  EXPECT_EQ(accuracy.output_rel_error.mean, 0);
  EXPECT_EQ(accuracy.output_cosine, 0);
}

// Figures of an independent float64 laboratory for `recency(budget=25%,sinks=4) | kv=f16` on the
// bundled capture: 4 sinks and the newest 252 of 1024 rows stay, eval rows too. Printed to six
// digits there.
TEST(Accuracy, RecencyOnTheBundledCaptureGivesTheOraclesFigures) {
  auto trace = Trace::Open(KVS_DATA_DIR "/smollm2-135m-small.safetensors");
  ASSERT_TRUE(trace.ok()) << trace.message();
  SerialParallel serial;
  auto exact = ExactAttention::Compute(*trace, serial);
  ASSERT_TRUE(exact.ok());
  const Fixture fixture{*std::move(trace), *std::move(exact)};
  AccuracyMeter meter;
  for (int layer = 0; layer < 5; ++layer) {
    for (int head = 0; head < 9; ++head) {
      for (std::int64_t query = 0; query < 48; ++query) {
        std::vector<std::int64_t> kept = {0, 1, 2, 3};
        for (std::int64_t column = 1024 - 252; column <= 1024 + query; ++column) {
          kept.push_back(column);
        }
        meter.Add(fixture.exact, layer, head, query, kept, fixture.Logits(layer, head, query, kept),
                  fixture.exact.Output(layer, head, query));
      }
    }
  }
  const Accuracy accuracy = meter.Summary();
  EXPECT_NEAR(accuracy.attention_kl, 0.670671, 2e-6);
  EXPECT_NEAR(accuracy.attention_mass_kept, 0.6440, 5e-5);
  EXPECT_NEAR(accuracy.top32_overlap, 0.6703, 5e-5);
}

}  // namespace
}  // namespace kvsieve::eval
