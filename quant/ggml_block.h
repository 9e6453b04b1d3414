// What q8_0 and q4_0 share: ggml's blocks of 32 elements with one f16 scale. Codes come from the
// unrounded scale, as in ggml's reference quantizers (ggml-quants.c, quantize_row_*_ref).
//
// The numbers are ggml's, bit for bit; their places are ours: codes in the panels of
// quant/layout.h, scales in a plane of their own.
#ifndef KVSIEVE_QUANT_GGML_BLOCK_H_
#define KVSIEVE_QUANT_GGML_BLOCK_H_

#include <string_view>

#include "kvsieve/spec_args.h"
#include "quant/layout.h"

namespace kvsieve::quant {

inline constexpr int kGgmlBlock = 32;

constexpr BlockLayout Q8_0Layout(int dim, Side side) {
  return {CodeLayout::kInt8, side, dim, 8, dim / kGgmlBlock, false};
}
constexpr BlockLayout Q4_0Layout(int dim, Side side) {
  return {CodeLayout::kNibble, side, dim, 4, dim / kGgmlBlock, false};
}

// 1 / scale, or 0 where that is no number: all codes are those of zero then. (A scale of zero, or
// below 2^-128, of which ggml's C code makes codes that nothing defines.)
float GgmlInverse(float scale);

// Turns the 32 codes of a block of q4_0 between ggml's and those that are stored: 15 - code for
// values whose scale is negative.
inline void FlipQ4_0(Side side, std::uint16_t scale_bits, std::uint8_t* codes) {
  if (side == Side::kKey || (scale_bits & 0x8000U) == 0) return;
  for (int j = 0; j < kGgmlBlock; ++j) codes[j] ^= 15U;
}

// An error that names a codec for dims that are not whole blocks.
Status CheckGgmlDim(const SpecCall& call, int dim, std::string_view other_codec);

// Errors for a row that is not finite or has a block whose scale, largest |x| / `divisor`, is Inf
// in f16.
Status CheckGgmlRow(const float* row, int dim, std::int64_t row_index, std::string_view codec,
                    float divisor);
// f32 [count, dim], the first of which is row `first`.
Status CheckGgmlRows(const float* rows, int count, int dim, std::int64_t first,
                     std::string_view codec, float divisor);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_GGML_BLOCK_H_
