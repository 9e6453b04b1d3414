// The yardstick of every benchmark of memory speed: reading the same bytes and doing nothing else.
#ifndef KVSIEVE_BENCH_PURE_READ_H_
#define KVSIEVE_BENCH_PURE_READ_H_

#include <cstddef>
#include <cstdint>

namespace kvsieve::bench {

// Sum of the 8-byte words of the first bytes / 256 * 256 bytes, with the widest loads of the active
// target, so that kernels are held against the fastest read and not against a slow one.
std::uint64_t PureRead(const void* data, std::size_t bytes);

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_PURE_READ_H_
