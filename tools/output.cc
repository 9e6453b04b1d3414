#include "tools/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>

#include "kvsieve/str_cat.h"
#include "lib/eval/atomic_file.h"
#include "lib/eval/file_error.h"

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

bool IsSameFile(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty() || a == kStdout || b == kStdout || IsSpecialFile(a)) return false;
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  // What does not exist yet has nothing but a name.
  return fs::weakly_canonical(fs::absolute(eval::FollowLinks(a)), ignored) ==
         fs::weakly_canonical(fs::absolute(eval::FollowLinks(b)), ignored);
}

Status WriteInPlace(const std::string& path, const std::string& text) {
  const eval::FileErrors errors(path);
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return errors.System("write", errno);
  int error = std::fwrite(text.data(), 1, text.size(), file) == text.size() ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  return error == 0 ? Status() : errors.System("write", error);
}

}  // namespace

CLI::Option* AddOutput(CLI::App& command, const std::string& option, std::string& path,
                       const std::string& what) {
  return command.add_option(option, path, what)
      ->check([](const std::string& text) {
        return text.empty() ? "the name of the file is empty" : std::string();
      })
      ->type_name("FILE");
}

Status CheckOutput(std::string_view option, const std::string& path) {
  if (path.empty() || path == kStdout) return {};
  std::error_code ignored;
  const std::string target = eval::FollowLinks(path);
  if (target.empty()) return OutputError(option, path, "its symbolic links lead in a circle");
  if (fs::is_directory(path, ignored)) {
    return OutputError(option, path, "it is a folder, name a file");
  }
  const std::string folder = fs::path(target).parent_path().string();
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

Status CheckDistinct(std::string_view what, const std::string& input,
                     std::initializer_list<NamedOutput> outputs) {
  for (const NamedOutput* output = outputs.begin(); output != outputs.end(); ++output) {
    if (IsSameFile(output->path, input)) {
      return OutputError(output->option, output->path,
                         StrCat("it is ", what, " that is read, name another file"));
    }
    for (const NamedOutput* earlier = outputs.begin(); earlier != output; ++earlier) {
      if (!IsSameFile(output->path, earlier->path)) continue;
      return OutputError(output->option, output->path,
                         StrCat("it is the file of ", earlier->option, " too, name another"));
    }
  }
  return {};
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
