// Output files of commands: checked before the work begins, complete or absent afterwards.
#ifndef KVSIEVE_TOOLS_OUTPUT_H_
#define KVSIEVE_TOOLS_OUTPUT_H_

#include <CLI/App.hpp>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kvsieve/result.h"

namespace kvsieve::tools {

inline constexpr std::string_view kStdout = "-";

// Declares an option that names a file to write. An empty name is refused.
CLI::Option* AddOutput(CLI::App& command, const std::string& option, std::string& path,
                       const std::string& what);

// Fails when `path` cannot become a file: its folder is missing or read-only, or it is a folder.
// An empty path and "-" pass.
Status CheckOutput(std::string_view option, const std::string& path);

// The same for binary output, which goes to a regular file only (never to "-").
Status CheckOutputFile(std::string_view option, const std::string& path);

// Fails when more than one of the paths is "-".
Status CheckOneStdout(std::initializer_list<std::string_view> paths);

struct NamedOutput {
  std::string_view option;
  const std::string& path;  // empty: not asked for
};

// Fails when an output is the input that is read ("the trace"), or the file of another output: by
// name, through symbolic links or as a hard link. Devices and "-" pass.
Status CheckDistinct(std::string_view what, const std::string& input,
                     std::initializer_list<NamedOutput> outputs);

// Writes `text` to stdout for "-", else to a temporary name that is then renamed; a symbolic
// link is written through. Something that exists and is no regular file (a device, a pipe) is
// written in place.
Status WriteOutput(const std::string& path, const std::string& text);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_OUTPUT_H_
