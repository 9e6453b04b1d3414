#include "quant/lloyd_max.h"

#include <algorithm>
#include <cmath>

namespace kvsieve::quant {
namespace {

constexpr int kMaxHalf = 1 << (kMaxTurboBits - 1);

// The law of u = sqrt(d) x, where x is a coordinate of a uniform unit vector in d dimensions:
// density g(u) = (1 - u^2/d)^((d-3)/2) up to a constant, on |u| <= sqrt(d).
class SphereLaw {
 public:
  explicit SphereLaw(int dim) : dim_(dim), end_(std::sqrt(static_cast<double>(dim))) {}

  double end() const { return end_; }

  double Density(double u) const { return HalfPower(1.0 - u * u / dim_, dim_ - 3); }

  // Integral of g from 0 to end(). With I_n = int_0^1 (1-x^2)^n dx: I_n = I_(n-1) 2n / (2n+1),
  // from I_0 = 1 or I_(-1/2) = pi/2.
  double HalfMass() const {
    const bool odd = dim_ % 2 != 0;
    double integral = odd ? 1.0 : 1.5707963267948966;
    for (int twice_n = odd ? 2 : 1; twice_n <= dim_ - 3; twice_n += 2) {
      integral *= static_cast<double>(twice_n) / (twice_n + 1);
    }
    return integral * end_;
  }

  // Integral of g over [a, b], b - a at most about 2: ten-point Gauss-Legendre.
  double Mass(double a, double b) const {
    constexpr double kNodes[] = {0.14887433898163122, 0.43339539412924719, 0.67940956829902441,
                                 0.86506336668898451, 0.97390652851717172};
    constexpr double kWeights[] = {0.29552422471475287, 0.26926671930999636, 0.21908636251598204,
                                   0.14945134915058059, 0.06667134430868814};
    const double middle = (a + b) / 2;
    const double half = (b - a) / 2;
    double sum = 0;
    for (int i = 0; i < 5; ++i) {
      sum +=
          kWeights[i] * (Density(middle - half * kNodes[i]) + Density(middle + half * kNodes[i]));
    }
    return sum * half;
  }

  // Integral of u g over [a, b], in closed form.
  double FirstMoment(double a, double b) const {
    const double at_a = HalfPower(1.0 - a * a / dim_, dim_ - 1);
    const double at_b = HalfPower(1.0 - b * b / dim_, dim_ - 1);
    return (at_a - at_b) * dim_ / (dim_ - 1);
  }

 private:
  // base^(twice / 2) by squaring.
  static double HalfPower(double base, int twice) {
    if (base <= 0) return 0;
    double result = twice % 2 != 0 ? std::sqrt(base) : 1.0;
    for (int n = twice / 2; n > 0; n /= 2, base *= base) {
      if (n % 2 != 0) result *= base;
    }
    return result;
  }

  int dim_;
  double end_;
};

// Positive half of a symmetric quantizer: cell i is [edge(i), edge(i+1)] with its centroid c[i],
// edge(0) = 0, edge(n) = end.
struct HalfQuantizer {
  int n = 0;
  double c[kMaxHalf] = {};

