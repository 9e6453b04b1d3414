// key_diff: rows whose keys point elsewhere than most stay (KeyDiff, Park et al. 2025,
// arXiv:2504.15364; kvpress KeyDiff). Reads K alone, no query.
//   anchor = mean over rows of k / |k|;   score = -cos(k, anchor)
// A key without a direction (zero, or too long for f32) adds nothing to the anchor and scores 0; so
// does every key when the anchor is zero.
#include <cmath>

#include "evict/head_pass.h"
#include "evict/row_blocks.h"
#include "evict/row_kernels.h"

namespace kvsieve::evict {
namespace {

// 1 / norm, or 0 where that is no number to work with.
float InverseOf(float norm) {
  const float inverse = 1.0F / norm;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

// A worker's memory: one panel, two values per row of a block and per dim.
struct KeyDiffSpace {
  KeyDiffSpace(float* space, int dim)
      : panel(space, dim),
        inverse_norms(space + PanelSpace::Floats(dim)),
        dots(inverse_norms + kBlockRows),
        block_sum(dots + kBlockRows),
        anchor(block_sum + dim) {}
  static std::int64_t Floats(int dim) {
    return PanelSpace::Floats(dim) + 2 * kBlockRows + std::int64_t{2} * dim;
  }

  PanelSpace panel;
  float* inverse_norms;  // [kBlockRows]
  float* dots;           // [kBlockRows]
  float* block_sum;      // [dim]
  float* anchor;         // [dim]
};

class KeyDiff final : public Scorer {
 public:
  explicit KeyDiff(const RowOptions& options) : options_(options) {}

  std::string Canonical() const override { return StrCat("key_diff(", options_.Canonical(), ")"); }
  ScorerNeeds needs() const override { return {}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    return ForEachHead(observation, parallel, KeyDiffSpace::Floats(observation.layer.key_dim),
                       scratch, scores, [&](const HeadPass& pass) { ScoreHead(pass); });
  }

 private:
  void ScoreHead(const HeadPass& pass) const {
    KeyDiffSpace space(pass.space, pass.rows.keys->dim());
    const float inverse_anchor = FindAnchor(*pass.rows.keys, space);
    ForEachBlock(0, pass.rows.keys->rows(), [&](RowIndex first, int count) {
      const float* panel = LoadBlock(*pass.rows.keys, first, count, space);
      ColumnDots(panel, pass.rows.keys->dim(), space.anchor, space.dots);
      for (int i = 0; i < count; ++i) {
        // A row of no direction may have an infinite dot, which 0 would turn into NaN.
        const float inverse = space.inverse_norms[i];
        pass.raw[first + i] = inverse == 0 ? 0.0F : -space.dots[i] * inverse * inverse_anchor;
      }
    });
    SmoothRows(options_.pool, 0, pass.raw, pass.smoothed);
  }

  // The panel of a block; its rows' inverse norms are in `space`, 0 behind the last row.
  static const float* LoadBlock(const RowSource& keys, RowIndex first, int count,
                                KeyDiffSpace& space) {
    const float* panel = space.panel.Load(keys, first, count);
    ColumnNorms(panel, keys.dim(), space.inverse_norms);
    for (int i = 0; i < kBlockRows; ++i) {
      space.inverse_norms[i] = i < count ? InverseOf(space.inverse_norms[i]) : 0.0F;
    }
    return panel;
  }

  // The anchor up to a factor, which a cosine does not see; returns 1 / its norm. Sums run within
  // blocks first: off by at most (64 + blocks + 1) * 2^-24 of the summed magnitudes.
  static float FindAnchor(const RowSource& keys, KeyDiffSpace& space) {
    const auto dim = static_cast<std::size_t>(keys.dim());
    std::fill_n(space.anchor, dim, 0.0F);
    ForEachBlock(0, keys.rows(), [&](RowIndex first, int count) {
      const float* panel = LoadBlock(keys, first, count, space);
      WeightedRowSum(panel, keys.dim(), space.inverse_norms, space.block_sum);
      for (std::size_t d = 0; d < dim; ++d) space.anchor[d] += space.block_sum[d];
    });
    double square = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      square += static_cast<double>(space.anchor[d]) * space.anchor[d];
    }
    return InverseOf(static_cast<float>(std::sqrt(square)));
  }

  RowOptions options_;
};

}  // namespace

ScorerParts MakeKeyDiff(ArgReader& args, const Selection&) {
  const RowOptions options = ReadRowOptions(args);
  return {std::make_unique<KeyDiff>(options), options.scope};
}

}  // namespace kvsieve::evict
