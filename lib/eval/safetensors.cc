#include "lib/eval/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvsieve/str_cat.h"
#include "lib/eval/atomic_file.h"

namespace kvsieve::eval {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read in place");

constexpr std::size_t kLengthBytes = 8;
constexpr std::string_view kRewrite = "write the file again with a safetensors library";
constexpr TensorType kTensorTypes[] = {TensorType::kF16, TensorType::kBF16, TensorType::kF32,
                                       TensorType::kI32};

// A tensor as the header describes it.
struct Entry {
  std::string name;
  std::optional<TensorType> type;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> data_offsets;
};

std::string TensorPlace(std::string_view name) { return StrCat("tensor '", OneLine(name), "'"); }

// Receives the header's JSON piece by piece, so that nothing is built that the format does not
// allow, and a key given twice is seen (a DOM would drop one of them).
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, std::string> metadata;
  std::vector<Entry> entries;

  const std::string& where() const { return where_; }
  const std::string& what() const { return what_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(StrCat("the number ", OneLine(text)));
  }
  bool number_integer(number_integer_t value) override {
    return Unexpected(StrCat("the number ", value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::kNumbers) return Unexpected(StrCat("the number ", value));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Fail(StrCat(key_, " holds ", value, ", which is not below 2^63"));
    }
    std::vector<std::int64_t>& numbers = *Numbers();
    if (numbers.size() == MaxNumbers()) {
      return Fail(StrCat(key_, " has more than ", MaxNumbers(), " numbers"));
    }
    numbers.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& text) override {
    if (level_ == Level::kMetadata) {
      metadata[key_] = std::move(text);
      return true;
    }
    if (level_ != Level::kTensor || key_ != "dtype") return Unexpected("text");
    for (const TensorType type : kTensorTypes) {
      if (TensorTypeName(type) == text) entries.back().type = type;
    }
    if (entries.back().type) return true;
    return Fail(StrCat("dtype '", OneLine(text), "' is not one of F16, BF16, F32, I32"));
  }

  bool start_object(std::size_t) override {
    if (level_ == Level::kStart) {
      level_ = Level::kTop;
    } else if (level_ == Level::kTop) {
      level_ = key_ == "__metadata__" ? Level::kMetadata : Level::kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    key_ = std::move(name);
    if (level_ == Level::kTop) return TopKey();
    if (level_ == Level::kMetadata) {
      if (metadata.emplace(key_, "").second) return true;
      return Fail(StrCat("key '", OneLine(key_), "' is given twice"));
    }
    return TensorKey();
  }

  bool end_object() override {
    where_ = "header";
    level_ = level_ == Level::kTop ? Level::kEnd : Level::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::kTensor || key_ == "dtype") return Unexpected("a list");
    Numbers()->clear();
    level_ = Level::kNumbers;
    return true;
  }

  bool end_array() override {
    level_ = Level::kTensor;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception&) override {
    where_ = "header";
    return Fail(StrCat("is not UTF-8 JSON, at byte ", byte));
  }

 private:
  enum class Level { kStart, kTop, kMetadata, kTensor, kNumbers, kEnd };

  bool Fail(std::string what) {
    what_ = std::move(what);
    return false;
  }

  bool Unexpected(std::string_view value) {
    return Fail(StrCat("did not expect ", value, key_.empty() ? "" : " at key '", OneLine(key_),
                       key_.empty() ? "" : "'"));
  }

  bool TopKey() {
    if (key_ == "__metadata__") {
      where_ = key_;
      if (std::exchange(has_metadata_, true)) return Fail("is given twice");
      return true;
    }
    where_ = TensorPlace(key_);
    if (!seen_names_.emplace(key_, true).second) return Fail("is given twice");
    if (entries.size() == kMaxTensors) {
      return Fail(StrCat("is one more than the limit of ", kMaxTensors, " tensors"));
    }
    entries.push_back({key_, {}, {}, {}});
    return true;
  }

  bool TensorKey() {
    Entry& entry = entries.back();
    bool given_twice = false;
    if (key_ == "dtype") {
      given_twice = std::exchange(has_dtype_of_, entries.size()) == entries.size();
    } else if (key_ == "shape" || key_ == "data_offsets") {
      auto& numbers = key_ == "shape" ? entry.shape : entry.data_offsets;
      given_twice = numbers.has_value();
      numbers.emplace();
    } else {
      return Fail(StrCat("key '", OneLine(key_), "' is not one of dtype, shape, data_offsets"));
    }
    return !given_twice || Fail(StrCat("key '", key_, "' is given twice"));
  }

  std::optional<std::vector<std::int64_t>>& Numbers() {
    return key_ == "shape" ? entries.back().shape : entries.back().data_offsets;
  }
  std::size_t MaxNumbers() const { return key_ == "shape" ? kMaxRank : 2; }

  Level level_ = Level::kStart;
  std::string key_;
  std::string where_ = "header";
  std::string what_;
  std::map<std::string, bool> seen_names_;
  std::size_t has_dtype_of_ = 0;  // number of the tensor, from 1, whose dtype key was seen last
  bool has_metadata_ = false;
};

