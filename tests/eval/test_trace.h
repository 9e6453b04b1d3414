// Traces made in memory for tests: a good one, and the means to break it anywhere. Writes the
// format on its own, without the library's writer.
#ifndef KVSIEVE_TESTS_EVAL_TEST_TRACE_H_
#define KVSIEVE_TESTS_EVAL_TEST_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvsieve::eval {

struct TestTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<std::uint64_t> shape;
  std::string bytes;
  // Written in place of the true values.
  std::optional<std::pair<std::string, std::string>> data_offsets;
};

// A safetensors file, part by part.
struct TestFile {
  std::vector<std::pair<std::string, std::string>> metadata;  // key, text
  std::vector<TestTensor> tensors;
  // Replaces the first occurrence of a text in the finished header, the second by the first.
  std::vector<std::pair<std::string, std::string>> header_edits;
  std::optional<std::uint64_t> header_length;  // written in place of the true one
  std::optional<std::size_t> keep_bytes;       // cut after these
  std::string extra_bytes;                     // appended
  std::size_t header_padding_to = 8;           // 1: none

  std::vector<std::byte> Encode() const;

  TestTensor& Get(const std::string& name);
  void Remove(const std::string& name);
  void SetMetadata(const std::string& key, const std::string& text);
  void RemoveMetadata(const std::string& key);
};

struct TestShape {
  std::vector<int> layers = {0, 3};
  int query_heads = 4;
  int kv_heads = 2;
  int key_dim = 3;
  int value_dim = 5;
  int tokens = 6;
  int window = 3;
  int n_eval = 2;
  std::string dtype = "F32";  // of K, V and Q
  bool eval_rows = true;
  bool eval_outputs = true;
  unsigned seed = 1;
  double key_scale = 1;  // standard deviation of K
};

// Gaussian rows; out_eval is noise too, unless a test fills it.
TestFile MakeTestTrace(const TestShape& shape);

// `values` as bytes of the type "F32", "F16" or "BF16".
std::string EncodeElements(const std::string& dtype, const std::vector<float>& values);
std::string EncodeInts(const std::vector<std::int32_t>& values);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_TESTS_EVAL_TEST_TRACE_H_
