// The shape of every message about a file: "trace.safetensors: tensor 'x': what; what to do".
#ifndef KVSIEVE_LIB_EVAL_FILE_ERROR_H_
#define KVSIEVE_LIB_EVAL_FILE_ERROR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvsieve/result.h"

namespace kvsieve::eval {

// Text from a file made safe for a one-line message: control characters as \xNN, cut after
// `max_bytes`.
std::string OneLine(std::string_view text, std::size_t max_bytes = 80);

// A file, and how to complain about it. `where` may be empty.
class FileErrors {
 public:
  explicit FileErrors(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  Status Make(ErrorCode code, std::string_view where, std::string_view what,
              std::string_view remedy) const;
  Status Invalid(std::string_view where, std::string_view what, std::string_view remedy) const {
    return Make(ErrorCode::kInvalidArgument, where, what, remedy);
  }
  // "cannot open: No such file or directory; check the name, ...", from errno.
  Status System(std::string_view verb, int error_number) const;
  // Fails on folders, pipes and devices; `mode` is st_mode.
  Status CheckRegular(std::uint32_t mode) const;

 private:
  std::string path_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_FILE_ERROR_H_
