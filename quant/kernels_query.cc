#include "quant/kernels_query.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kvsieve/targets.h"
#include "quant/code_rows.h"
#include "quant/kernels.h"

namespace kvsieve::quant {
namespace {

// As integers, whose order is that of magnitudes: compilers vectorize that maximum. Several of
// them, for each waits for the one before.
float LargestMagnitude(const float* q, int count) {
  constexpr int kLanes = 16;
  std::int32_t largest[kLanes] = {};
  const auto raise = [q](int i, std::int32_t& to) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(q[i]) & 0x7FFFFFFF;
    to = magnitude > to ? magnitude : to;
  };
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) raise(i + lane, largest[lane]);
  }
  for (; i < count; ++i) raise(i, largest[0]);
  return std::bit_cast<float>(*std::max_element(largest, largest + kLanes));
}

// To the nearest integer, for |x| < 2^22: 1.5 * 2^23 leaves it in the low mantissa bits.
std::int32_t Round(float x) { return std::bit_cast<std::int32_t>(x + 12582912.0F) - 0x4B400000; }

std::uint32_t Word(std::int32_t b0, std::int32_t b1, std::int32_t b2, std::int32_t b3) {
  const auto byte = [](std::int32_t value) { return static_cast<std::uint32_t>(value) & 0xFFU; };
  return byte(b0) | byte(b1) << 8 | byte(b2) << 16 | byte(b3) << 24;
}
std::uint32_t Pair(std::int32_t low, std::int32_t high) {
  return (static_cast<std::uint32_t>(low) & 0xFFFFU) | static_cast<std::uint32_t>(high) << 16;
}

// Quads of one head, the first of them at `words`; 4 values each.
template <QueryForm kForm>
void StoreQuads(const std::int32_t* v, int quads, std::uint32_t* words) {
  constexpr int kWords = kForm == QueryForm::kByte ? 1 : 2;
  for (int i = 0; i < quads; ++i, v += 4, words += kHeadTile * kWords) {
    if constexpr (kForm == QueryForm::kByte) {
      words[0] = Word(v[0], v[1], v[2], v[3]);
    } else if constexpr (kForm == QueryForm::kPairs) {
      words[0] = Pair(v[0], v[2]);
      words[1] = Pair(v[1], v[3]);
    } else {
      const auto high = [v](int d) { return (v[d] + 128) >> 8; };
      words[0] = Word(high(0), high(1), high(2), high(3));
      words[1] = Word(v[0], v[1], v[2], v[3]);  // modulo 256: v - 256 high
    }
  }
}

// Dims [first, first + count) of head h, whole quads but for the row's last, which the values fill
// up with zeros.
void StoreRounded(QueryForm form, const std::int32_t* values, int first, int count, int h,
                  std::uint32_t* words) {
  const int quads = (count + 3) / 4;
  const int place = first / 4 * kHeadTile + h;
  switch (form) {
    case QueryForm::kByte:
      return StoreQuads<QueryForm::kByte>(values, quads, words + place);
    case QueryForm::kPairs:
      return StoreQuads<QueryForm::kPairs>(values, quads, words + 2 * place);
    case QueryForm::kBytes:
      return StoreQuads<QueryForm::kBytes>(values, quads, words + 2 * place);
  }
}

// How a query is rounded: `span` dims, whole groups, share a scale, and `limit` is the largest
// magnitude.
struct Rounding {
  QueryForm form;
  std::int32_t limit;
  int span;
};

