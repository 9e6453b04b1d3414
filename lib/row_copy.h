// Rows copied and checked in one pass.
#ifndef KVSIEVE_LIB_ROW_COPY_H_
#define KVSIEVE_LIB_ROW_COPY_H_

#include <cstdint>

#include "kvsieve/codec.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

// Copies row `r` of `head` to `to`. A NaN or Inf in it is an error that names side, head and row,
// or is set to zero and added to *zeroed.
Status CopyCheckedRow(const HeadsView& rows, Side side, int head, std::int64_t r,
                      NonFinitePolicy policy, void* to, std::int64_t* zeroed);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ROW_COPY_H_
