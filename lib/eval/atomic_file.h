// Output files that are either complete or not there.
#ifndef KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_
#define KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "kvsieve/result.h"

namespace kvsieve::eval {

// Writes the parts one after the other to a temporary name beside `path`, then renames it; a
// failure leaves no temporary file and an existing `path` as it was.
Status WriteFileAtomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_
