// Rows that lie as f16, for benchmarks that feed evict stages.
#ifndef KVSIEVE_BENCH_F16_ROWS_H_
#define KVSIEVE_BENCH_F16_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "kvsieve/float16.h"
#include "kvsieve/types.h"

namespace kvsieve::bench {

// Row-major f16 rows of one head.
class F16Rows final : public RowSource {
 public:
  F16Rows(const F16* data, std::int64_t rows, int dim) : data_(data), rows_(rows), dim_(dim) {
    for (std::int64_t i = 0; i < rows * dim; ++i) {
      largest_ = std::max(largest_, std::fabs(ToFloat(data[i])));
    }
  }
  std::int64_t rows() const override { return rows_; }
  int dim() const override { return dim_; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    ConvertToF32(data_ + first * dim_, ElementType::kF16, std::int64_t{count} * dim_, out);
  }
  std::optional<RowMajor> TryView() const override {
    return RowMajor{data_, ElementType::kF16, dim_};
  }
  float LargestMagnitude() const override { return largest_; }

 private:
  const F16* data_;
  std::int64_t rows_;
  int dim_;
  float largest_ = 0;
};

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_F16_ROWS_H_
