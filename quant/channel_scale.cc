// channel_scale: each channel divided by the root of its largest magnitude (the channel-separable
// coder of ZipCache, arXiv 2405.14256), so that channels with outliers take less of a row's scale.
// Exact for attention: queries are multiplied by the same factors, outputs of values too.
#include <algorithm>
#include <cmath>

#include "kvsieve/str_cat.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

// A later row may hold up to kMaxScaled = 2^112 in this basis; with factors of at most 2^12 it
// comes back within f32.
constexpr float kMaxMagnitude = 0x1p24F;

class ChannelScaleTransform final : public Transform {
 public:
  explicit ChannelScaleTransform(int dim) : dim_(dim) {}

  std::string Canonical() const override { return "channel_scale"; }
  int stats_floats() const override { return dim_; }

  // stats: f32 factors [dim], the roots; 1 for a channel of zeros.
  Status Learn(const RowSource& rows, float* stats) const override {
    std::fill(stats, stats + dim_, 0.0F);
    Status read = ForEachRow(rows, [&](RowIndex r, const float* row) -> Status {
      KVS_RETURN_IF_ERROR(CheckFinite(row, dim_, r, "channel_scale"));
      for (int j = 0; j < dim_; ++j) {
        const float magnitude = std::fabs(row[j]);
        stats[j] = magnitude > stats[j] ? magnitude : stats[j];
        if (magnitude <= kMaxMagnitude) continue;
        return Status::Invalid(StrCat("row ", r, ", element ", j, " is ", row[j],
                                      "; channel_scale holds at most ", kMaxMagnitude));
      }
      return Status::Ok();
    });
    if (!read.ok()) return read;
    for (int j = 0; j < dim_; ++j) stats[j] = stats[j] == 0.0F ? 1.0F : std::sqrt(stats[j]);
    return Status::Ok();
  }

  void Apply(const float* stats, float* rows, int count) const override {
    for (int r = 0; r < count; ++r, rows += dim_) {
      for (int j = 0; j < dim_; ++j) rows[j] /= stats[j];
    }
  }
  void Invert(const float* stats, float* rows, int count) const override {
    for (int r = 0; r < count; ++r, rows += dim_) {
      for (int j = 0; j < dim_; ++j) rows[j] *= stats[j];
    }
  }
  float ApplyToQuery(const float* stats, float* q) const override {
    for (int j = 0; j < dim_; ++j) q[j] *= stats[j];
    return 0.0F;
  }
  void InvertOutput(const float* stats, float, float* out) const override {
    for (int j = 0; j < dim_; ++j) out[j] *= stats[j];
  }

 private:
  int dim_;
};

Result<std::shared_ptr<const Transform>> Make(const SpecCall& call, int dim) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return std::shared_ptr<const Transform>(std::make_shared<ChannelScaleTransform>(dim));
}

}  // namespace

extern const TransformEntry kChannelScaleTransform = {
    {"channel_scale", "Divides each channel by the root of its largest magnitude; exact.",
     "y_j = x_j / sqrt(max|x_j|) over the rows of the head; q.x = (q_j sqrt(max|x_j|)).y "
     "(arXiv 2405.14256)",
     ""},
    OutlineName,
    Make,
    /*wants_exact_sinks=*/false,
    /*rotates=*/false};

}  // namespace kvsieve::quant
