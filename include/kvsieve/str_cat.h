// StrCat("budget ", 16, " is smaller than ", 36): text for messages and canonical specs.
#ifndef KVSIEVE_STR_CAT_H_
#define KVSIEVE_STR_CAT_H_

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace kvsieve {
namespace str_cat_internal {

inline void Append(std::string& out, std::string_view text) { out.append(text); }
inline void Append(std::string& out, char c) { out.push_back(c); }

template <class T>
requires std::integral<T> || std::floating_point<T>
void Append(std::string& out, T value) {
  char digits[64];
  const auto [end, ec] = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, end);
}

}  // namespace str_cat_internal

// Numbers are written shortest-round-trip, independent of the locale.
template <class... Parts>
std::string StrCat(const Parts&... parts) {
  std::string out;
  (str_cat_internal::Append(out, parts), ...);
  return out;
}

}  // namespace kvsieve

#endif  // KVSIEVE_STR_CAT_H_
