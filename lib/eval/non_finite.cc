#include "lib/eval/non_finite.h"

#include "kvsieve/float16.h"

namespace kvsieve::eval {
namespace {

// An element is NaN or Inf iff all its exponent bits are set: an integer test without branches,
// which compilers vectorise.
template <class Bits>
bool AnyNonFinite(const void* row, int dim, Bits exponent_bits) {
  const Bits* bits = static_cast<const Bits*>(row);
  Bits any = 0;
  for (int i = 0; i < dim; ++i) {
    any |= static_cast<Bits>((bits[i] & exponent_bits) == exponent_bits ? 1 : 0);
  }
  return any != 0;
}

bool AnyNonFinite(const void* row, ElementType type, int dim) {
  switch (type) {
    case ElementType::kF32:
      return AnyNonFinite<std::uint32_t>(row, dim, 0x7F800000U);
    case ElementType::kF16:
      return AnyNonFinite<std::uint16_t>(row, dim, 0x7C00U);
    case ElementType::kBF16:
      return AnyNonFinite<std::uint16_t>(row, dim, 0x7F80U);
  }
  return false;
}

NonFinite Locate(const HeadsView& rows, int head, std::int64_t row) {
  const auto* bytes = static_cast<const std::byte*>(rows.row(head, row));
  for (int i = 0; i < rows.dim; ++i) {
    float value = 0;
    ConvertToF32(bytes + static_cast<std::size_t>(i) * ElementBytes(rows.type), rows.type, 1,
                 &value);
    if (value - value != 0) return {head, row, i, value != value};
  }
  return {head, row, 0, false};
}

}  // namespace

std::optional<NonFinite> FindNonFinite(const HeadsView& rows) {
  for (int head = 0; head < rows.heads; ++head) {
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      if (AnyNonFinite(rows.row(head, row), rows.type, rows.dim)) return Locate(rows, head, row);
    }
  }
  return std::nullopt;
}

}  // namespace kvsieve::eval
