#include "lib/tier_steps.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/tier_steps.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kLargest = std::numeric_limits<float>::max();

// Slopes between rungs a < b are multiplied out beforehand.
struct InverseBytes {
  explicit InverseBytes(const Ladder& ladder) {
    for (int a = 0; a < ladder.rungs; ++a) {
      for (int b = a + 1; b <= ladder.rungs; ++b) {
        between[a][b] = 1.0F / (ladder.bytes[b] - ladder.bytes[a]);
      }
    }
  }
  float between[kMaxRungs][kMaxRungs + 1] = {};
};

// The steps of the rows in one vector; `losses` is [rungs + 1] vectors of memory.
template <class D>
HWY_INLINE void StepsOf(D d, const Ladder& ladder, const InverseBytes& inverse, const float* losses,
                        std::size_t rows, float* steps) {
  const std::size_t lanes = hn::Lanes(d);
  for (int i = 1; i <= ladder.rungs; ++i) {
    auto least = hn::Set(d, kLargest);
    for (int a = 0; a < i; ++a) {
      const auto from = hn::LoadU(d, losses + a * lanes);
      auto most = hn::Set(d, -kLargest);
      for (int b = i; b <= ladder.rungs; ++b) {
        const auto gain = hn::Sub(from, hn::LoadU(d, losses + b * lanes));
        most = hn::Max(most, hn::Mul(gain, hn::Set(d, inverse.between[a][b])));
      }
      least = hn::Min(least, most);
    }
    hn::StoreU(least, d, steps + (i - 1) * rows);
  }
}

template <class D>
HWY_INLINE void LossesOf(D d, const Ladder& ladder, const RowLossSpans& rows, std::size_t row,
                         float* losses) {
  const std::size_t lanes = hn::Lanes(d);
  const auto key = hn::LoadU(d, rows.key.data() + row);
  const auto value = hn::LoadU(d, rows.value.data() + row);
  hn::StoreU(hn::LoadU(d, rows.drop.data() + row), d, losses);
  for (int i = 1; i <= ladder.rungs; ++i) {
    // Not fused: the same bits on every target.
    const auto of_key = hn::Mul(key, hn::Set(d, ladder.key_errors[i]));
    const auto of_value = hn::Mul(value, hn::Set(d, ladder.value_errors[i]));
    hn::StoreU(hn::Add(of_key, of_value), d, losses + i * lanes);
  }
}

void FindSteps(const Ladder& ladder, const RowLossSpans& losses, float* steps) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const InverseBytes inverse(ladder);
  const std::size_t rows = losses.drop.size();
  HWY_ALIGN float of_rows[(kMaxRungs + 1) * hn::MaxLanes(d)];
  std::size_t row = 0;
  for (; row + hn::Lanes(d) <= rows; row += hn::Lanes(d)) {
    LossesOf(d, ladder, losses, row, of_rows);
    StepsOf(d, ladder, inverse, of_rows, rows, steps + row);
  }
  for (; row < rows; ++row) {
    LossesOf(one, ladder, losses, row, of_rows);
    StepsOf(one, ladder, inverse, of_rows, rows, steps + row);
  }
}

std::int64_t CountAtLeast(std::span<const float> values, float least) {
  const hn::ScalableTag<float> d;
  const auto bound = hn::Set(d, least);
  std::size_t i = 0;
  std::size_t count = 0;
  for (; i + hn::Lanes(d) <= values.size(); i += hn::Lanes(d)) {
    count += hn::CountTrue(d, hn::Ge(hn::LoadU(d, values.data() + i), bound));
  }
  for (; i < values.size(); ++i) count += values[i] >= least ? 1 : 0;
  return static_cast<std::int64_t>(count);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvsieve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve {

HWY_EXPORT(FindSteps);
HWY_EXPORT(CountAtLeast);

void FindSteps(const Ladder& ladder, const RowLossSpans& losses, float* steps) {
  HWY_DYNAMIC_DISPATCH(FindSteps)(ladder, losses, steps);
}

std::int64_t CountAtLeast(std::span<const float> values, float least) {
  return HWY_DYNAMIC_DISPATCH(CountAtLeast)(values, least);
}

}  // namespace kvsieve
#endif  // HWY_ONCE
