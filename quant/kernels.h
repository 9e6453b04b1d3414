// Fused attention kernels: scores and weighted sums straight from codes (quant/layout.h), written
// in Highway and dispatched once per block.
//
// Integer formats: products and sums are exact integers; what is rounded is the query and, for
// values, weight times row scale.
//   - Weights, and queries for int8: 16 bits. The rounding adds at most 2^-15 of the largest
//     element, far below the codes' own error. Rows of thousands of dims get fewer bits:
//     2^31 / (128 * group) steps, so that sums cannot overflow (13 bits at a group of 4096).
//   - Queries for codes of up to 5 bits (5 with VNNI only, else 16 bits): one byte a dim, with a
//   scale for each group of dims; each
//     element is off by at most 1/254 of the group's largest, 1/128 for turbo's codebooks where
//     there is no VNNI. Codes of b bits are off by 1/2^(b + 1) of the group's range, much more,
//     and the squares of the errors add up: on a real model's rows an output's error rises by
//     less than 0.5 % (tests/tools/accuracy_numbers_test.cc). Half the products of 16 bits.
#ifndef KVSIEVE_QUANT_KERNELS_H_
#define KVSIEVE_QUANT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kvsieve/codec.h"

namespace kvsieve::quant {

// What codes 0..31 stand for, times the row's scale: level[code] * level_scale. The 8-bit levels
// are the codebook rounded for the kernels; decoding uses the exact one.
struct Codebook {
  std::int8_t level[32];
  float level_scale;
};

// What two bytes hold.
enum class HalfType : std::uint8_t { kBF16, kF16 };

// One block of one side, as a kernel sees it.
struct KernelBlock {
  const std::uint8_t* codes = nullptr;
  const std::uint16_t* scales =
      nullptr;  // >= 0, [dim / group, capacity_rows]; null: codes are f16, bf16 or fp8
  const std::uint16_t* zeros = nullptr;  // f16, same shape; null when symmetric
  HalfType half_type = HalfType::kBF16;  // of the scales; of the codes where there are none
  int capacity_rows = 0;
  int rows = 0;
  int dim = 0;
  int bits = 0;  // of a code
  int group =
      0;  // dims that share a scale: dim, or a multiple of 8 (planes: of UnitCodes(bits) for keys)
  int group_rows = 0;  // channel: rows that share a channel's scale; planes are [group][dim] then
  const Codebook* codebook = nullptr;  // null: a code is its own number (nibble: 0..15)
  // Prefetched while working, `ahead_bytes` of it: best the next block of the same side. Null:
  // nothing.
  const std::uint8_t* ahead = nullptr;
  std::size_t ahead_bytes = 0;
};

// 1..kHeadTile queries. Bytes are a multiple of 64.
std::size_t HalfQueryBytes(int dim);
std::size_t IntQueryBytes(int dim, int group);
std::size_t ChannelQueryBytes(int dim);
void PrepareHalfQueries(const float* q, int heads, int dim, void* prepared);
void PrepareChannelQueries(const float* q, int heads, int dim, void* prepared);
void PrepareIntQueries(const float* q, int heads, int dim, int group, void* prepared);
// For ScoreNibble and ScorePlanes: where levels lie within 15 of each other or codes are numbers,
// for any codebook of up to 16 levels, and for 32.
void PrepareNibbleQueries(const float* q, int heads, int dim, int group, void* prepared);
void PrepareCodebookQueries(const float* q, int heads, int dim, int group, void* prepared);
void PrepareFineCodebookQueries(const float* q, int heads, int dim, int group, void* prepared);

// Fp8: e4m3, queries as for half. Planes: bit planes of 1, 2, 3 or 5 bits, with a
// codebook. Channel: bit planes of 2, 3 or 4 bits, scales and zero points per channel.
//
// logits [heads, kBlockRows], as Codec::Score.
void ScoreHalf(const KernelBlock& block, const void* prepared, int heads, float* logits);
void ScoreFp8(const KernelBlock& block, const void* prepared, int heads, float* logits);
void ScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits);
void ScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits);
void ScorePlanes(const KernelBlock& block, const void* prepared, int heads, float* logits);
void ScoreChannel(const KernelBlock& block, const void* prepared, int heads, float* logits);

// weights [heads, kBlockRows], acc [heads, AccumulatorStride(dim)], as Codec::Accumulate.
void AccumulateHalf(const KernelBlock& block, const float* weights, int heads, float* acc);
void AccumulateFp8(const KernelBlock& block, const float* weights, int heads, float* acc);
void AccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc);
void AccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc);
void AccumulatePlanes(const KernelBlock& block, const float* weights, int heads, float* acc);
void AccumulateChannel(const KernelBlock& block, const float* weights, int heads, float* acc);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_KERNELS_H_
