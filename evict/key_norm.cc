// key_norm: rows with short keys stay (Devoto et al. 2024, arXiv:2406.11430, "a simple and
// effective L2 norm-based strategy"; kvpress Knorm). Reads K alone, no query.
//   score = -|k|
// The sign is the paper's finding: attention sinks and other much-attended rows have short keys.
#include "evict/head_pass.h"
#include "evict/row_blocks.h"
#include "evict/row_kernels.h"

namespace kvsieve::evict {
namespace {

class KeyNorm final : public Scorer {
 public:
  explicit KeyNorm(const RowOptions& options) : options_(options) {}

  std::string Canonical() const override { return StrCat("key_norm(", options_.Canonical(), ")"); }
  ScorerNeeds needs() const override { return {}; }

  Status Score(const Observation& observation, Parallel& parallel, ScoreScratch* scratch,
               Scores* scores) const override {
    const std::int64_t space = PanelSpace::Floats(observation.layer.key_dim) + kBlockRows;
    return ForEachHead(observation, parallel, space, scratch, scores,
                       [&](const HeadPass& pass) { ScoreHead(pass); });
  }

 private:
  void ScoreHead(const HeadPass& pass) const {
    const int dim = pass.rows.keys->dim();
    PanelSpace panel(pass.space, dim);
    float* norms = pass.space + PanelSpace::Floats(dim);
    ForEachBlock(0, pass.rows.keys->rows(), [&](RowIndex first, int count) {
      ColumnNorms(panel.Load(*pass.rows.keys, first, count), dim, norms);
      for (int i = 0; i < count; ++i) pass.raw[first + i] = -norms[i];
    });
    SmoothRows(options_.pool, 0, pass.raw, pass.smoothed);
  }

  RowOptions options_;
};

}  // namespace

ScorerParts MakeKeyNorm(ArgReader& args, const Selection&) {
  const RowOptions options = ReadRowOptions(args);
  return {std::make_unique<KeyNorm>(options), options.scope};
}

}  // namespace kvsieve::evict
