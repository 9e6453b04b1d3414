// The boundary where an exception becomes an error. Row memory comes from the Allocator and never
// throws; bookkeeping lives in standard containers, and when the heap refuses one, the call fails
// like any other.
#ifndef KVSIEVE_LIB_NO_THROW_H_
#define KVSIEVE_LIB_NO_THROW_H_

#include <new>

#include "kvsieve/result.h"

namespace kvsieve {

// Calls `call`, which returns a Status or a Result.
template <class Call>
auto NoThrow(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kOutOfMemory, "no memory for bookkeeping");
  }
}

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_NO_THROW_H_
