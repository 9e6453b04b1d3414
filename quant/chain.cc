// A Chain runs its transforms in order before the codec and backwards after it. Statistics lie
// one stage after the other, the codec's last.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "kvsieve/codec.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

using Transforms = std::span<const std::shared_ptr<const Transform>>;

// The rows of `base` as the stage behind `transforms`, the first ones of `chain`, sees them.
class TransformedRows final : public RowSource {
 public:
  TransformedRows(const RowSource& base, Transforms transforms, const Chain& chain,
                  const ChainStats& stats)
      : base_(base), transforms_(transforms), chain_(chain), stats_(stats) {}

  std::int64_t rows() const override { return base_.rows(); }
  int dim() const override { return base_.dim(); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    base_.ReadRows(first, count, out);
    for (std::size_t i = 0; i < transforms_.size(); ++i) {
      transforms_[i]->Apply(chain_.StageStats(stats_, i), out, count);
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
  const Chain& chain_;
  const ChainStats stats_;
};

// A codec's errors tell elements as it gets them.
Status OfCodec(Status status, Transforms transforms) {
  if (status.ok() || transforms.empty()) return status;
  return Status(status.error().code, StrCat(status.message(), " (after the transforms)"));
}

}  // namespace

Chain::Chain(std::vector<std::shared_ptr<const Transform>> transforms,
             std::shared_ptr<const Codec> codec)
    : transforms_(std::move(transforms)), codec_(std::move(codec)), stats_begin_(1) {
  for (const auto& transform : transforms_) {
    stats_begin_.push_back(stats_begin_.back() + transform->stats_floats());
  }
}

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

bool Chain::BeginsAs(const Chain& other) const {
  return first_stats_floats() > 0 && first_stats_floats() == other.first_stats_floats() &&
         transforms_.front()->Canonical() == other.transforms_.front()->Canonical();
}

Status Chain::Learn(const RowSource& rows, float* stats) const {
  KVS_RETURN_IF_ERROR(LearnFirst(rows, stats));
  return LearnRest(rows, stats, stats + first_stats_floats());
}

Status Chain::LearnFirst(const RowSource& rows, float* first) const {
  return transforms_.empty() ? Status::Ok() : transforms_.front()->Learn(rows, first);
}

Status Chain::LearnRest(const RowSource& rows, const float* first, float* rest) const {
  const ChainStats stats(first, rest);
  const Transforms all(transforms_);
  float* stage_stats = rest;
  for (std::size_t i = 1; i < all.size(); ++i) {
    KVS_RETURN_IF_ERROR(
        all[i]->Learn(TransformedRows(rows, all.first(i), *this, stats), stage_stats));
    stage_stats += all[i]->stats_floats();
  }
  return OfCodec(codec_->Learn(TransformedRows(rows, all, *this, stats), stage_stats), all);
}

Status Chain::Encode(const ChainStats& stats, float* rows, int count, BlockRef block,
                     int first_row) const {
  for (std::size_t i = 0; i < transforms_.size(); ++i) {
    transforms_[i]->Apply(StageStats(stats, i), rows, count);
  }
  return OfCodec(codec_->Encode(CodecStats(stats), rows, count, block, first_row), transforms_);
}

void Chain::Decode(const ChainStats& stats, ConstBlockRef block, int first_row, int count,
                   float* rows) const {
  codec_->Decode(CodecStats(stats), block, first_row, count, rows);
  for (std::size_t i = transforms_.size(); i-- > 0;) {
    transforms_[i]->Invert(StageStats(stats, i), rows, count);
  }
}

void Chain::PrepareQueries(const ChainStats& stats, float* q, int heads, void* prepared,
                           float* bias) const {
  for (int h = 0; h < heads; ++h) {
    float* query = q + static_cast<std::ptrdiff_t>(h) * dim();
    bias[h] = 0.0F;
    for (std::size_t i = 0; i < transforms_.size(); ++i) {
      bias[h] += transforms_[i]->ApplyToQuery(StageStats(stats, i), query);
    }
  }
  codec_->PrepareQueries(q, heads, prepared);
}

void Chain::FinishOutput(const ChainStats& stats, float weight_sum, float* out) const {
  for (std::size_t i = transforms_.size(); i-- > 0;) {
    transforms_[i]->InvertOutput(StageStats(stats, i), weight_sum, out);
  }
}

}  // namespace kvsieve