  double Edge(int i, double end) const {
    if (i == 0) return 0;
    return i == n ? end : (c[i - 1] + c[i]) / 2;
  }
  bool Increasing(double end) const {
    for (int i = 0; i < n; ++i) {
      if (!(c[i] > (i == 0 ? 0.0 : c[i - 1])) || !(c[i] < end)) return false;
    }
    return true;
  }
};

struct CellMoments {
  double mass[kMaxHalf] = {};
  double first[kMaxHalf] = {};
};

CellMoments Moments(const SphereLaw& law, const HalfQuantizer& q) {
  CellMoments m;
  double left = law.HalfMass();  // the long last cell takes what the others leave
  for (int i = 0; i < q.n; ++i) {
    const double a = q.Edge(i, law.end());
    const double b = q.Edge(i + 1, law.end());
    m.mass[i] = i + 1 < q.n ? law.Mass(a, b) : left;
    m.first[i] = law.FirstMoment(a, b);
    left -= m.mass[i];
  }
  return m;
}

// One Newton step for c_i mass_i = first_i (the condition of Lloyd and Max). The Jacobian is
// tridiagonal and symmetric: moving edge e between cells i and i+1, whose centroids lie h = half
// their distance away on either side, changes both equations by -h g(e) per unit of edge.
HalfQuantizer NewtonStep(const SphereLaw& law, const HalfQuantizer& q, const CellMoments& m) {
  double diagonal[kMaxHalf];
  double off[kMaxHalf] = {};  // off[i] couples i and i+1
  double step[kMaxHalf];
  for (int i = 0; i < q.n; ++i) {
    diagonal[i] = m.mass[i];
    step[i] = m.first[i] - q.c[i] * m.mass[i];
  }
  for (int i = 0; i + 1 < q.n; ++i) {
    const double h = (q.c[i + 1] - q.c[i]) / 2;
    off[i] = -h * law.Density(q.Edge(i + 1, law.end())) / 2;
    diagonal[i] += off[i];
    diagonal[i + 1] += off[i];
  }
  for (int i = 1; i < q.n; ++i) {  // elimination
    const double factor = off[i - 1] / diagonal[i - 1];
    diagonal[i] -= factor * off[i - 1];
    step[i] -= factor * step[i - 1];
  }
  HalfQuantizer next = q;
  for (int i = q.n - 1; i >= 0; --i) {
    const double above = i + 1 < q.n ? off[i] * step[i + 1] : 0.0;
    step[i] = (step[i] - above) / diagonal[i];
    next.c[i] = q.c[i] + step[i];
  }
  return next;
}

HalfQuantizer LloydStep(const HalfQuantizer& q, const CellMoments& m) {
  HalfQuantizer next = q;
  for (int i = 0; i < q.n; ++i) next.c[i] = m.first[i] / m.mass[i];
  return next;
}

double LargestChange(const HalfQuantizer& a, const HalfQuantizer& b) {
  double change = 0;
  for (int i = 0; i < a.n; ++i) change = std::max(change, std::fabs(a.c[i] - b.c[i]));
  return change;
}

// Lloyd's steps bring any start near the fixed point, which is unique because the density is
// log-concave; Newton's then converge in a few.
HalfQuantizer SolveHalf(const SphereLaw& law, int n) {
  constexpr int kLloydSteps = 60;
  constexpr int kNewtonSteps = 40;
  constexpr double kConverged = 1e-13;  // of a standard deviation; f32 keeps 6e-8
  constexpr double kStartEnd = 3.0;     // spread of the start, in standard deviations
  HalfQuantizer q;
  q.n = n;
  for (int i = 0; i < n; ++i) q.c[i] = (i + 0.5) * kStartEnd / n;
  for (int i = 0; i < kLloydSteps; ++i) q = LloydStep(q, Moments(law, q));
  for (int i = 0; i < kNewtonSteps; ++i) {
    const CellMoments m = Moments(law, q);
    HalfQuantizer next = NewtonStep(law, q, m);
    if (!next.Increasing(law.end())) next = LloydStep(q, m);
    const double change = LargestChange(q, next);
    q = next;
    if (change < kConverged) break;
  }
  return q;
}

}  // namespace

LloydMaxCodebook SolveLloydMax(int bits, int dim) {
  const SphereLaw law(dim);
  const int half = 1 << (bits - 1);
  const HalfQuantizer q = SolveHalf(law, half);
  LloydMaxCodebook book;
  book.levels = 2 * half;
  for (int i = 0; i < half; ++i) {
    const auto centroid = static_cast<float>(q.c[i] / law.end());
    book.centroids[half + i] = centroid;
    book.centroids[half - 1 - i] = -centroid;
    const auto edge = static_cast<float>(q.Edge(i, law.end()) / law.end());
    book.thresholds[half - 1 + i] = edge;
    if (i > 0) book.thresholds[half - 1 - i] = -edge;
  }
  return book;
}

}  // namespace kvsieve::quant
