#include "tests/eval/test_trace.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

template <class T>
std::string AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Header(const TestFile& file) {
  std::string json = "{\"__metadata__\":{";
  for (const auto& [key, text] : file.metadata) {
    json += StrCat(json.back() == '{' ? "" : ",", "\"", key, "\":\"", text, "\"");
  }
  json += "}";
  std::size_t begin = 0;
  for (const TestTensor& tensor : file.tensors) {
    std::string shape;
    for (const std::uint64_t extent : tensor.shape) {
      shape += StrCat(shape.empty() ? "" : ",", extent);
    }
    const std::size_t end = begin + tensor.bytes.size();
    const auto offsets = tensor.data_offsets.value_or(std::pair(StrCat(begin), StrCat(end)));
    json += StrCat(",\"", tensor.name, "\":{\"dtype\":\"", tensor.dtype, "\",\"shape\":[", shape,
                   "],\"data_offsets\":[", offsets.first, ",", offsets.second, "]}");
    begin = end;
  }
  json += "}";
  for (const auto& [from, to] : file.header_edits) {
    const std::size_t place = json.find(from);
    if (place == json.npos) return "the test edits a text that is not there: " + from;
    json.replace(place, from.size(), to);
  }
  while (json.size() % file.header_padding_to != 0) json += ' ';
  return json;
}

}  // namespace

std::vector<std::byte> TestFile::Encode() const {
  const std::string header = Header(*this);
  const std::uint64_t length = header_length.value_or(header.size());
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  text += header;
  for (const TestTensor& tensor : tensors) text += tensor.bytes;
  text += extra_bytes;
  if (keep_bytes) text.resize(std::min(*keep_bytes, text.size()));
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TestTensor& TestFile::Get(const std::string& name) {
  const auto is_it = [&](const TestTensor& tensor) { return tensor.name == name; };
  return *std::find_if(tensors.begin(), tensors.end(), is_it);
}

void TestFile::Remove(const std::string& name) {
  std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
}

void TestFile::SetMetadata(const std::string& key, const std::string& text) {
  RemoveMetadata(key);
  metadata.emplace_back(key, text);
}

void TestFile::RemoveMetadata(const std::string& key) {
  std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
}

std::string EncodeElements(const std::string& dtype, const std::vector<float>& values) {
  if (dtype == "F32") return AsBytes(values);
  std::vector<std::uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [&](float value) {
    return dtype == "F16" ? ToF16(value).bits : ToBF16(value).bits;
  });
  return AsBytes(bits);
}

std::string EncodeInts(const std::vector<std::int32_t>& values) { return AsBytes(values); }

TestFile MakeTestTrace(const TestShape& shape) {
  TestFile file;
  file.metadata = {{"kvtrace.version", "1"},   {"model.name", "test"},
                   {"model.arch", "test"},     {"model.license", "Apache-2.0"},
                   {"attn.scale", "0.5"},      {"rope.type", "half"},
                   {"rope.theta", "10000.0"},  {"source.dtype", "f32"},
                   {"capture.tool", "a test"}, {"prompt.sha256", std::string(64, '0')}};
  std::mt19937 random(shape.seed);
  const auto add_rows = [&](const std::string& name, int heads, int rows, int dim, double scale) {
    std::normal_distribution<double> normal(0, scale);
    std::vector<float> values(static_cast<std::size_t>(heads * rows * dim));
    for (float& value : values) value = static_cast<float>(normal(random));
    file.tensors.push_back({name,
                            shape.dtype,
                            {static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(rows),
                             static_cast<std::uint64_t>(dim)},
                            EncodeElements(shape.dtype, values),
                            std::nullopt});
  };
  const auto add_ints = [&](const std::string& name, int first, int count) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), first);
    file.tensors.push_back(
        {name, "I32", {static_cast<std::uint64_t>(count)}, EncodeInts(values), std::nullopt});
  };
  add_ints("positions", 0, shape.tokens);
  add_ints("q_window_positions", shape.tokens - shape.window, shape.window);
  add_ints("q_eval_positions", shape.tokens, shape.n_eval);
  add_ints("tokens", 100, shape.tokens);
  for (const int layer : shape.layers) {
    const std::string prefix = StrCat("layer.", layer, ".");
    add_rows(prefix + "k", shape.kv_heads, shape.tokens, shape.key_dim, shape.key_scale);
    add_rows(prefix + "v", shape.kv_heads, shape.tokens, shape.value_dim, 1);
    add_rows(prefix + "q_window", shape.query_heads, shape.window, shape.key_dim, 1);
    add_rows(prefix + "q_eval", shape.query_heads, shape.n_eval, shape.key_dim, 1);
    if (shape.eval_rows) {
      add_rows(prefix + "k_eval", shape.kv_heads, shape.n_eval, shape.key_dim, shape.key_scale);
      add_rows(prefix + "v_eval", shape.kv_heads, shape.n_eval, shape.value_dim, 1);
    }
    if (shape.eval_outputs) {
      add_rows(prefix + "out_eval", shape.query_heads, shape.n_eval, shape.value_dim, 1);
    }
  }
  return file;
}

}  // namespace kvsieve::eval
