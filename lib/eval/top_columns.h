// The strongest of a row of logits: the one order that exact and compressed attention share.
#ifndef KVSIEVE_LIB_EVAL_TOP_COLUMNS_H_
#define KVSIEVE_LIB_EVAL_TOP_COLUMNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvsieve::eval {

// Indices of the `count` largest logits, ascending; of equal logits the lower index first.
// `order` is scratch; the result points into it. Precondition: no NaN.
template <class T>
std::span<const std::int32_t> SelectTop(std::span<const T> logits, std::size_t count,
                                        std::vector<std::int32_t>& order) {
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, logits.size());
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
    const T logit_a = logits[static_cast<std::size_t>(a)];
    const T logit_b = logits[static_cast<std::size_t>(b)];
    return logit_a != logit_b ? logit_a > logit_b : a < b;
  });
  std::sort(order.begin(), end);
  return {order.data(), count};
}

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_TOP_COLUMNS_H_
