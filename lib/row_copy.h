// Rows copied and checked in one pass.
#ifndef KVSIEVE_LIB_ROW_COPY_H_
#define KVSIEVE_LIB_ROW_COPY_H_

#include <cstdint>

#include "kvsieve/codec.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

// Of the rows copied.
struct RowTally {
  std::int64_t zeroed = 0;  // elements that were NaN or Inf
  float largest = 0;        // no element is larger in magnitude
};

// Copies row `r` of `head` to `to`. A NaN or Inf in it is an error that names side, head and row,
// or is set to zero and counted.
Status CopyCheckedRow(const HeadsView& rows, Side side, int head, std::int64_t r,
                      NonFinitePolicy policy, void* to, RowTally* tally);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ROW_COPY_H_
