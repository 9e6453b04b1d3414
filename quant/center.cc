// center: keys minus one mean vector per head. Exact for attention: the mean adds q.mean to every
// logit of the rows stored this way, which ApplyToQuery returns for the caller to add back, so
// that exact rows beside them stay comparable.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kvsieve/str_cat.h"
#include "kvsieve/typical_length.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

class CenterTransform final : public Transform {
 public:
  explicit CenterTransform(int dim) : dim_(dim) {}

  std::string Canonical() const override { return "center"; }
  int stats_floats() const override { return dim_; }
  // The attention sink's key is short; minus the mean it is long, and so is its error.
  bool wants_exact_sinks() const override { return true; }

  // stats: f32 mean [dim] of the typical rows (LongestTypical), summed in f64. No rows: zero.
  Status Learn(const RowSource& rows, float* stats) const override {
    std::vector<double> sums(static_cast<std::size_t>(dim_));
    std::vector<float> lengths;
    lengths.reserve(static_cast<std::size_t>(rows.rows()));
    const auto add = [&](const float* row) {
      for (int j = 0; j < dim_; ++j) sums[j] += row[j];
    };
    KVS_RETURN_IF_ERROR(ForEachRow(rows, [&](RowIndex, const float* row) {
      add(row);
      lengths.push_back(RowLength(row, dim_));
      return Status::Ok();
    }));
    const float longest = LongestTypical(lengths);
    const auto is_typical = [&](float length) { return length <= longest; };
    const auto typical = std::count_if(lengths.begin(), lengths.end(), is_typical);
    if (typical < rows.rows()) {  // rare: so rows are read twice only then
      std::fill(sums.begin(), sums.end(), 0.0);
      KVS_RETURN_IF_ERROR(ForEachRow(rows, [&](RowIndex r, const float* row) {
        if (is_typical(lengths[r])) add(row);
        return Status::Ok();
      }));
    }
    const double count = typical > 0 ? static_cast<double>(typical) : 1.0;
    for (int j = 0; j < dim_; ++j) stats[j] = static_cast<float>(sums[j] / count);
    // A small rest added to a mean at the end of f32 could pass it.
    for (int j = 0; j < dim_; ++j) {
      if (std::fabs(stats[j]) <= kMaxScaled) continue;
      return Status::Invalid(StrCat("have the mean ", stats[j], " in element ", j,
                                    "; center holds at most ", kMaxScaled));
    }
    return Status::Ok();
  }

  // The mean is no larger than the rows.
  float BoundAfter(float magnitude) const override { return 2 * magnitude * (1 + 0x1p-20F); }

  void Apply(const float* stats, float* rows, int count) const override {
    for (int r = 0; r < count; ++r, rows += dim_) {
      for (int j = 0; j < dim_; ++j) rows[j] -= stats[j];
    }
  }
  void Invert(const float* stats, float* rows, int count) const override {
    for (int r = 0; r < count; ++r, rows += dim_) {
      for (int j = 0; j < dim_; ++j) rows[j] += stats[j];
    }
  }
  float ApplyToQuery(const float* stats, float* q) const override {
    // Once per query and store: one sum alone would wait for each of its additions, which took
    // longer than all else that is done to a query.
    constexpr int kSums = 8;
    double sums[kSums] = {};
    int j = 0;
    for (; j + kSums <= dim_; j += kSums) {
      for (int i = 0; i < kSums; ++i) sums[i] += static_cast<double>(q[j + i]) * stats[j + i];
    }
    for (; j < dim_; ++j) sums[0] += static_cast<double>(q[j]) * stats[j];
    return static_cast<float>(std::accumulate(sums, sums + kSums, 0.0));
  }
  void InvertOutput(const float* stats, float weight_sum, float* out) const override {
    for (int j = 0; j < dim_; ++j) out[j] += weight_sum * stats[j];
  }

 private:
  int dim_;
};

Result<std::shared_ptr<const Transform>> Make(const SpecCall& call, int dim) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return std::shared_ptr<const Transform>(std::make_shared<CenterTransform>(dim));
}

}  // namespace

extern const TransformEntry kCenterTransform = {
    {"center", "Subtracts the mean row of the head; exact for attention.",
     "y = x - mean; q.x = q.y + q.mean; sum w x = sum w y + (sum w) mean", ""},
    OutlineName,
    Make,
    /*wants_exact_sinks=*/true,
    /*rotates=*/false};

}  // namespace kvsieve::quant
