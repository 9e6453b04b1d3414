// Which pipelines count as best: kept bytes and mean output error, both the smaller the better.
#include <gtest/gtest.h>

#include <vector>

#include "kvsieve/eval/compare.h"

namespace kvsieve::eval {
namespace {

PipelineResult Point(std::int64_t kept_bytes, double error) {
  PipelineResult result;
  result.bytes.payload_bytes = kept_bytes;
  result.accuracy.emplace();
  result.accuracy->output_rel_error.mean = error;
  return result;
}

std::vector<bool> Front(std::vector<PipelineResult> results) {
  MarkParetoFront(results);
  std::vector<bool> front;
  for (const PipelineResult& result : results) front.push_back(result.pareto);
  return front;
}

TEST(Pareto, KeepsWhatNothingBeatsInBoth) {
  EXPECT_EQ(Front({Point(100, 0.1), Point(50, 0.2), Point(80, 0.3), Point(50, 0.5)}),
            (std::vector<bool>{true, true, false, false}));
}

TEST(Pareto, EqualPointsAreBothBest) {
  EXPECT_EQ(Front({Point(10, 0.1), Point(10, 0.1)}), (std::vector<bool>{true, true}));
}

TEST(Pareto, SameErrorInFewerBytesWins) {
  EXPECT_EQ(Front({Point(10, 0.1), Point(9, 0.1)}), (std::vector<bool>{false, true}));
}

TEST(Pareto, WithoutAccuracyOnlyBytesCount) {
  PipelineResult large = Point(10, 0);
  PipelineResult small = Point(9, 0);
  large.accuracy.reset();
  small.accuracy.reset();
  EXPECT_EQ(Front({large, small}), (std::vector<bool>{false, true}));
}

TEST(PathNames, AreOneWordWhereBothSidesAgree) {
  LayerReport report;
  report.key_path = report.value_path = "fused";
  EXPECT_EQ(PathName(report), "fused");
  report.value_path = "portable";
  EXPECT_EQ(PathName(report), "k:fused v:portable");
}

}  // namespace
}  // namespace kvsieve::eval
