// lag: rows whose keys and values stand out from the rows that follow them stay (LagKV, Liang et
// al. 2025, arXiv:2504.04704; kvpress LagKV). Reads K and V, no query.
//
// The rows after the first `sinks` are cut into partitions of `lag` rows. For a row x of partition
// p, of K and of V:
//   low, high   = minimum and maximum of each channel over partition p + 1
//   deviation   = standard deviation over channels (divisor dim - 1) of (x - low) / (high - low)
//   share       = softmax of the deviation over the rows of partition p
//   score       = (share of K + share of V) / 2
// and with across=rank, as published, the number of rows of the partition with a smaller score,
// over lag: every partition keeps the same share of its rows. across=score compares the scores.
//
// A channel that is constant over the next partition has no scale and counts as 0 (the original
// divides by zero). Rows that no partition follows (the last, the remainder behind it, and every
// row of a prompt shorter than sinks + 2 lag) and the sinks have no score; they stay before all
// others, the newest first: 1 + row / rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "evict/head_pass.h"
#include "evict/row_blocks.h"
#include "evict/row_kernels.h"

namespace kvsieve::evict {
namespace {

constexpr std::string_view kAcrossNames[] = {"rank", "score"};
enum class Across : std::uint8_t { kRank, kScore };

struct LagOptions {
  int lag = 128;
  Across across = Across::kRank;
  Scope scope = Scope::kKvHead;
  std::int64_t sinks = 0;  // the selection's: where partitions begin
};

// A worker's memory for rows of at most `dim` elements.
struct LagSpace {
  LagSpace(float* space, int dim)
      : panel(space, dim),
        low(space + PanelSpace::Floats(dim)),
        high(low + dim),
        block(high + dim),
        shares(block + kBlockRows) {}
  static std::int64_t Floats(int dim, int lag) {
    return PanelSpace::Floats(dim) + std::int64_t{2} * dim + kBlockRows + lag;
  }

  PanelSpace panel;
  float* low;     // [dim]
  float* high;    // [dim]; then 1 / (high - low)
  float* block;   // [kBlockRows]
  float* shares;  // [lag]
};

class Lag final : public Scorer {
 public:
  explicit Lag(const LagOptions& options) : options_(options) {}

  std::string Canonical() const override {
    return StrCat("lag(lag=", options_.lag,
                  ",across=", kAcrossNames[static_cast<int>(options_.across)],
                  ",scope=", ScopeName(options_.scope), ")");
  }
  ScorerNeeds needs() const override { return {.values = true}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    const int dim = std::max(observation.layer.key_dim, observation.layer.value_dim);
    return ForEachHead(observation, parallel, LagSpace::Floats(dim, options_.lag), scratch, scores,
                       [&](const HeadPass& pass) { ScoreHead(pass, LagSpace(pass.space, dim)); });
  }

 private:
  void ScoreHead(const HeadPass& pass, LagSpace space) const {
    const auto rows = static_cast<RowIndex>(pass.raw.size());
    for (RowIndex r = 0; r < rows; ++r) {
      pass.raw[r] = 1.0F + static_cast<float>(r) / static_cast<float>(rows);
    }
    const RowIndex lag = options_.lag;
    for (RowIndex begin = options_.sinks; begin + 2 * lag <= rows; begin += lag) {
      const std::span<float> scores = pass.raw.subspan(begin, lag);
      std::fill(scores.begin(), scores.end(), 0.0F);
      AddShares(*pass.rows.keys, begin, scores, space);
      AddShares(*pass.rows.values, begin, scores, space);
      if (options_.across == Across::kRank) ToRanks(scores, space.shares);
    }
    std::copy(pass.raw.begin(), pass.raw.end(), pass.smoothed.begin());
  }

  // Adds half of each row's share to the scores of the partition that begins at `begin`.
  void AddShares(const RowSource& source, RowIndex begin, std::span<float> scores,
                 LagSpace& space) const {
    const RowIndex next = begin + options_.lag;
    FindScale(source, next, space);
    float top = 0;
    ForEachBlock(begin, next, [&](RowIndex first, int count) {
      ColumnDeviations(space.panel.Load(source, first, count), source.dim(), space.low, space.high,
                       space.block);
      std::copy_n(space.block, count, space.shares + (first - begin));
      top = std::max(top, *std::max_element(space.block, space.block + count));
    });
    const double sum = ExpBelow(top, options_.lag, space.shares);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] += static_cast<float>(0.5 * space.shares[i] / sum);
    }
  }

  // low and 1 / (high - low) of each channel over the partition that begins at `begin`.
  void FindScale(const RowSource& source, RowIndex begin, LagSpace& space) const {
    const int dim = source.dim();
    std::fill_n(space.low, dim, std::numeric_limits<float>::max());
    std::fill_n(space.high, dim, std::numeric_limits<float>::lowest());
    ForEachBlock(begin, begin + options_.lag, [&](RowIndex first, int count) {
      WidenRange(space.panel.Load(source, first, count), dim, count, space.low, space.high);
    });
    for (int d = 0; d < dim; ++d) {
      const float inverse = 1.0F / (space.high[d] - space.low[d]);
      space.high[d] = std::isfinite(inverse) ? inverse : 0.0F;
    }
  }

  // Equal scores have equal ranks: the selection's tie rule decides between them.
  static void ToRanks(std::span<float> scores, float* sorted) {
    float* end = std::copy(scores.begin(), scores.end(), sorted);
    std::sort(sorted, end);
    for (float& score : scores) {
      const auto smaller = std::lower_bound(sorted, end, score) - sorted;
      score = static_cast<float>(smaller) / static_cast<float>(scores.size());
    }
  }

  LagOptions options_;
};

}  // namespace

ScorerParts MakeLag(ArgReader& args, const Selection& selection) {
  constexpr int kMaxLag = 65536;
  LagOptions options;
  options.sinks = selection.sinks;
  args.Int("lag", &options.lag, 2, kMaxLag);
  int across = static_cast<int>(options.across);
  args.Choice("across", kAcrossNames, &across);
  options.across = static_cast<Across>(across);
  ReadScope(args, &options.scope);
  return {std::make_unique<Lag>(options), options.scope};
}

}  // namespace kvsieve::evict
