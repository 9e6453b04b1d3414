// Finds the first NaN or Inf of a tensor, at the speed of a read.
#ifndef KVSIEVE_LIB_EVAL_NON_FINITE_H_
#define KVSIEVE_LIB_EVAL_NON_FINITE_H_

#include <cstdint>
#include <optional>

#include "kvsieve/types.h"

namespace kvsieve::eval {

struct NonFinite {
  int head = 0;
  std::int64_t row = 0;
  int element = 0;
  bool is_nan = false;  // else Inf
};

// nullopt when every element is finite.
std::optional<NonFinite> FindNonFinite(const HeadsView& rows);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_NON_FINITE_H_