void Prepare(const Rounding& rounding, const float* q, int heads, int dim, int group,
             void* prepared) {
  std::memset(prepared, 0, IntQueryBytes(dim, group));
  auto* head = static_cast<IntQueryHead*>(prepared);
  head->form = rounding.form;
  head->group_bytes = static_cast<std::int32_t>(GroupBytes(dim, group));
  auto* bytes = static_cast<std::uint8_t*>(prepared) + sizeof(IntQueryHead);
  auto* sums = reinterpret_cast<std::int32_t*>(bytes);
  auto* scales = reinterpret_cast<float*>(bytes + head->group_bytes);
  auto* quads = reinterpret_cast<std::uint32_t*>(bytes + 2 * head->group_bytes);

  const auto limit = static_cast<float>(rounding.limit);
  for (int h = 0; h < heads; ++h) {
    for (int first = 0; first < dim; first += rounding.span) {
      const float* row = q + static_cast<std::ptrdiff_t>(h) * dim;
      const float largest = LargestMagnitude(row + first, rounding.span);
      // Below 1e-30 a query is as good as zero, and limit / largest could overflow.
      if (!(largest > 1e-30F)) continue;
      const float inverse = limit / largest;
      for (int at = first; at < first + rounding.span; at += group) {
        std::int32_t values[kMaxDim + 3];
        std::int32_t sum = 0;
        for (int i = 0; i < group; ++i) {
          values[i] = Round(row[at + i] * inverse);
          sum += values[i];
        }
        std::fill_n(values + group, 3, 0);
        sums[at / group * kHeadTile + h] = sum;
        scales[at / group * kHeadTile + h] = largest / limit;
        StoreRounded(rounding.form, values, at, group, h, quads);
      }
    }
  }
}

}  // namespace

std::size_t HalfQueryBytes(int dim) {
  return RoundUp(RoundUp(static_cast<std::size_t>(dim), 2) * kHeadTile * sizeof(float), 64);
}

std::size_t IntQueryBytes(int dim, int group) {
  return RoundUp(sizeof(IntQueryHead) + 2 * GroupBytes(dim, group) + QuadBytes(dim), 64);
}

std::size_t ChannelQueryBytes(int dim) {
  return static_cast<std::size_t>(kHeadTile * ChannelQueryStride(dim)) * sizeof(float);
}

void PrepareChannelQueries(const float* q, int heads, int dim, void* prepared) {
  std::memset(prepared, 0, ChannelQueryBytes(dim));
  auto* out = static_cast<float*>(prepared);
  for (int h = 0; h < heads; ++h) {
    std::copy_n(q + std::ptrdiff_t{h} * dim, dim,
                out + std::ptrdiff_t{h} * ChannelQueryStride(dim));
  }
}

void PrepareHalfQueries(const float* q, int heads, int dim, void* prepared) {
  auto* out = static_cast<float*>(prepared);
  for (int d = 0; d < dim; ++d) {
    for (int h = 0; h < kHeadTile; ++h) out[d * kHeadTile + h] = h < heads ? q[h * dim + d] : 0.0F;
  }
  // An odd dim has half of a pair: its other code is zero, and must not meet NaN.
  if (dim % 2 != 0) std::fill_n(out + dim * kHeadTile, kHeadTile, 0.0F);
}

void PrepareIntQueries(const float* q, int heads, int dim, int group, void* prepared) {
  const QueryForm form = VnniActive() ? QueryForm::kBytes : QueryForm::kPairs;
  Prepare({form, IntQueryLimit(group), dim}, q, heads, dim, group, prepared);
}

void PrepareNibbleQueries(const float* q, int heads, int dim, int group, void* prepared) {
  Prepare({QueryForm::kByte, kByteLimit, group}, q, heads, dim, group, prepared);
}

void PrepareCodebookQueries(const float* q, int heads, int dim, int group, void* prepared) {
  const std::int32_t limit = VnniActive() ? kByteLimit : kByteLimitOfPairs;
  Prepare({QueryForm::kByte, limit, group}, q, heads, dim, group, prepared);
}

void PrepareFineCodebookQueries(const float* q, int heads, int dim, int group, void* prepared) {
  if (VnniActive()) return PrepareCodebookQueries(q, heads, dim, group, prepared);
  PrepareIntQueries(q, heads, dim, group, prepared);
}

}  // namespace kvsieve::quant
