#include "format_oracle.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstddef>

namespace kvsieve::format_oracle {
namespace {

// Spacing of the numbers with `precision` bits and smallest normal exponent `min_exponent` at x.
double Spacing(double x, int precision, int min_exponent) {
  const int exponent = x == 0 ? min_exponent : std::max(std::ilogb(x), min_exponent);
  return std::ldexp(1.0, exponent - precision + 1);
}

double F16Spacing(double x) { return Spacing(x, 11, -14); }
double BF16Spacing(double x) { return Spacing(x, 8, -126); }

// The formats do these steps in f32.
double F32(double x) { return static_cast<double>(static_cast<float>(x)); }

double CodeOf(double x, double zero, double scale, double low, double high) {
  if (scale == 0) return 0;
  const double steps = F32(F32(x - zero) / scale);
  return std::nearbyint(std::clamp(steps, low, high));  // the default mode is half to even
}

struct HalfCodebook {
  std::vector<double> centroids;   // positive
  std::vector<double> thresholds;  // positive
};

// Lloyd-Max for the coordinate of a unit vector in 128 dimensions, times sqrt(128).
const HalfCodebook kDim128[] = {
    {{0.799444}, {}},
    {{0.452453, 1.505193}, {0.978823}},
    {{0.244425, 0.753330, 1.336599, 2.131471}, {0.498878, 1.044965, 1.734035}},
    {{0.127873, 0.386381, 0.653619, 0.937097, 1.247770, 1.604343, 2.045925, 2.688859},
     {0.257127, 0.520000, 0.795358, 1.092434, 1.426056, 1.825134, 2.367392}},
};

}  // namespace

double F16Nearest(double x) {
  const double spacing = F16Spacing(x);
  return std::nearbyint(x / spacing) * spacing;
}

double F16Down(double x) {
  if (x >= 65504) return 65504;
  if (x <= -65504) return -65504;
  const double spacing = F16Spacing(x);
  return std::floor(x / spacing) * spacing;
}

double BF16Nearest(double x) {
  const double spacing = BF16Spacing(x);
  return std::nearbyint(x / spacing) * spacing;
}

double BF16Up(double x) {
  const double spacing = BF16Spacing(x);
  return std::ceil(x / spacing) * spacing;
}

double Fp8Nearest(double x) {
  const double spacing = Spacing(x, 4, -6);
  return std::clamp(std::nearbyint(x / spacing) * spacing, -448.0, 448.0);
}

std::vector<double> Int8(const std::vector<float>& row) {
  double largest = 0;
  for (const float x : row) largest = std::max(largest, std::fabs(double{x}));
  const double scale = BF16Up(F32(largest / 127));
  std::vector<double> decoded;
  for (const float x : row) decoded.push_back(CodeOf(x, 0, scale, -127, 127) * scale);
  return decoded;
}

std::vector<double> IntAsym(const std::vector<float>& row, int bits, int group) {
  const double most = std::pow(2.0, bits) - 1;
  std::vector<double> decoded;
  for (std::size_t first = 0; first < row.size(); first += static_cast<std::size_t>(group)) {
    const auto begin = row.begin() + static_cast<std::ptrdiff_t>(first);
    const auto [low, high] = std::minmax_element(begin, begin + group);
    const double zero = F16Down(*low);
    const double scale = BF16Up(F32(F32(std::max(0.0, *high - zero)) / most));
    for (auto x = begin; x != begin + group; ++x) {
      decoded.push_back(F32(CodeOf(*x, zero, scale, 0, most) * scale + zero));
    }
  }
  return decoded;
}

std::vector<double> IntSym(const std::vector<float>& row, int bits, int group) {
  const double most = std::pow(2.0, bits - 1) - 1;
  std::vector<double> decoded;
  for (std::size_t first = 0; first < row.size(); first += static_cast<std::size_t>(group)) {
    const auto begin = row.begin() + static_cast<std::ptrdiff_t>(first);
    double largest = 0;
    for (auto x = begin; x != begin + group; ++x) {
      largest = std::max(largest, std::fabs(double{*x}));
    }
    const double scale = BF16Up(F32(largest / most));
    for (auto x = begin; x != begin + group; ++x) {
      decoded.push_back(CodeOf(*x, 0, scale, -most, most) * scale);
    }
  }
  return decoded;
}

// ggml divides once and multiplies by the inverse, both in f32.
std::vector<double> Q8_0(const std::vector<float>& row) {
  std::vector<double> decoded;
  for (std::size_t first = 0; first < row.size(); first += 32) {
    double largest = 0;
    for (std::size_t j = 0; j < 32; ++j) {
      largest = std::max(largest, std::fabs(double{row[first + j]}));
    }
    const double scale = F32(largest / 127);
    for (std::size_t j = 0; j < 32; ++j) {
      const double steps = scale == 0 ? 0 : F32(row[first + j] * F32(1 / scale));
      decoded.push_back(std::round(steps) * F16Nearest(scale));  // halves away from zero
    }
  }
  return decoded;
}

std::vector<double> Q4_0(const std::vector<float>& row) {
  std::vector<double> decoded;
  for (std::size_t first = 0; first < row.size(); first += 32) {
    double largest = 0;
    for (std::size_t j = 0; j < 32; ++j) {
      const double x = row[first + j];
      if (std::fabs(x) > std::fabs(largest)) largest = x;
    }
    const double scale = largest / -8;
    for (std::size_t j = 0; j < 32; ++j) {
      const double steps = scale == 0 ? 0 : F32(row[first + j] * F32(1 / scale));
      decoded.push_back((std::min(std::trunc(F32(steps + 8.5)), 15.0) - 8) * F16Nearest(scale));
    }
  }
  return decoded;
}

Turbo Turbo128(const std::vector<float>& rotated_row, int bits) {
  const HalfCodebook& book = kDim128[bits - 1];
  double energy = 0;
  for (const float x : rotated_row) energy += double{x} * x;
  const double norm = std::sqrt(energy);
  const double to_unit_variance = std::sqrt(128.0) / norm;
  Turbo result;
  std::vector<double> c;
  double c_energy = 0;
  for (const float x : rotated_row) {
    const double y = x * to_unit_variance;
    std::size_t cell = 0;
    result.undecided = result.undecided || std::fabs(y) < 2e-6;
    for (const double t : book.thresholds) {
      if (std::fabs(y) >= t) ++cell;
      result.undecided = result.undecided || std::fabs(std::fabs(y) - t) < 2e-6;
    }
    c.push_back(y >= 0 ? book.centroids[cell] : -book.centroids[cell]);
    c_energy += c.back() * c.back();
    result.raw_error += (y - c.back()) * (y - c.back()) / 128;
  }
  // Unit-sphere coordinates: c / sqrt(128).
  const double scale = F16Nearest(norm / std::sqrt(c_energy / 128));
  for (const double centroid : c) result.decoded.push_back(scale * centroid / std::sqrt(128.0));
  return result;
}

}  // namespace kvsieve::format_oracle
