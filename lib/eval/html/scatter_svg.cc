#include "lib/eval/html/scatter_svg.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

// Everything in SVG user units.
constexpr double kWidth = 880;
constexpr double kHeight = 460;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 16;
constexpr double kBottom = 56;
// Errors below this are rounding of the reference itself, not of a pipeline.
constexpr double kSmallestError = 1e-3;

struct Scale {
  double low = 0;  // log2 or log10 of the value at `from`
  double high = 1;
  double from = 0;
  double to = 1;
  double operator()(double log_value) const {
    return from + (log_value - low) / (high - low) * (to - from);
  }
};

std::string Fixed(double value) { return StrCat(std::round(value * 10) / 10); }

std::string ByteLabel(int log2_bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  const int unit = std::clamp(log2_bytes / 10, 0, 4);
  return StrCat(std::exp2(log2_bytes - 10 * unit), " ", kUnits[unit]);
}

class Plot {
 public:
  explicit Plot(std::span<const ScatterPoint> points) : points_(points) {
    double low_x = 1e300;
    double high_x = 0;
    double high_y = 10 * kSmallestError;
    for (const ScatterPoint& p : points_) {
      low_x = std::min(low_x, p.kept_bytes);
      high_x = std::max(high_x, p.kept_bytes);
      high_y = std::max(high_y, p.output_error);
    }
    if (points_.empty()) low_x = high_x = 1024;
    x_ = {std::floor(std::log2(low_x)), std::ceil(std::log2(high_x) + 0.05), kLeft,
          kWidth - kRight};
    y_ = {std::log10(kSmallestError), std::log10(high_y) + 0.1, kHeight - kBottom, kTop};
  }

  std::string Draw() {
    out_ = StrCat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight,
                  "\" role=\"img\" aria-label=\"kept bytes against output error\">\n");
    DrawAxes();
    DrawFront();
    for (const ScatterPoint& p : points_) DrawPoint(p);
    return out_ + "</svg>\n";
  }

 private:
  double X(const ScatterPoint& p) const { return x_(std::log2(p.kept_bytes)); }
  double Y(const ScatterPoint& p) const {
    return y_(std::log10(std::max(p.output_error, kSmallestError)));
  }

  void Line(double x1, double y1, double x2, double y2, const char* style) {
    out_ += StrCat("<line class=\"", style, "\" x1=\"", Fixed(x1), "\" y1=\"", Fixed(y1),
                   "\" x2=\"", Fixed(x2), "\" y2=\"", Fixed(y2), "\"/>\n");
  }
  void Text(double x, double y, const std::string& text, const char* anchor, const char* style) {
    out_ += StrCat("<text class=\"", style, "\" x=\"", Fixed(x), "\" y=\"", Fixed(y),
                   "\" text-anchor=\"", anchor, "\">", HtmlText(text), "</text>\n");
  }

  void DrawAxes() {
    const double bottom = kHeight - kBottom;
    for (int log2 = static_cast<int>(x_.low); log2 <= x_.high; ++log2) {
      Line(x_(log2), kTop, x_(log2), bottom, "grid");
      Text(x_(log2), bottom + 18, ByteLabel(log2), "middle", "axis");
    }
    for (int decade = static_cast<int>(std::floor(y_.low)); decade <= y_.high; ++decade) {
      for (const int digit : {1, 2, 5}) {
        const double value = digit * std::pow(10.0, decade);
        const double log = std::log10(value);
        if (log < y_.low - 1e-9 || log > y_.high) continue;
        Line(kLeft, y_(log), kWidth - kRight, y_(log), "grid");
        const std::string label = StrCat(std::round(value * 1e4) / 1e4);
        const bool lowest = decade == static_cast<int>(std::floor(y_.low)) && digit == 1;
        Text(kLeft - 8, y_(log) + 4, lowest ? "\u2264 " + label : label, "end", "axis");
      }
    }
    Text((kLeft + kWidth - kRight) / 2, kHeight - 10, "kept bytes (log scale)", "middle", "axis");
    out_ += StrCat("<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(14 ",
                   Fixed((kTop + bottom) / 2),
                   ") rotate(-90)\">mean output error (log scale)</text>\n");
  }

  void DrawFront() {
    std::vector<ScatterPoint> front;
    for (const ScatterPoint& p : points_) {
      if (p.front) front.push_back(p);
    }
    if (front.empty()) return;
    std::sort(front.begin(), front.end(), [](const ScatterPoint& a, const ScatterPoint& b) {
      return a.kept_bytes < b.kept_bytes;
    });
    // Between two points of the front nothing measured is better than the smaller one's error.
    std::string path = StrCat("M", Fixed(X(front[0])), " ", Fixed(Y(front[0])));
    for (std::size_t i = 1; i < front.size(); ++i) {
      path += StrCat("H", Fixed(X(front[i])), "V", Fixed(Y(front[i])));
    }
    out_ += StrCat("<path class=\"front-line\" d=\"", path, "\"/>\n");
  }

  void DrawPoint(const ScatterPoint& p) {
    out_ += StrCat("<circle class=\"", p.front ? "point-front" : "point", "\" cx=\"", Fixed(X(p)),
                   "\" cy=\"", Fixed(Y(p)), "\" r=\"5\"><title>", HtmlText(p.label),
                   "</title></circle>\n");
    const auto [x, y] = PlaceNumber(X(p), Y(p));
    Text(x, y, StrCat(p.number), "middle", "number");
  }

  struct Spot {
    double x, y;
  };
  // The first of eight places around the point that no number and no point is near. Under a point
  // that another one touches from above the lower places come first, so that numbers of a pair
  // stand in the order of its points.
  Spot PlaceNumber(double x, double y) {
    constexpr double kTouch = 12;
    constexpr double kMiddle = 4;  // of a number's height, below its spot
    constexpr double kOffsets[][2] = {{11, -4}, {0, -9},   {0, 17}, {-11, -4},
                                      {12, 12}, {-12, 12}, {18, 4}, {-18, 4}};
    const bool below = std::ranges::any_of(points_, [&](const ScatterPoint& p) {
      return Y(p) < y && Y(p) > y - kTouch && std::abs(X(p) - x) < kTouch;
    });
    const auto spot_at = [&](const double(&offset)[2]) {
      const double up = offset[1] - kMiddle;
      return Spot{x + offset[0], y + kMiddle + (below ? -up : up)};
    };
    Spot best = spot_at(kOffsets[0]);
    for (const auto& offset : kOffsets) {
      const Spot spot = spot_at(offset);
      if (IsFree(spot)) {
        best = spot;
        break;
      }
    }
    numbers_.push_back(best);
    return best;
  }
  bool IsFree(const Spot& spot) const {
    const auto near = [&](double x, double y, double dx, double dy) {
      return std::abs(spot.x - x) < dx && std::abs(spot.y - 4 - y) < dy;
    };
    return std::none_of(numbers_.begin(), numbers_.end(),
                        [&](const Spot& n) { return near(n.x, n.y - 4, 14, 10); }) &&
           std::none_of(points_.begin(), points_.end(),
                        [&](const ScatterPoint& p) { return near(X(p), Y(p), 10, 7); });
  }

  std::span<const ScatterPoint> points_;
  Scale x_;
  Scale y_;
  std::vector<Spot> numbers_;
  std::string out_;
};

}  // namespace

std::string HtmlText(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string ScatterSvg(std::span<const ScatterPoint> points) { return Plot(points).Draw(); }

}  // namespace kvsieve::eval
