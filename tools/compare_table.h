// The table of `kvsieve compare`.
#ifndef KVSIEVE_TOOLS_COMPARE_TABLE_H_
#define KVSIEVE_TOOLS_COMPARE_TABLE_H_

#include <cstdio>

#include "kvsieve/eval/compare.h"

namespace kvsieve::tools {

void PrintCompareTable(std::FILE* out, const eval::Comparison& comparison);

// "smollm2.safetensors: 1024 prompt tokens, 48 eval tokens, layers 0, 7, 14; AVX2, ..."
void PrintSetting(std::FILE* out, const eval::Comparison& comparison);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_COMPARE_TABLE_H_
