// exp and log built from IEEE additions, multiplications and divisions alone, so that synthetic
// traces and exact attention have the same bits on every machine: the C library's own differ in the
// last bit between versions and CPUs. Needs -ffp-contract=off and no fast-math.
#ifndef KVSIEVE_LIB_EVAL_PORTABLE_MATH_H_
#define KVSIEVE_LIB_EVAL_PORTABLE_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvsieve::eval {

// e^x within 4e-16 relative; 0 below -708, where the result would leave the normal range, and
// e^709 above 709. Without branches, so loops over it vectorise.
inline double PortableExp(double x) {
  // x = k ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^52 rounds to an integer and leaves it in the
  // low bits. ln 2 is split so that k * kLn2High is exact (fdlibm's constants).
  constexpr double kRound = 0x1.8p52;
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double bounded = x > 709 ? 709 : (x < -708 ? -708 : x);
  const double shifted = bounded * kLog2E + kRound;
  const double k = shifted - kRound;
  const double r = (bounded - k * kLn2High) - k * kLn2Low;
  // Taylor to r^13: the next term is below 0.347^14 / 14! = 5e-18.
  constexpr double kInverseFactorial[] = {1.0 / 6227020800,
                                          1.0 / 479001600,
                                          1.0 / 39916800,
                                          1.0 / 3628800,
                                          1.0 / 362880,
                                          1.0 / 40320,
                                          1.0 / 5040,
                                          1.0 / 720,
                                          1.0 / 120,
                                          1.0 / 24,
                                          1.0 / 6,
                                          1.0 / 2,
                                          1.0,
                                          1.0};
  double power_series = 0;
  for (const double coefficient : kInverseFactorial) {
    power_series = power_series * r + coefficient;
  }
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(shifted) + 1023U) << 52;
  const double value = power_series * std::bit_cast<double>(exponent);
  return x < -708 ? 0 : value;
}

// tanh x within 1e-14 relative, so that cap * tanh(x / cap) is x for any huge cap.
inline double PortableTanh(double x) {
  // By the exponential, which is off by some 2^-52 absolute: near 0 that would be all of it.
  if (std::abs(x) > 0.05) return 1 - 2 / (PortableExp(2 * x) + 1);
  // Taylor to x^11: the next term is below 0.004 * 0.05^12 = 1e-18 of x.
  constexpr double kTaylor[] = {-1382.0 / 155925, 62.0 / 2835, -17.0 / 315, 2.0 / 15, -1.0 / 3, 1};
  double series = 0;
  for (const double coefficient : kTaylor) series = series * (x * x) + coefficient;
  return x * series;
}

// ln x within 1e-15 of max(1, |ln x|). Precondition: x > 0 and finite.
inline double PortableLog(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // exact, [0.5, 1)
  if (mantissa < kSqrtHalf) {
    mantissa *= 2;
    --exponent;
  }
  // ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.172; s^25 / 25 is below 1e-20.
  const double s = (mantissa - 1) / (mantissa + 1);
  double series = 0;
  for (int term = 23; term >= 1; term -= 2) series = series * (s * s) + 1.0 / term;
  return exponent * kLn2 + 2 * s * series;
}

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_PORTABLE_MATH_H_
