// Bit-exact f16 and bf16 conversions, the same on every target. Round to nearest, ties to even,
// unless the name says otherwise. Inf and NaN are kept; a NaN stays a (quiet) NaN.
//
// Highway's f16 conversion is not used for stored bytes: below AVX2 it truncates and mistreats
// Inf, NaN and denormals (Highway 1.0.3).
#ifndef KVSIEVE_FLOAT16_H_
#define KVSIEVE_FLOAT16_H_

#include <bit>
#include <cstdint>

#include "kvsieve/types.h"

namespace kvsieve {

inline constexpr float kF16Max = 65504.0F;

inline float ToFloat(float value) { return value; }

inline float ToFloat(BF16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float ToFloat(F16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // Inf, NaN
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13));
  }
  if (magnitude >= 0x0400U) {  // normal: rebias the exponent from 15 to 127
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
  }
  const float denormal = static_cast<float>(magnitude) * 0x1p-24F;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(denormal));
}

inline F16 ToF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {static_cast<std::uint16_t>(sign | 0x7E00U)};
  if (magnitude >= 0x477FF000U) return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  if (magnitude < 0x38800000U) {  // below 2^-14: denormal or zero
    // Adding 0.5 aligns the last f16 denormal bit (2^-24) with the last f32 bit; the f32 adder
    // then rounds to nearest even.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000U))};
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13))};
}

inline BF16 ToBF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

// The smallest bf16 >= value. Precondition: value >= 0 and finite. Above the largest finite bf16
// the result is that largest value.
inline BF16 ToBF16RoundUp(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t up = (bits + 0xFFFFU) >> 16;
  return {static_cast<std::uint16_t>(up > 0x7F7FU ? 0x7F7FU : up)};
}

// The largest f16 <= value, saturating at +-65504. Precondition: value finite.
inline F16 ToF16RoundDown(float value) {
  if (value >= kF16Max) return {0x7BFFU};
  if (value <= -kF16Max) return {0xFBFFU};
  F16 rounded = ToF16(value);
  if (ToFloat(rounded) > value) {  // one step toward minus infinity
    const bool negative = (rounded.bits & 0x8000U) != 0;
    if (!negative && rounded.bits == 0) return {0x8001U};
    rounded.bits = static_cast<std::uint16_t>(negative ? rounded.bits + 1 : rounded.bits - 1);
  }
  return rounded;
}

// Converts `count` elements of any type to f32. Uses the CPU's conversions where they are exact.
void ConvertToF32(const void* from, ElementType type, std::int64_t count, float* to);

}  // namespace kvsieve

#endif  // KVSIEVE_FLOAT16_H_
