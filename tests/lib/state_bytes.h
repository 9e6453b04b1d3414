// Saved states that were changed on purpose: signed again, so that what is wrong is found behind
// the checksums. Without GoogleTest, for fuzz targets too.
#ifndef KVSIEVE_TESTS_LIB_STATE_BYTES_H_
#define KVSIEVE_TESTS_LIB_STATE_BYTES_H_

#include <cstddef>
#include <vector>

namespace kvsieve::state_test {

using Bytes = std::vector<std::byte>;

// Makes every checksum right, as far as the head can be read.
void Sign(Bytes& state);

}  // namespace kvsieve::state_test

#endif  // KVSIEVE_TESTS_LIB_STATE_BYTES_H_
