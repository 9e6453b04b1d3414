// How a budget is divided over layers and KV heads: the values of split=.
#ifndef KVSIEVE_EVICT_SPLIT_H_
#define KVSIEVE_EVICT_SPLIT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "evict/row_set.h"
#include "kvsieve/spec_args.h"

namespace kvsieve::evict {

enum class SplitKind : std::uint8_t {
  kUniform,   // every head has its own budget
  kPyramid,   // first layers have more, last layers less (PyramidKV, arXiv:2406.02069)
  kAdaptive,  // heads compete for the rows of their layer, or of the model (AdaKV, 2407.11550)
};

// Among which heads an adaptive split lets rows compete.
enum class SplitScope : std::uint8_t { kLayer, kModel };

struct Split {
  SplitKind kind = SplitKind::kUniform;
  double beta = 20;    // pyramid: the last layer's free rows are 1 / beta of the mean
  double floor = 0.2;  // adaptive: the share of its own budget that every head keeps
  SplitScope scope = SplitScope::kLayer;

  // Whether layers share one budget, so that all of them must be decided together.
  bool over_layers() const {
    return kind == SplitKind::kPyramid ||
           (kind == SplitKind::kAdaptive && scope == SplitScope::kModel);
  }
  std::string Canonical() const;    // "pyramid(beta=20)"
  std::string Explanation() const;  // empty for uniform
};

// Reads split=; mistakes go to `args`.
void ReadSplit(ArgReader& args, Split* split);

// `total` cut in proportion to `weights` [n], at most caps[i] each: exactly min(total, sum of caps)
// altogether, by largest remainder, earlier ones first between equals. What a capped one cannot
// take goes to the others. weights are positive and below 2^34.
std::vector<std::int64_t> Apportion(std::int64_t total, std::span<const std::int64_t> weights,
                                    std::span<const std::int64_t> caps);

// Rows of each set under a pyramid over `layers` layers: protected rows, and of all free rows (the
// budget beyond the protected rows) a share that falls linearly from the first layer to the last.
// set_layers [n]: the layer of each set, in [0, layers).
std::vector<std::int64_t> PyramidRows(const Split& split, std::span<const RowSet> sets,
                                      std::span<const int> set_layers, int layers);

// The scores of one set's rows in order: OrderKey of each, descending.
struct SetKeys {
  std::span<const std::uint64_t> all;
  std::span<const std::uint64_t> of_protected;  // those of its protected rows
};

// What a set keeps of an adaptive split whatever the scores.
std::int64_t AdaptiveLeast(const Split& split, const RowSet& set);

// Rows of each set when the rows of all `sets` compete by score: every set keeps its protected rows
// and ceil(floor * budget), the rest of the sets' budgets goes to the best rows wherever they are.
// Between equal scores the earlier set wins.
std::vector<std::int64_t> AdaptiveRows(const Split& split, std::span<const RowSet> sets,
                                       std::span<const SetKeys> keys);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SPLIT_H_
