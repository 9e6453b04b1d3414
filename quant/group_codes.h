// Groups of f32 elements to codes with a scale (and a zero point) each, a tile of rows at a time.
// The formulas are those of the codecs' own files; the results are the same on every target.
#ifndef KVSIEVE_QUANT_GROUP_CODES_H_
#define KVSIEVE_QUANT_GROUP_CODES_H_

#include <cstdint>

#include "quant/code_tile.h"

namespace kvsieve::quant {

// f32 [rows, dim], groups of `group` dims.
struct GroupedRows {
  const float* data;
  int rows;
  int dim;
  int group;
};

// Where codes, scales and zero points go: scales[g * capacity_rows + r] for group g of row r.
struct TilePlanes {
  CodeTile* codes;
  std::uint16_t* scales;
  std::uint16_t* zeros;  // null: none
  int capacity_rows;
};

// Both return the largest magnitude, NaN or Inf where there is one: the codes of a tile that holds
// such, or more than kMaxScaled, mean nothing.
//
// int8, int4 ...: scale = bf16 rounded up of max|x| / limit; code = round-half-even(x / scale) in
// -limit..limit, plus `bias`, which is even.
struct SymCodes {
  int limit;
  int bias;
};
float EncodeSym(const GroupedRows& rows, SymCodes codes, const TilePlanes& to);

// int4 ...: zero = f16 rounded toward -inf of min(x), saturating; scale = bf16 rounded up of
// (max(x) - zero) / limit; code = round-half-even((x - zero) / scale) in 0..limit.
float EncodeAsym(const GroupedRows& rows, int limit, const TilePlanes& to);

// q8_0 and q4_0, of rows that CheckGgmlRows passes; groups of kGgmlBlock; q4_0's codes are ggml's,
// not flipped.
void EncodeQ8_0(const GroupedRows& rows, const TilePlanes& to);
void EncodeQ4_0(const GroupedRows& rows, const TilePlanes& to);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_GROUP_CODES_H_
