// SHA-256 (FIPS 180-4), for prompt.sha256 of a trace.
#ifndef KVSIEVE_LIB_EVAL_SHA256_H_
#define KVSIEVE_LIB_EVAL_SHA256_H_

#include <cstddef>
#include <span>
#include <string>

namespace kvsieve::eval {

// 64 lower-case hexadecimal digits.
std::string Sha256Hex(std::span<const std::byte> message);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_SHA256_H_
