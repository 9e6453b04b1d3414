#include "tools/table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/terminal.h"

namespace kvsieve::tools {
namespace {

constexpr int kGap = 2;
// With less room the last column does not stand beside the others.
constexpr int kMinWrapWidth = 24;
constexpr int kOwnLineIndent = 6;

std::string Pad(const std::string& text, int width, Align align) {
  const std::string fill(std::max(0, width - static_cast<int>(text.size())), ' ');
  return align == Align::kLeft ? text + fill : fill + text;
}

void TrimRight(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

void Table::AddColumn(std::string name, std::string unit, Align align) {
  columns_.push_back({std::move(name), std::move(unit), align});
}

void Table::AddRow(std::vector<std::string> cells, RowStyle style) {
  rows_.push_back({std::move(cells), style});
}

std::vector<int> Table::Widths() const {
  std::vector<int> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = std::max(columns_[c].name.size(), columns_[c].unit.size());
    for (const Row& row : rows_) width = std::max(width, row.cells[c].size());
    widths.push_back(static_cast<int>(width));
  }
  return widths;
}

Table::Layout Table::LayoutFor(int columns) const {
  Layout layout{Widths(), kGap, columns};
  int figures = 0;  // columns that all but the last take, with the gaps between them
  for (std::size_t c = 0; c + 1 < columns_.size(); ++c) figures += layout.widths[c] + kGap;
  if (columns > 0 && figures - kGap > columns) layout.gap = 1;
  return layout;
}

std::vector<std::string> Table::Lines(const std::vector<std::string>& cells,
                                      const Layout& layout) const {
  const int columns = layout.columns;
  std::string line;
  const std::size_t last = columns_.size() - 1;
  for (std::size_t c = 0; c < last; ++c) {
    line += Pad(cells[c], layout.widths[c], columns_[c].align) + std::string(layout.gap, ' ');
  }
  std::vector<std::string> lines;
  std::string lead = line;
  std::string next_lead(line.size() + kGap, ' ');
  int width = columns > 0 ? columns - static_cast<int>(line.size()) : 0;
  if (columns > 0 && width < kMinWrapWidth) {
    // No room beside the figures: the text gets lines of its own, below them.
    lines.push_back(line);
    TrimRight(lines.back());
    lead = std::string(kOwnLineIndent, ' ');
    next_lead = std::string(kOwnLineIndent + kGap, ' ');
    width = std::max(kMinWrapWidth, columns - kOwnLineIndent);
    if (cells[last].empty()) return lines;
  }
  for (const std::string& part : Wrap(cells[last], width)) {
    lines.push_back(lead + part);
    TrimRight(lines.back());
    lead = next_lead;
  }
  return lines;
}

void Table::Print(std::FILE* out) const {
  const Layout layout = LayoutFor(TerminalColumns(out));
  const bool colour = UseColour(out);
  const auto print = [&](const std::vector<std::string>& cells, const char* escape) {
    for (const std::string& line : Lines(cells, layout)) {
      if (colour && *escape != '\0') {
        std::fprintf(out, "%s%s\x1b[0m\n", escape, line.c_str());
      } else {
        std::fprintf(out, "%s\n", line.c_str());
      }
    }
  };
  std::vector<std::string> names, units;
  for (const Column& column : columns_) {
    names.push_back(column.name);
    units.push_back(column.unit);
  }
  print(names, "\x1b[1m");
  const bool has_units = std::any_of(units.begin(), units.end(),
                                     [](const std::string& unit) { return !unit.empty(); });
  if (has_units) print(units, "\x1b[2m");
  for (const Row& row : rows_) print(row.cells, row.style == RowStyle::kMarked ? "\x1b[32m" : "");
}

std::vector<std::string> Wrap(const std::string& text, int width) {
  std::vector<std::string> lines;
  std::string rest = text;
  // Continuation lines are indented by the table, so they hold less.
  int room = width;
  while (width > 0 && static_cast<int>(rest.size()) > room) {
    std::size_t cut = rest.rfind(' ', room);
    if (cut == std::string::npos || cut == 0) {
      const std::size_t comma = rest.rfind(',', room - 1);
      cut = comma == std::string::npos ? room : comma + 1;
    }
    lines.push_back(rest.substr(0, cut));
    rest.erase(0, cut);
    rest.erase(0, rest.find_first_not_of(' '));
    room = width - kGap;
  }
  lines.push_back(rest);
  return lines;
}

std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return out;
}

std::string Fixed(std::optional<double> value, int decimals) {
  if (!value || !std::isfinite(*value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, *value);
  return text;
}

ByteUnit ByteUnitFor(std::int64_t largest_bytes) {
  constexpr std::int64_t kMiB = 1 << 20;
  if (largest_bytes >= 10 * kMiB) return {"MiB", static_cast<double>(kMiB)};
  return {"KiB", 1024};
}

}  // namespace kvsieve::tools
