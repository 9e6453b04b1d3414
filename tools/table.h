// An aligned table with a two-line header (name, unit). The last column is left-aligned text that
// may be long: it wraps at the width of the terminal instead of breaking the table, and stands
// below the others, indented, where there is no room beside them.
#ifndef KVSIEVE_TOOLS_TABLE_H_
#define KVSIEVE_TOOLS_TABLE_H_

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace kvsieve::tools {

enum class Align { kLeft, kRight };
enum class RowStyle { kPlain, kMarked };  // marked rows are coloured on a terminal

class Table {
 public:
  void AddColumn(std::string name, std::string unit, Align align = Align::kRight);
  // One cell per column.
  void AddRow(std::vector<std::string> cells, RowStyle style = RowStyle::kPlain);
  void Print(std::FILE* out) const;

 private:
  struct Column {
    std::string name;
    std::string unit;
    Align align;
  };
  struct Row {
    std::vector<std::string> cells;
    RowStyle style;
  };

  struct Layout {
    std::vector<int> widths;
    int gap;      // blanks between columns
    int columns;  // of the terminal, 0: none
  };

  std::vector<int> Widths() const;
  Layout LayoutFor(int columns) const;
  std::vector<std::string> Lines(const std::vector<std::string>& cells, const Layout& layout) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// `text` in lines of at most `width` characters (0: one line), broken at a space, else after a
// comma. All but the first leave room for an indent of two.
std::vector<std::string> Wrap(const std::string& text, int width);

// Text from a file, without control characters.
std::string Printable(const std::string& text);

// Figures for cells; a dash where there is none.
std::string Fixed(std::optional<double> value, int decimals);

// KiB, or MiB when the largest figure of a column is big.
struct ByteUnit {
  const char* name;
  double bytes;
};
ByteUnit ByteUnitFor(std::int64_t largest_bytes);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_TABLE_H_
