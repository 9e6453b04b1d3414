// Rows copied and checked in one pass.
#ifndef KVSIEVE_LIB_ROW_COPY_H_
#define KVSIEVE_LIB_ROW_COPY_H_

#include <cstdint>

#include "kvsieve/types.h"

namespace kvsieve {

// Copies `count` elements and returns how many of them are NaN or Inf.
std::int64_t CopyCountingNonFinite(const void* from, ElementType type, std::int64_t count,
                                   void* to);

// Overwrites NaN and Inf elements with zero, in place.
void ZeroNonFinite(void* elements, ElementType type, std::int64_t count);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_ROW_COPY_H_
