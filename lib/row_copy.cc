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

// Magnitudes order like their bits, as signed integers without the sign; from the exponent's bits
// on they are Inf and NaN. One vectorised pass.
template <class Element, class Int>
Element CopyFindingLargest(const void* from, std::int64_t count, void* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Int));
  const Int* bits = static_cast<const Int*>(to);
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

// Copies `count` elements and returns the largest magnitude, Inf or NaN where there is one.
float CopyFindingLargest(const void* from, ElementType type, std::int64_t count, void* to) {
  switch (type) {
    case ElementType::kF32:
      return CopyFindingLargest<float, std::int32_t>(from, count, to);
    case ElementType::kF16:
      return ToFloat(CopyFindingLargest<F16, std::int16_t>(from, count, to));
    case ElementType::kBF16:
      return ToFloat(CopyFindingLargest<BF16, std::int16_t>(from, count, to));
  }
  return 0;
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
  const float largest = CopyFindingLargest(rows.row(head, r), rows.type, rows.dim, to);
  if (std::isfinite(largest)) {
    tally->largest = std::max(tally->largest, largest);
    return Status::Ok();
  }
  if (policy == NonFinitePolicy::kError) {
    return Status(ErrorCode::kNonFinite,
                  StrCat(side == Side::kKey ? "keys" : "values", ", head ", head, ", row ", r,
                         ": NaN or Inf (nonfinite=zero counts and clears them)"));
  }
  tally->zeroed += ZeroNonFinite(to, rows.type, rows.dim);
  tally->largest = std::numeric_limits<float>::infinity();  // seldom enough not to look again
  return Status::Ok();
}

}  // namespace kvsieve
