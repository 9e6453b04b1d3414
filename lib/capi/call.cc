#include "lib/capi/call.h"

#include <algorithm>
#include <cstddef>

#include "kvsieve/version.h"

namespace kvsieve::capi {
namespace {

constexpr std::size_t kMessageBytes = 1024;
thread_local char last_error[kMessageBytes] = "";

// Appends what fits behind `used` bytes, up to a character of UTF-8; returns the bytes used then.
std::size_t Add(std::string_view text, std::size_t used) {
  std::size_t bytes = std::min(text.size(), kMessageBytes - 1 - used);
  const auto continues = [&] { return (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80; };
  while (bytes > 0 && bytes < text.size() && continues()) --bytes;
  std::copy_n(text.data(), bytes, last_error + used);
  last_error[used + bytes] = '\0';
  return used + bytes;
}

kvs_result ResultOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return KVS_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return KVS_UNSUPPORTED;
    case ErrorCode::kNonFinite:
      return KVS_NON_FINITE;
    case ErrorCode::kOutOfMemory:
      return KVS_OUT_OF_MEMORY;
    case ErrorCode::kState:
      return KVS_STATE;
    case ErrorCode::kNotExact:
      return KVS_NOT_EXACT;
    case ErrorCode::kIo:
      return KVS_IO;
  }
  return KVS_INTERNAL;
}

}  // namespace

kvs_result Fail(std::string_view name, kvs_result code, std::string_view message) noexcept {
  Add(message, Add(": ", Add(name, 0)));
  return code;
}

kvs_result Fail(std::string_view name, const Error& error) noexcept {
  return Fail(name, ResultOf(error.code), error.message);
}

}  // namespace kvsieve::capi

const char* kvs_last_error(void) { return kvsieve::capi::last_error; }

const char* kvs_version(void) { return kvsieve::kVersion.data(); }

const char* kvs_result_name(kvs_result result) {
  static constexpr const char* kNames[] = {
      "ok",        "invalid argument",    "unsupported",  "non-finite", "out of memory",
      "bad state", "exact rows are gone", "input/output", "internal"};
  const bool known = result >= KVS_OK && result <= KVS_INTERNAL;
  return known ? kNames[result] : "unknown result";
}
