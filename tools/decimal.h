// Integers as people write them. CLI11 alone reads 010 as octal and 0x10 as hexadecimal, wraps -1
// around and clips what is too large.
#ifndef KVSIEVE_TOOLS_DECIMAL_H_
#define KVSIEVE_TOOLS_DECIMAL_H_

#include <charconv>
#include <limits>
#include <string>

#include "kvsieve/str_cat.h"

namespace kvsieve::tools {

// A check for options: decimal digits, from `min` to `max`.
template <class Integer>
auto Decimal(Integer min = std::numeric_limits<Integer>::min(),
             Integer max = std::numeric_limits<Integer>::max()) {
  return [min, max](const std::string& text) -> std::string {
    Integer value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    if (StrCat(value) == text && value >= min && value <= max) return {};
    return StrCat("'", text, "' is not a decimal integer from ", min, " to ", max);
  };
}

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_DECIMAL_H_
