#include "tools/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include "kvsieve/str_cat.h"
#include "lib/eval/atomic_file.h"

namespace kvsieve::tools {
namespace {

namespace fs = std::filesystem;

Status OutputError(std::string_view option, const std::string& path, std::string_view why) {
  return {ErrorCode::kIo, StrCat("cannot write '", path, "' (", option, "): ", why)};
}

bool IsSpecialFile(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) && !fs::is_regular_file(path, ignored);
}

Status WriteInPlace(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return OutputError("output", path, std::strerror(errno));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  return written && closed ? Status() : OutputError("output", path, std::strerror(errno));
}

}  // namespace

Status CheckOutput(std::string_view option, const std::string& path) {
  if (path.empty() || path == kStdout) return {};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return OutputError(option, path, "it is a folder, name a file");
  }
  const std::string folder = fs::path(path).parent_path().string();
  const std::string where = folder.empty() ? "." : folder;
  if (!fs::is_directory(where, ignored)) {
    return OutputError(option, path, StrCat("there is no folder '", where, "', create it"));
  }
  if (access(where.c_str(), W_OK | X_OK) != 0) {
    return OutputError(option, path,
                       StrCat("folder '", where, "' is not writable, choose another"));
  }
  return {};
}

Status CheckOutputFile(std::string_view option, const std::string& path) {
  if (path.empty() || path == kStdout || IsSpecialFile(path)) {
    return OutputError(option, path, "it must be a regular file, name one");
  }
  return CheckOutput(option, path);
}

Status CheckOneStdout(std::initializer_list<std::string_view> paths) {
  int to_stdout = 0;
  for (const std::string_view path : paths) to_stdout += path == kStdout ? 1 : 0;
  if (to_stdout <= 1) return {};
  return Status::Invalid(
      "only one output can be '-' (standard output), name a file for the others");
}

Status WriteOutput(const std::string& path, const std::string& text) {
  if (path == kStdout) {
    std::fwrite(text.data(), 1, text.size(), stdout);  // main checks stdout once, at the end
    return {};
  }
  if (IsSpecialFile(path)) return WriteInPlace(path, text);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return eval::WriteFileAtomically(path, std::span(&bytes, 1));
}

}  // namespace kvsieve::tools
