// Selectors against plain references: units, thresholds, shares of the mass.
#include "evict/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace kvsieve::evict {
namespace {

using Rows = std::vector<RowIndex>;

struct Problem {
  std::vector<float> smoothed;
  std::vector<float> raw;
  std::vector<RowRange> kept;
  std::int64_t best = 0;
  Ties ties = Ties::kLowPosition;

  RowIndex rows() const { return static_cast<RowIndex>(raw.size()); }
  bool free(RowIndex row) const {
    return std::none_of(kept.begin(), kept.end(), [&](const RowRange& range) {
      return row >= range.begin && row < range.end;
    });
  }
  std::int64_t FreeRows() const {
    std::int64_t count = 0;
    for (RowIndex row = 0; row < rows(); ++row) count += free(row) ? 1 : 0;
    return count;
  }
};

// `values` small: many ties.
Problem RandomProblem(std::mt19937_64& rng, int values) {
  Problem problem;
  const auto rows = static_cast<RowIndex>(rng() % 90);
  for (RowIndex row = 0; row < rows; ++row) {
    problem.raw.push_back(static_cast<float>(rng() % static_cast<unsigned>(values)));
    problem.smoothed.push_back(static_cast<float>(rng() % static_cast<unsigned>(values)));
  }
  for (RowIndex begin = static_cast<RowIndex>(rng() % 9); begin < rows;) {
    const RowIndex end = std::min<RowIndex>(rows, begin + 1 + static_cast<RowIndex>(rng() % 9));
    problem.kept.push_back({begin, end});
    begin = end + 1 + static_cast<RowIndex>(rng() % 40);
  }
  problem.best = static_cast<std::int64_t>(rng() % static_cast<unsigned>(problem.FreeRows() + 1));
  problem.ties = rng() % 2 == 0 ? Ties::kLowPosition : Ties::kHighPosition;
  return problem;
}

Rows Select(const SelectRule& rule, const Problem& problem) {
  SelectScratch scratch;
  scratch.Reserve(rule, problem.raw.size());
  Rows rows;
  SelectSet(rule, {problem.smoothed, problem.raw}, problem.kept, problem.best, problem.ties,
            &scratch, &rows);
  return rows;
}

// Free rows, best first.
Rows Ranked(const Problem& problem) {
  Rows rows;
  for (RowIndex row = 0; row < problem.rows(); ++row) {
    if (problem.free(row)) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(), [&](RowIndex a, RowIndex b) {
    if (problem.smoothed[a] != problem.smoothed[b]) {
      return problem.smoothed[a] > problem.smoothed[b];
    }
    if (problem.raw[a] != problem.raw[b]) return problem.raw[a] > problem.raw[b];
    return problem.ties == Ties::kLowPosition ? a < b : a > b;
  });
  return rows;
}

Rows WithKept(const Problem& problem, const Rows& chosen) {
  std::set<RowIndex> rows(chosen.begin(), chosen.end());
  for (const RowRange& range : problem.kept) {
    for (RowIndex row = range.begin; row < range.end; ++row) rows.insert(row);
  }
  return {rows.begin(), rows.end()};
}

// chunk: rows that follow each other with no protected row between, n at a time. block: row / n.
Rows KeptInUnits(const Problem& problem, std::int64_t n, bool blocks) {
  std::vector<Rows> units;
  for (RowIndex row = 0; row < problem.rows(); ++row) {
    if (!problem.free(row)) continue;
    const bool joins =
        !units.empty() && (blocks ? units.back().back() / n == row / n
                                  : units.back().back() == row - 1 &&
                                        static_cast<std::int64_t>(units.back().size()) < n);
    if (joins) {
      units.back().push_back(row);
    } else {
      units.push_back({row});
    }
  }
  const auto mean = [](const std::vector<float>& scores, const Rows& unit) {
    double sum = 0;
    for (const RowIndex row : unit) sum += scores[row];
    return static_cast<float>(sum / static_cast<double>(unit.size()));
  };
  std::stable_sort(units.begin(), units.end(), [&](const Rows& a, const Rows& b) {
    if (mean(problem.smoothed, a) != mean(problem.smoothed, b)) {
      return mean(problem.smoothed, a) > mean(problem.smoothed, b);
    }
    if (mean(problem.raw, a) != mean(problem.raw, b)) {
      return mean(problem.raw, a) > mean(problem.raw, b);
    }
    return problem.ties == Ties::kLowPosition ? a.front() < b.front() : a.front() > b.front();
  });
  Rows chosen;
  std::int64_t left = problem.best;
  for (const Rows& unit : units) {
    if (static_cast<std::int64_t>(unit.size()) > left) break;
    chosen.insert(chosen.end(), unit.begin(), unit.end());
    left -= static_cast<std::int64_t>(unit.size());
  }
  for (const RowIndex row : Ranked(problem)) {
    if (left == 0) break;
    if (std::find(chosen.begin(), chosen.end(), row) != chosen.end()) continue;
    chosen.push_back(row);
    --left;
  }
  return WithKept(problem, chosen);
}

TEST(Selector, UnitsMatchAPlainReference) {
  std::mt19937_64 rng(61);
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    const Problem problem = RandomProblem(rng, round % 2 == 0 ? 3 : 1000);
    const auto n = static_cast<std::int64_t>(1 + rng() % 20);
    ASSERT_EQ(Select({SelectKind::kChunk, n, 0}, problem), KeptInUnits(problem, n, false));
    ASSERT_EQ(Select({SelectKind::kBlock, n, 0}, problem), KeptInUnits(problem, n, true));
  }
}

