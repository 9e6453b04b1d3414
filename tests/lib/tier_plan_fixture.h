// Plans in bytes (lib/tier_plan.h), seen through caches and held against what rows are worth, asked
// of the same units one by one: LossEstimator::Estimate and MeasureErrors.
#ifndef KVSIEVE_TESTS_LIB_TIER_PLAN_FIXTURE_H_
#define KVSIEVE_TESTS_LIB_TIER_PLAN_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/lib/cache_fixture.h"

namespace kvsieve::tier_plan_test {

inline constexpr std::int64_t kQueries = 32;

// Row-major f32 rows of one head.
class PlainRows final : public RowSource {
 public:
  PlainRows(const float* data, std::int64_t rows, int dim) : data_(data), rows_(rows), dim_(dim) {}
  std::int64_t rows() const override { return rows_; }
  int dim() const override { return dim_; }
  void ReadRows(RowIndex first, int count, float* out) const override {
    std::copy_n(data_ + first * dim_, std::int64_t{count} * dim_, out);
  }
  std::optional<RowMajor> TryView() const override {
    return RowMajor{data_, ElementType::kF32, dim_};
  }

 private:
  const float* data_;
  std::int64_t rows_;
  int dim_;
};

// What a row loses in each tier, and when it is dropped. Exact rows lose nothing.
struct RowLoss {
  std::vector<double> in_tier;
  double drop = 0;
};

// The rows of every layer, and its last queries.
struct Model {
  std::vector<LayerSpec> layers;
  std::vector<cache_test::Prompt> prompts;
  std::vector<std::vector<float>> queries;  // of the last rows, kQueries at most

  // Keys lean along a few directions, of which queries see some: attention has peaks.
  Model(std::vector<LayerSpec> specs, std::int64_t rows, std::uint64_t seed);

  std::int64_t Window(std::size_t layer) const;
  // Chunks of `chunk` rows; 0: at once. Staged: the prompt is not finished.
  Cache Staged(std::string_view spec, std::int64_t chunk = 0, Parallel* parallel = nullptr) const;
  Cache Finished(std::string_view spec, std::int64_t chunk = 0, Parallel* parallel = nullptr) const;
  // How the cache is given the rows. What rows lose is told of f32.
  ElementType type = ElementType::kF32;
  // Positions become 0, n, 2n, ...
  void SpreadPositions(TokenPos n);

  // f16 of all rows that a plain engine would hold.
  std::int64_t FullBytes() const;
  std::int64_t FullBytes(std::size_t layer) const;

  // [kv_heads][rows] of one layer.
  std::vector<std::vector<RowLoss>> LossesOf(std::string_view spec, std::size_t layer) const;
};

// Where each row of a head is: kDropped, Cache::kExactRow, or its tier. [rows of the prompt]
inline constexpr std::int32_t kDropped = -2;
std::vector<std::int32_t> PlaceOfRows(const Cache& cache, int layer, int head, std::int64_t rows);

// Expected loss of what the cache holds, over all layers that are planned.
double LossOf(const Model& model, std::string_view spec, const Cache& cache);

// "waterfill(budget=<bytes>B<more>) | tiers=[<tiers>]<rest>"
std::string SpecOf(std::int64_t bytes, std::string_view more, std::string_view tiers,
                   std::string_view rest = "");

}  // namespace kvsieve::tier_plan_test

#endif  // KVSIEVE_TESTS_LIB_TIER_PLAN_FIXTURE_H_
