// Prepared queries, shared by the kernels: what PrepareHalfQueries and PrepareIntQueries write.
//
//   half     [dim, padded to even][4 heads]          f32
//   channel  [4 heads][dim, padded to kChannelSpan]  f32: rounded once per group of rows
//   integer  IntQueryHead | [groups][4 heads] i32    sums of the rounded query
//            | [groups][4 heads] f32                 query ~ scale * rounded
//            | [quads of dims][4 heads][1 or 2] i32  the rounded query
//            each part a multiple of 64 bytes
//
// The i32 of a quad of dims (d0 d1 d2 d3) depend on the multiply instruction they are for:
//   kPairs   i16 pairs (d0, d2) and (d1, d3): what is left when bytes are widened by shifts
//   kBytes   signed high bytes d0..d3, then signed low bytes: 256 * high + low = value
//   kByte    signed bytes d0..d3, one i32
// Quads are padded to whole units of dims with zeros.
#ifndef KVSIEVE_QUANT_KERNELS_QUERY_H_
#define KVSIEVE_QUANT_KERNELS_QUERY_H_

#include <cstddef>
#include <cstdint>

#include "kvsieve/codec.h"
#include "quant/layout.h"

namespace kvsieve::quant {

enum class QueryForm : std::int32_t { kPairs, kBytes, kByte };

struct alignas(64) IntQueryHead {
  QueryForm form;
  std::int32_t group_bytes;  // of the sums, and of the scales
};

// Largest rounded magnitude: fits 16 bits split into two signed bytes (127 * 256 + 127), and keeps
// the sum over one group of 8-bit codes inside 32 bits.
constexpr std::int32_t IntQueryLimit(int group) {
  const std::int32_t no_overflow = 0x7FFFFFFF / (128 * group);
  return no_overflow < 32639 ? no_overflow : 32639;
}

// Of a rounded byte: sums of two products must fit 16 bits where there is no VNNI. With codes below
// 16 they do anyway, with codes up to 255 they have this limit.
constexpr std::int32_t kByteLimit = 127;
constexpr std::int32_t kByteLimitOfPairs = 64;
// With codes below 16, dims of a group whose sums stay in 16 bits throughout.
constexpr int kSmallGroup = 32;

// Channel: dims whose products with the scales share a step when they are rounded.
constexpr int kChannelSpan = 32;
constexpr int ChannelQueryStride(int dim) {
  return static_cast<int>(RoundUp(static_cast<std::size_t>(dim), kChannelSpan));
}

constexpr std::size_t GroupBytes(int dim, int group) {
  return RoundUp(static_cast<std::size_t>(dim / group) * kHeadTile * sizeof(std::int32_t), 64);
}
constexpr std::size_t QuadBytes(int dim) {
  return RoundUp(static_cast<std::size_t>(dim), kUnitCodes) / 4 * kHeadTile * 2 *
         sizeof(std::int32_t);
}

struct IntQuery {
  const IntQueryHead* head;
  const std::int32_t* group_sums;  // [groups][kHeadTile]
  const float* scales;             // [groups][kHeadTile]
  const std::int32_t* quads;       // [quads][kHeadTile][1 or 2]

  explicit IntQuery(const void* prepared) : head(static_cast<const IntQueryHead*>(prepared)) {
    const auto* bytes = static_cast<const std::uint8_t*>(prepared) + sizeof(IntQueryHead);
    group_sums = reinterpret_cast<const std::int32_t*>(bytes);
    scales = reinterpret_cast<const float*>(bytes + head->group_bytes);
    quads = reinterpret_cast<const std::int32_t*>(bytes + 2 * head->group_bytes);
  }
};

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_KERNELS_QUERY_H_