TEST(Selector, UnitsOfOneRowAreTopK) {
  std::mt19937_64 rng(62);
  for (int round = 0; round < 200; ++round) {
    const Problem problem = RandomProblem(rng, 5);
    const Rows expected = Select({SelectKind::kTopK, 1, 0}, problem);
    EXPECT_EQ(Select({SelectKind::kChunk, 1, 0}, problem), expected);
    EXPECT_EQ(Select({SelectKind::kBlock, 1, 0}, problem), expected);
  }
}

TEST(Selector, BlocksLieOnTheGridOfAPagedCache) {
  Problem problem;
  problem.raw.assign(64, 0.0F);
  for (RowIndex row = 32; row < 48; ++row) problem.raw[row] = 1.0F;
  problem.smoothed = problem.raw;
  problem.kept = {{0, 4}};
  problem.best = 16;
  const Rows blocks = Select({SelectKind::kBlock, 16, 0}, problem);
  EXPECT_EQ(blocks.size(), 20U);
  EXPECT_EQ(blocks[4], 32);
  EXPECT_EQ(blocks[19], 47);
  // Chunks start behind the sinks: rows 20..35 and 36..51 hold 4 and 12 of the good rows.
  const Rows chunks = Select({SelectKind::kChunk, 16, 0}, problem);
  EXPECT_EQ(chunks[4], 36);
  EXPECT_EQ(chunks[19], 51);
}

TEST(Selector, AUnitWithANaNIsTheWorst) {
  Problem problem;
  problem.raw = {9, 9, 9, std::numeric_limits<float>::quiet_NaN(), 1, 1, 1, 1};
  problem.smoothed = problem.raw;
  problem.best = 4;
  EXPECT_EQ(Select({SelectKind::kBlock, 4, 0}, problem), Rows({4, 5, 6, 7}));
}

TEST(Selector, AThresholdKeepsWhatReachesItUpToTheBudget) {
  std::mt19937_64 rng(63);
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    const Problem problem = RandomProblem(rng, 7);
    const double threshold = static_cast<double>(rng() % 9) - 0.5;
    Rows chosen;
    for (const RowIndex row : Ranked(problem)) {
      if (problem.smoothed[row] >= threshold &&
          static_cast<std::int64_t>(chosen.size()) < problem.best) {
        chosen.push_back(row);
      }
    }
    ASSERT_EQ(Select({SelectKind::kThreshold, 1, threshold}, problem), WithKept(problem, chosen));
  }
}

// Scores are small integers, so that sums are exact in any order.
TEST(Selector, TopPKeepsTheFewestRowsThatHoldTheShare) {
  std::mt19937_64 rng(64);
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    const Problem problem = RandomProblem(rng, 7);
    const double share = static_cast<double>(1 + rng() % 8) / 8;
    double total = 0;
    double held = 0;
    for (RowIndex row = 0; row < problem.rows(); ++row) {
      total += problem.raw[row];
      if (!problem.free(row)) held += problem.raw[row];
    }
    Rows chosen;
    for (const RowIndex row : Ranked(problem)) {
      if (held >= share * total || static_cast<std::int64_t>(chosen.size()) == problem.best) break;
      chosen.push_back(row);
      held += problem.raw[row];
    }
    ASSERT_EQ(Select({SelectKind::kTopP, 1, share}, problem), WithKept(problem, chosen));
  }
}

TEST(Selector, NegativeAndMissingScoresHoldNothing) {
  Problem problem;
  problem.raw = {-5, 4, std::numeric_limits<float>::quiet_NaN(), 4, -1};
  problem.smoothed = problem.raw;
  problem.best = 5;
  EXPECT_EQ(Select({SelectKind::kTopP, 1, 0.5}, problem), Rows({1}));
  EXPECT_EQ(Select({SelectKind::kTopP, 1, 1.0}, problem), Rows({1, 3}));
}

}  // namespace
}  // namespace kvsieve::evict
