// The formats of docs/codecs.md written down a second time, in plain double: what a row must
// decode to. Includes nothing of quant/.
#ifndef KVSIEVE_TESTS_QUANT_FORMAT_ORACLE_H_
#define KVSIEVE_TESTS_QUANT_FORMAT_ORACLE_H_

#include <vector>

namespace kvsieve::format_oracle {

double F16Nearest(double x);  // +-65504 and beyond: as if the exponent had no end
double F16Down(double x);     // toward -inf, saturating at +-65504
double BF16Nearest(double x);
double BF16Up(double x);      // x >= 0
double Fp8Nearest(double x);  // e4m3, saturating at +-448

std::vector<double> Int8(const std::vector<float>& row);
std::vector<double> IntAsym(const std::vector<float>& row, int bits, int group);
std::vector<double> IntSym(const std::vector<float>& row, int bits, int group);
std::vector<double> Q8_0(const std::vector<float>& row);
std::vector<double> Q4_0(const std::vector<float>& row);

// turbo with the published codebook for dim 128 and matched norm.
struct Turbo {
  std::vector<double> decoded;
  bool undecided = false;  // a value lies where six digits of threshold do not place it
  double raw_error = 0;    // squared error of the unit row against the bare centroids
};
Turbo Turbo128(const std::vector<float>& rotated_row, int bits);

}  // namespace kvsieve::format_oracle

#endif  // KVSIEVE_TESTS_QUANT_FORMAT_ORACLE_H_