// What the header says of one tensor, checked against itself and against the data.
Result<Tensor> CheckEntry(const Entry& entry, std::span<const std::byte> data,
                          const FileErrors& errors) {
  const std::string place = TensorPlace(entry.name);
  if (!entry.type || !entry.shape || !entry.data_offsets || entry.data_offsets->size() != 2) {
    return errors.Invalid(place, "needs dtype, shape and data_offsets [begin, end]", kRewrite);
  }
  std::int64_t tensor_bytes = static_cast<std::int64_t>(TensorTypeBytes(*entry.type));
  for (const std::int64_t extent : *entry.shape) {
    if (__builtin_mul_overflow(tensor_bytes, extent, &tensor_bytes)) {
      return errors.Invalid(place, "its shape multiplies to more than 2^63 bytes", kRewrite);
    }
  }
  const std::int64_t begin = (*entry.data_offsets)[0];
  const std::int64_t end = (*entry.data_offsets)[1];
  if (begin > end || end - begin != tensor_bytes) {
    return errors.Invalid(place,
                          StrCat("data_offsets [", begin, ", ", end, "] do not span the ",
                                 tensor_bytes, " bytes of its dtype and shape"),
                          kRewrite);
  }
  if (static_cast<std::uint64_t>(end) > data.size()) {
    return errors.Invalid(place,
                          StrCat("ends at data byte ", end, " but the file holds only ",
                                 data.size(), ": it is truncated"),
                          "copy or capture it again");
  }
  return Tensor{
      entry.name, *entry.type, *entry.shape,
      data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(tensor_bytes))};
}

// Sorts by place and checks that the tensors cover `data` without gap or overlap.
Status CheckTiling(std::vector<Tensor>& tensors, std::span<const std::byte> data,
                   const FileErrors& errors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    // Empty tensors share their place with the next one and come first.
    return a.bytes.data() != b.bytes.data() ? a.bytes.data() < b.bytes.data()
                                            : a.bytes.size() < b.bytes.size();
  });
  const std::byte* next = data.data();
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes.data() != next) {
      const bool gap = tensor.bytes.data() > next;
      return errors.Invalid(TensorPlace(tensor.name),
                            StrCat("begins at data byte ", tensor.bytes.data() - data.data(), ", ",
                                   gap ? "a gap after" : "an overlap with",
                                   " the tensor that ends at ", next - data.data()),
                            kRewrite);
    }
    next += tensor.bytes.size();
  }
  const std::ptrdiff_t left_over = data.data() + data.size() - next;
  if (left_over == 0) return Status::Ok();
  return errors.Invalid("", StrCat("holds ", left_over, " bytes after the last tensor"), kRewrite);
}

}  // namespace

std::string_view TensorTypeName(TensorType type) {
  constexpr std::string_view kNames[] = {"F16", "BF16", "F32", "I32"};
  return kNames[static_cast<std::size_t>(type)];
}

Result<Safetensors> ParseSafetensors(std::span<const std::byte> file, const FileErrors& errors) {
  if (file.size() < kLengthBytes) {
    return errors.Invalid(
        "", StrCat("has ", file.size(), " bytes, fewer than the 8 of a header length"),
        "this is not a safetensors file");
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  const auto* header = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (header_bytes == 0 || (file.size() > kLengthBytes && header[0] != '{')) {
    return errors.Invalid("header", "does not begin with '{'", "this is not a safetensors file");
  }
  if (header_bytes > kMaxHeaderBytes) {
    return errors.Invalid("header length",
                          StrCat(header_bytes, " bytes is more than the limit of 16 MiB"),
                          "it holds too many tensors");
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return errors.Invalid("header length",
                          StrCat(header_bytes, " bytes is more than the ",
                                 file.size() - kLengthBytes, " that follow: the file is truncated"),
                          "copy or capture it again");
  }
  // The JSON library takes a zero byte for the end of the text; nothing may hide behind it.
  if (const void* zero = std::memchr(header, 0, header_bytes); zero != nullptr) {
    return errors.Invalid(
        "header",
        StrCat("is not UTF-8 JSON, at byte ", static_cast<const char*>(zero) - header + 1),
        kRewrite);
  }
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &handler)) {
    return errors.Invalid(handler.where(), handler.what(), kRewrite);
  }
  Safetensors parsed{std::move(handler.metadata), {}};
  const auto data = file.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes));
  parsed.tensors.reserve(handler.entries.size());
  for (const Entry& entry : handler.entries) {
    KVS_ASSIGN_OR_RETURN(Tensor tensor, CheckEntry(entry, data, errors));
    parsed.tensors.push_back(std::move(tensor));
  }
  KVS_RETURN_IF_ERROR(CheckTiling(parsed.tensors, data, errors));
  return parsed;
}

std::string SafetensorsHeader(const Safetensors& file, std::vector<const Tensor*>& order) {
  constexpr std::size_t kDataAlignment = 8;
  order.clear();
  for (const Tensor& tensor : file.tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return TensorTypeBytes(a->type) > TensorTypeBytes(b->type);
  });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["__metadata__"] = file.metadata;
  std::size_t begin = 0;
  for (const Tensor* tensor : order) {
    const std::size_t end = begin + tensor->bytes.size();
    json[tensor->name] = {{"dtype", TensorTypeName(tensor->type)},
                          {"shape", tensor->shape},
                          {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string header = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  header.resize((header.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const std::uint64_t header_bytes = header.size();
  std::string length(kLengthBytes, '\0');
  std::memcpy(length.data(), &header_bytes, kLengthBytes);
  return length + header;
}

std::vector<std::byte> EncodeSafetensors(const Safetensors& file) {
  std::vector<const Tensor*> order;
  const std::string header = SafetensorsHeader(file, order);
  const auto header_bytes = std::as_bytes(std::span(header));
  std::vector<std::byte> bytes(header_bytes.begin(), header_bytes.end());
  for (const Tensor* tensor : order) {
    bytes.insert(bytes.end(), tensor->bytes.begin(), tensor->bytes.end());
  }
  return bytes;
}

Status WriteSafetensors(const std::string& path, const Safetensors& file) {
  std::vector<const Tensor*> order;
  const std::string header = SafetensorsHeader(file, order);
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(header))};
  for (const Tensor* tensor : order) parts.push_back(tensor->bytes);
  return WriteFileAtomically(path, parts);
}

}  // namespace kvsieve::eval
