// The version of the library: the one source that CMake, pkg-config and reports read.
#ifndef KVSIEVE_VERSION_H_
#define KVSIEVE_VERSION_H_

#include <string_view>

namespace kvsieve {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace kvsieve

#endif  // KVSIEVE_VERSION_H_
