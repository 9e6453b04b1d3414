#include "lib/row_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// What 2^31 rows of such elements add up to is finite in f32, and so is a row on its way through a
// rotation.
constexpr float kLargestElement = 0x1p96F;

// Magnitudes order like their bits, as signed integers without the sign; from the exponent's bits
// on they are Inf and NaN. One vectorised pass.
template <class Element, class Int>
Element LargestOf(const void* elements, std::int64_t count) {
  const Int* bits = static_cast<const Int*>(elements);
  Int largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<Int>(bits[i] & std::numeric_limits<Int>::max());
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<Element>(largest);
}

// Overwrites elements whose exponent bits are all set, and returns how many there were.
template <class Bits, Bits kExponent>
std::int64_t ZeroThem(void* elements, std::int64_t count) {
  Bits* bits = static_cast<Bits*>(elements);
  std::int64_t zeroed = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if ((bits[i] & kExponent) != kExponent) continue;
    bits[i] = 0;
    ++zeroed;
  }
  return zeroed;
}

constexpr std::uint32_t kF32Exponent = 0x7F800000U;
constexpr std::uint16_t kF16Exponent = 0x7C00U;
constexpr std::uint16_t kBF16Exponent = 0x7F80U;

// The largest magnitude, Inf or NaN where there is one.
float LargestOf(const void* elements, ElementType type, std::int64_t count) {
  switch (type) {
    case ElementType::kF32:
      return LargestOf<float, std::int32_t>(elements, count);
    case ElementType::kF16:
      return ToFloat(LargestOf<F16, std::int16_t>(elements, count));
    case ElementType::kBF16:
      return ToFloat(LargestOf<BF16, std::int16_t>(elements, count));
  }
  return 0;
}

// The first element of a row that is larger, NaN or Inf; there is one.
int FirstBeyond(const void* row, ElementType type) {
  const auto* element = static_cast<const std::byte*>(row);
  for (int d = 0;; ++d, element += ElementBytes(type)) {
    float value = 0;
    ConvertToF32(element, type, 1, &value);
    if (!(std::abs(value) <= kLargestElement)) return d;
  }
}

std::int64_t ZeroNonFinite(void* elements, ElementType type, std::int64_t count) {
  switch (type) {
    case ElementType::kF32:
      return ZeroThem<std::uint32_t, kF32Exponent>(elements, count);
    case ElementType::kF16:
      return ZeroThem<std::uint16_t, kF16Exponent>(elements, count);
    case ElementType::kBF16:
      return ZeroThem<std::uint16_t, kBF16Exponent>(elements, count);
  }
  return 0;
}

}  // namespace

Status CopyCheckedRow(const HeadsView& rows, Side side, int head, std::int64_t r,
                      NonFinitePolicy policy, void* to, RowTally* tally) {
  std::memcpy(to, rows.row(head, r), static_cast<std::size_t>(rows.dim) * ElementBytes(rows.type));
  float largest = LargestOf(to, rows.type, rows.dim);
  if (!std::isfinite(largest) && policy == NonFinitePolicy::kZero) {
    tally->zeroed += ZeroNonFinite(to, rows.type, rows.dim);
    largest = LargestOf(to, rows.type, rows.dim);
  }
  if (largest <= kLargestElement) {
    tally->largest = std::max(tally->largest, largest);
    return Status::Ok();
  }
  const std::string where = StrCat(SideName(side), ", head ", head, ", row ", r, ", element ",
                                   FirstBeyond(to, rows.type));
  if (std::isfinite(largest)) {
    return Status::Invalid(StrCat(where, ": beyond 2^96 (7.9e28), the most that rows may hold"));
  }
  return Status(ErrorCode::kNonFinite,
                StrCat(where, ": NaN or Inf (nonfinite=zero counts and clears them)"));
}

}  // namespace kvsieve
