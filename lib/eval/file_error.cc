#include "lib/eval/file_error.h"

#include <algorithm>
#include <system_error>

#include "kvsieve/str_cat.h"

namespace kvsieve::eval {

std::string OneLine(std::string_view text, std::size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string line;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      line.push_back(c);
    } else {
      line += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  if (text.size() > max_bytes) line += "...";
  return line;
}

Status FileErrors::Make(ErrorCode code, std::string_view where, std::string_view what,
                        std::string_view remedy) const {
  constexpr std::size_t kMaxPathBytes = 4096;
  const std::string path = OneLine(path_, kMaxPathBytes);
  return {code, StrCat(path, ": ", where, where.empty() ? "" : ": ", what,
                       remedy.empty() ? "" : "; ", remedy)};
}

Status FileErrors::System(std::string_view verb, int error_number) const {
  return Make(ErrorCode::kIo, "",
              StrCat("cannot ", verb, ": ", std::generic_category().message(error_number)),
              "check the path and its permissions");
}

}  // namespace kvsieve::eval
