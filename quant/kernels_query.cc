#include "quant/kernels_query.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kvsieve/targets.h"
#include "quant/kernels.h"

namespace kvsieve::quant {
namespace {

float LargestMagnitude(const float* q, int dim) {
  float largest = 0.0F;
  for (int d = 0; d < dim; ++d) {
    const float magnitude = std::fabs(q[d]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// To the nearest integer, for |x| < 2^22: 1.5 * 2^23 leaves it in the low mantissa bits.
std::int32_t Round(float x) { return std::bit_cast<std::int32_t>(x + 12582912.0F) - 0x4B400000; }

// The i16 slot of dim d in a quad in the form kPairs.
constexpr std::size_t kPairSlot[4] = {0, 2, 1, 3};

void StoreRounded(QueryForm form, std::int32_t value, std::size_t slot, std::uint8_t* quad) {
  if (form == QueryForm::kPairs) {
    const auto narrow = static_cast<std::int16_t>(value);
    std::memcpy(quad + kPairSlot[slot] * 2, &narrow, 2);
    return;
  }
  const std::int32_t high = (value + 128) >> 8;
  quad[slot] = static_cast<std::uint8_t>(high);
  quad[4 + slot] = static_cast<std::uint8_t>(value - high * 256);
}

}  // namespace

std::size_t HalfQueryBytes(int dim) {
  return RoundUp(static_cast<std::size_t>(dim) * kHeadTile * sizeof(float), 64);
}

std::size_t IntQueryBytes(int dim, int group) {
  return RoundUp(sizeof(IntQueryHead) + GroupSumBytes(dim, group) + QuadBytes(dim), 64);
}

void PrepareHalfQueries(const float* q, int heads, int dim, void* prepared) {
  auto* out = static_cast<float*>(prepared);
  for (int d = 0; d < dim; ++d) {
    for (int h = 0; h < kHeadTile; ++h) out[d * kHeadTile + h] = h < heads ? q[h * dim + d] : 0.0F;
  }
}

void PrepareIntQueries(const float* q, int heads, int dim, int group, void* prepared) {
  std::memset(prepared, 0, IntQueryBytes(dim, group));
  auto* head = static_cast<IntQueryHead*>(prepared);
  head->form = VnniActive() ? QueryForm::kBytes : QueryForm::kPairs;
  head->group_sum_bytes = static_cast<std::int32_t>(GroupSumBytes(dim, group));
  auto* bytes = static_cast<std::uint8_t*>(prepared) + sizeof(IntQueryHead);
  auto* sums = reinterpret_cast<std::int32_t*>(bytes);
  std::uint8_t* quads = bytes + head->group_sum_bytes;

  const auto limit = static_cast<float>(IntQueryLimit(group));
  for (int h = 0; h < heads; ++h) {
    const float* row = q + static_cast<std::ptrdiff_t>(h) * dim;
    const float largest = LargestMagnitude(row, dim);
    // Below 1e-30 a query is as good as zero, and limit / largest could overflow.
    if (!(largest > 1e-30F)) continue;
    head->scale[h] = largest / limit;
    const float inverse = limit / largest;
    for (int d = 0; d < dim; ++d) {
      const std::int32_t value = Round(row[d] * inverse);
      sums[d / group * kHeadTile + h] += value;
      std::uint8_t* quad = quads + (d / 4 * kHeadTile + h) * 8;
      StoreRounded(head->form, value, static_cast<std::size_t>(d % 4), quad);
    }
  }
}

}  // namespace kvsieve::quant
