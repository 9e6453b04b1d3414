#include "lib/eval/file_error.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

std::string_view RemedyFor(int error_number) {
  switch (error_number) {
    case ENOENT:
      return "check the name, and that its folder exists";
    case ENOTDIR:
      return "a part of the path is no folder: check it";
    case EISDIR:
      return "name a file";
    case ENAMETOOLONG:
      return "choose a shorter name";
    case ELOOP:
      return "its symbolic links lead in a circle: name the file itself";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and of its folder";
    case EROFS:
      return "choose a folder that can be written";
    case ENOSPC:
      return "free space there, or write to another disk";
    case EDQUOT:
      return "your share of the disk is used up: free space there, or write to another disk";
    case EFBIG:
      return "raise the limit of file sizes (ulimit -f), or write to another disk";
    case EMFILE:
    case ENFILE:
      return "close files, or raise their limit (ulimit -n)";
    case ENOMEM:
      return "free memory, or use a smaller input";
    case EIO:
      return "the disk reports a fault: try another";
    case EPIPE:
      return "what should read it has ended";
    case EBUSY:
    case ETXTBSY:
      return "another program uses it: try again later";
    default:
      return "try again, or use another file";
  }
}

}  // namespace

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
              RemedyFor(error_number));
}

Status FileErrors::CheckRegular(std::uint32_t mode) const {
  if (S_ISREG(mode)) return Status::Ok();
  if (S_ISDIR(mode)) return System("read", EISDIR);
  return Make(ErrorCode::kIo, "", "is not a regular file", "name a file on disk");
}

}  // namespace kvsieve::eval
