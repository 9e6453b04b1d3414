// Output files that are either complete or not there.
#ifndef KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_
#define KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "kvsieve/result.h"

namespace kvsieve::eval {

// The file that writing to `path` would create or replace: `path`, or what it points to when it is
// a symbolic link, which need not exist. Empty when links lead in a circle.
std::string FollowLinks(const std::string& path);

// Writes the parts one after the other to a temporary name beside FollowLinks(path), then renames
// it; a failure leaves no temporary file and an existing file as it was. Links stay links.
Status WriteFileAtomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_ATOMIC_FILE_H_
