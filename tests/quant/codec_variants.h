// What the registry can build, as text: tests that hold for every codec read their list here, so
// that a new codec is in it the day it is registered.
#ifndef KVSIEVE_TESTS_QUANT_CODEC_VARIANTS_H_
#define KVSIEVE_TESTS_QUANT_CODEC_VARIANTS_H_

#include <string>
#include <vector>

#include "kvsieve/codec.h"

namespace kvsieve::quant_test {

// Every codec with every combination of its options that can store rows of `dim` elements: "f16",
// "int4", "int4(sym)", "int4(group=row)", "int4(group=row,sym)", ...
std::vector<std::string> EveryCodec(int dim, Side side = Side::kKey);

}  // namespace kvsieve::quant_test

#endif  // KVSIEVE_TESTS_QUANT_CODEC_VARIANTS_H_
