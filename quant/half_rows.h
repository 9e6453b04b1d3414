// f32 rows to two bytes an element, straight to their place in a block of f16 or bf16.
#ifndef KVSIEVE_QUANT_HALF_ROWS_H_
#define KVSIEVE_QUANT_HALF_ROWS_H_

#include "quant/code_rows.h"
#include "quant/kernels.h"

namespace kvsieve::quant {

// Nearest even. rows: f32 [count, dim], finite and within the format; they become rows
// [first_row, first_row + count) of the block. Whole panels of keys are the fast case.
void StoreHalfRows(HalfType type, const BlockLayout& layout, const float* rows, int count,
                   BlockRef block, int first_row);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_HALF_ROWS_H_
