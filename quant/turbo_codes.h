// Rows to codes of a Lloyd-Max codebook and the scale that keeps their length; see turbo.cc.
#ifndef KVSIEVE_QUANT_TURBO_CODES_H_
#define KVSIEVE_QUANT_TURBO_CODES_H_

#include "quant/code_tile.h"
#include "quant/lloyd_max.h"

namespace kvsieve::quant {

// rows: f32 [count, dim], finite. scales[r] = |x| / |c(codes)|, 0 with all codes 0 for a row of
// zeros. count <= kTileRows; dim is a multiple of 16.
void EncodeTurbo(const float* rows, int count, int dim, const LloydMaxCodebook& book,
                 CodeTile& codes, double* scales);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_TURBO_CODES_H_
