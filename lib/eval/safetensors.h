// safetensors files: a JSON header that names, types and places tensors, then their bytes.
//
//   byte 0        8                    8 + header_bytes
//   | u64 header_bytes | JSON, may end in spaces | tensor bytes, contiguous, no gaps |
//
//   {"__metadata__": {"key": "text"},
//    "name": {"dtype": "F16", "shape": [3, 1024, 64], "data_offsets": [begin, end]}}
//
// Numbers are little-endian; data_offsets count from the end of the header.
#ifndef KVSIEVE_LIB_EVAL_SAFETENSORS_H_
#define KVSIEVE_LIB_EVAL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"
#include "lib/eval/file_error.h"

namespace kvsieve::eval {

inline constexpr std::uint64_t kMaxHeaderBytes = 16U << 20;
inline constexpr std::size_t kMaxTensors = 65536;
inline constexpr std::size_t kMaxRank = 4;

enum class TensorType : std::uint8_t { kF16, kBF16, kF32, kI32 };
std::string_view TensorTypeName(TensorType type);  // "F16", ...
constexpr std::size_t TensorTypeBytes(TensorType type) {
  return type == TensorType::kF16 || type == TensorType::kBF16 ? 2 : 4;
}

struct Tensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;   // row-major, rank <= kMaxRank
  std::span<const std::byte> bytes;  // not necessarily aligned to the type; owned elsewhere
};

struct Safetensors {
  std::map<std::string, std::string> metadata;
  std::vector<Tensor> tensors;  // in the order of their bytes
};

// Checks everything about the container before it is used: sizes, JSON without duplicate keys,
// counts, ranks, 64-bit products, and that the tensors tile the file in some order. Allocates in
// proportion to the header only; `file` must outlive the result.
Result<Safetensors> ParseSafetensors(std::span<const std::byte> file, const FileErrors& errors);

// The header of a file that holds `file.tensors`, padded so that the data begins on 8 bytes.
// `order` becomes the order of the bytes: 4-byte types first, which keeps every tensor aligned.
std::string SafetensorsHeader(const Safetensors& file, std::vector<const Tensor*>& order);

// The whole file in memory.
std::vector<std::byte> EncodeSafetensors(const Safetensors& file);

// The file on disk, written to a temporary name and renamed.
Status WriteSafetensors(const std::string& path, const Safetensors& file);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_SAFETENSORS_H_
