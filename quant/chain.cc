// A Chain runs its transforms in order before the codec and backwards after it. Statistics lie
// one stage after the other, the codec's last.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "kvsieve/codec.h"

namespace kvsieve {
namespace {

using Transforms = std::span<const std::shared_ptr<const Transform>>;

// The rows of `base` as the stage behind `transforms` sees them.
class TransformedRows final : public RowSource {
 public:
  TransformedRows(const RowSource& base, Transforms transforms, const float* stats)
      : base_(base), transforms_(transforms), stats_(stats) {}

  std::int64_t rows() const override { return base_.rows(); }
  int dim() const override { return base_.dim(); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    base_.ReadRows(first, count, out);
    const float* stats = stats_;
    for (const auto& transform : transforms_) {
      transform->Apply(stats, out, count);
      stats += transform->stats_floats();
    }
  }
  float LargestMagnitude() const override {
    float bound = base_.LargestMagnitude();
    for (const auto& transform : transforms_) bound = transform->BoundAfter(bound);
    return bound;
  }

 private:
  const RowSource& base_;
  Transforms transforms_;
  const float* stats_;
};

}  // namespace

Chain::Chain(std::vector<std::shared_ptr<const Transform>> transforms,
             std::shared_ptr<const Codec> codec)
    : transforms_(std::move(transforms)), codec_(std::move(codec)) {}

std::string Chain::Canonical() const {
  std::string text;
  for (const auto& transform : transforms_) {
    const std::string name = transform->Canonical();
    if (!name.empty()) text += name + '+';  // a codec's own rotation has no name
  }
  return text + codec_->Canonical();
}

bool Chain::wants_exact_sinks() const {
  return std::any_of(transforms_.begin(), transforms_.end(),
                     [](const auto& transform) { return transform->wants_exact_sinks(); });
}

int Chain::stats_floats() const {
  int floats = codec_->stats_floats();
  for (const auto& transform : transforms_) floats += transform->stats_floats();
  return floats;
}

Status Chain::Learn(const RowSource& rows, float* stats) const {
  float* stage_stats = stats;
  const Transforms all(transforms_);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const TransformedRows seen(rows, all.first(i), stats);
    KVS_RETURN_IF_ERROR(all[i]->Learn(seen, stage_stats));
    stage_stats += all[i]->stats_floats();
  }
  return codec_->Learn(TransformedRows(rows, all, stats), stage_stats);
}

Status Chain::Encode(const float* stats, float* rows, int count, BlockRef block,
                     int first_row) const {
  for (const auto& transform : transforms_) {
    transform->Apply(stats, rows, count);
    stats += transform->stats_floats();
  }
  return codec_->Encode(stats, rows, count, block, first_row);
}

void Chain::Decode(const float* stats, ConstBlockRef block, int first_row, int count,
                   float* rows) const {
  const float* stage_stats = stats + (stats_floats() - codec_->stats_floats());
  codec_->Decode(stage_stats, block, first_row, count, rows);
  for (std::size_t i = transforms_.size(); i-- > 0;) {
    stage_stats -= transforms_[i]->stats_floats();
    transforms_[i]->Invert(stage_stats, rows, count);
  }
}

void Chain::PrepareQueries(const float* stats, float* q, int heads, void* prepared,
                           float* bias) const {
  for (int h = 0; h < heads; ++h) {
    const float* stage_stats = stats;
    float* query = q + static_cast<std::ptrdiff_t>(h) * dim();
    bias[h] = 0.0F;
    for (const auto& transform : transforms_) {
      bias[h] += transform->ApplyToQuery(stage_stats, query);
      stage_stats += transform->stats_floats();
    }
  }
  codec_->PrepareQueries(q, heads, prepared);
}

void Chain::FinishOutput(const float* stats, float weight_sum, float* out) const {
  const float* stage_stats = stats + (stats_floats() - codec_->stats_floats());
  for (std::size_t i = transforms_.size(); i-- > 0;) {
    stage_stats -= transforms_[i]->stats_floats();
    transforms_[i]->InvertOutput(stage_stats, weight_sum, out);
  }
}

}  // namespace kvsieve
