// Output files of commands: checked before the work begins, complete or absent afterwards.
#ifndef KVSIEVE_TOOLS_OUTPUT_H_
#define KVSIEVE_TOOLS_OUTPUT_H_

#include <initializer_list>
#include <string>
#include <string_view>

#include "kvsieve/result.h"

namespace kvsieve::tools {

inline constexpr std::string_view kStdout = "-";

// Fails when `path` cannot become a file: its folder is missing or read-only, or it is a folder.
// An empty path and "-" pass.
Status CheckOutput(std::string_view option, const std::string& path);

// The same for binary output, which goes to a regular file only (never to "-").
Status CheckOutputFile(std::string_view option, const std::string& path);

// Fails when more than one of the paths is "-".
Status CheckOneStdout(std::initializer_list<std::string_view> paths);

// Writes `text` to stdout for "-", else to a temporary name that is then renamed. Something that
// exists and is no regular file (a device, a pipe) is written in place.
Status WriteOutput(const std::string& path, const std::string& text);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_OUTPUT_H_
