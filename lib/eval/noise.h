// Reproducible random numbers: splitmix64 and the polar method over our own logarithm.
#ifndef KVSIEVE_LIB_EVAL_NOISE_H_
#define KVSIEVE_LIB_EVAL_NOISE_H_

#include <cmath>
#include <cstdint>
#include <utility>

#include "lib/eval/portable_math.h"

namespace kvsieve::eval {

// One stream. Streams of different (seed, layer, purpose) are independent for our needs.
class Noise {
 public:
  Noise(std::uint64_t seed, std::uint64_t layer, std::uint64_t purpose) : state_(seed) {
    state_ = Next() ^ layer;
    state_ = Next() ^ purpose;
  }

  // splitmix64 (Steele, Lea, Flood 2014).
  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  // Uniform in [-1, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-52 - 1; }

  // Uniform in [0, count). Precondition: 0 < count < 2^53.
  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>((Uniform() + 1) / 2 * static_cast<double>(count));
  }

  // Standard normal: Marsaglia's polar method, which gives two at a time.
  double Gaussian() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    while (true) {
      const double x = Uniform();
      const double y = Uniform();
      const double square = x * x + y * y;
      if (square >= 1 || square == 0) continue;
      const double factor = std::sqrt(-2 * PortableLog(square) / square);
      spare_ = y * factor;
      has_spare_ = true;
      return x * factor;
    }
  }

  // e^(sigma N(0, 1)).
  double LogNormal(double sigma) { return PortableExp(sigma * Gaussian()); }

 private:
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_NOISE_H_
