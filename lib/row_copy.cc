#include "lib/row_copy.h"

#include <cstring>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// An element is NaN or Inf iff all its exponent bits are set.
template <class Bits, Bits kExponent>
std::int64_t CopyCounting(const void* from, std::int64_t count, void* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Bits));
  const Bits* bits = static_cast<const Bits*>(to);
  Bits found = 0;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < count; ++i) found |= (bits[i] & kExponent) == kExponent ? 1 : 0;
  if (found == 0) return 0;  // the usual case: one vectorised pass
  for (std::int64_t i = 0; i < count; ++i) total += (bits[i] & kExponent) == kExponent;
  return total;
}

template <class Bits, Bits kExponent>
void ZeroThem(void* elements, std::int64_t count) {
  Bits* bits = static_cast<Bits*>(elements);
  for (std::int64_t i = 0; i < count; ++i) {
    if ((bits[i] & kExponent) == kExponent) bits[i] = 0;
  }
}

constexpr std::uint32_t kF32Exponent = 0x7F800000U;
constexpr std::uint16_t kF16Exponent = 0x7C00U;
constexpr std::uint16_t kBF16Exponent = 0x7F80U;

// Copies `count` elements and returns how many of them are NaN or Inf.
std::int64_t CopyCountingNonFinite(const void* from, ElementType type, std::int64_t count,
                                   void* to) {
  switch (type) {
    case ElementType::kF32:
      return CopyCounting<std::uint32_t, kF32Exponent>(from, count, to);
    case ElementType::kF16:
      return CopyCounting<std::uint16_t, kF16Exponent>(from, count, to);
    case ElementType::kBF16:
      return CopyCounting<std::uint16_t, kBF16Exponent>(from, count, to);
  }
  return 0;
}

// Overwrites NaN and Inf elements with zero, in place.
void ZeroNonFinite(void* elements, ElementType type, std::int64_t count) {
  switch (type) {
    case ElementType::kF32:
      return ZeroThem<std::uint32_t, kF32Exponent>(elements, count);
    case ElementType::kF16:
      return ZeroThem<std::uint16_t, kF16Exponent>(elements, count);
    case ElementType::kBF16:
      return ZeroThem<std::uint16_t, kBF16Exponent>(elements, count);
  }
}

}  // namespace

Status CopyCheckedRow(const HeadsView& rows, Side side, int head, std::int64_t r,
                      NonFinitePolicy policy, void* to, std::int64_t* zeroed) {
  const std::int64_t bad = CopyCountingNonFinite(rows.row(head, r), rows.type, rows.dim, to);
  if (bad == 0) return Status::Ok();
  if (policy == NonFinitePolicy::kError) {
    return Status(ErrorCode::kNonFinite,
                  StrCat(side == Side::kKey ? "keys" : "values", ", head ", head, ", row ", r,
                         ": NaN or Inf (nonfinite=zero counts and clears them)"));
  }
  ZeroNonFinite(to, rows.type, rows.dim);
  *zeroed += bad;
  return Status::Ok();
}

}  // namespace kvsieve
