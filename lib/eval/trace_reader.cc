#include "lib/eval/trace_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "kvsieve/saved_state.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/non_finite.h"
#include "lib/eval/safetensors.h"
#include "lib/eval/trace_metadata.h"

namespace kvsieve::eval {
namespace {

constexpr std::string_view kCapture = "capture it again as docs/trace-format.md says";

enum Part { kK, kV, kQWindow, kQEval, kKEval, kVEval, kOutEval, kParts };
constexpr std::array<std::string_view, kParts> kPartNames = {
    "k", "v", "q_window", "q_eval", "k_eval", "v_eval", "out_eval"};

// A position has a next one, and both are TokenPos.
constexpr TokenPos kLastPosition = std::numeric_limits<TokenPos>::max() - 1;

enum Sequence { kPositions, kWindowPositions, kEvalPositions, kTokens, kSequences };
constexpr std::array<std::string_view, kSequences> kSequenceNames = {
    "positions", "q_window_positions", "q_eval_positions", "tokens"};

using LayerTensors = std::array<const Tensor*, kParts>;

std::string Place(const Tensor& tensor) { return StrCat("tensor '", OneLine(tensor.name), "'"); }

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += StrCat(text.size() > 1 ? ", " : "", extent);
  }
  return text + "]";
}

std::optional<ElementType> RowType(TensorType type) {
  switch (type) {
    case TensorType::kF16:
      return ElementType::kF16;
    case TensorType::kBF16:
      return ElementType::kBF16;
    case TensorType::kF32:
      return ElementType::kF32;
    case TensorType::kI32:
      return std::nullopt;
  }
  return std::nullopt;
}

struct LayerName {
  int layer;
  Part part;
};

// layer.{i}.{part}, i without sign or leading zeros and below a million.
std::optional<LayerName> ParseLayerName(std::string_view name) {
  constexpr std::string_view kPrefix = "layer.";
  constexpr std::size_t kMaxDigits = 6;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  if (digits == 0 || digits > kMaxDigits || (digits > 1 && name[0] == '0')) return std::nullopt;
  LayerName parsed{};
  std::from_chars(name.data(), name.data() + digits, parsed.layer);
  if (digits == name.size() || name[digits] != '.') return std::nullopt;
  const auto part = std::find(kPartNames.begin(), kPartNames.end(), name.substr(digits + 1));
  if (part == kPartNames.end()) return std::nullopt;
  parsed.part = static_cast<Part>(part - kPartNames.begin());
  return parsed;
}

// Sorts the tensors into slots, then checks them from the sequences to the layers.
class TraceReader {
 public:
  TraceReader(const Safetensors& file, const FileErrors& errors, TraceContent* content)
      : file_(file), errors_(errors), content_(*content) {}

  Status Read() {
    KVS_RETURN_IF_ERROR(SortTensors());
    KVS_ASSIGN_OR_RETURN(attention_, ReadMetadata(file_.metadata, layers_.size(), errors_));
    KVS_RETURN_IF_ERROR(ReadSequences());
    content_.metadata = file_.metadata;
    std::size_t layer_index = 0;
    for (const auto& [number, tensors] : layers_) {
      KVS_RETURN_IF_ERROR(ReadLayer(number, layer_index++, tensors));
    }
    return Status::Ok();
  }

 private:
  Status Bad(const Tensor& tensor, std::string_view what) const {
    return errors_.Invalid(Place(tensor), what, kCapture);
  }

  Status SortTensors() {
    for (const Tensor& tensor : file_.tensors) {
      const auto sequence = std::find(kSequenceNames.begin(), kSequenceNames.end(), tensor.name);
      if (sequence != kSequenceNames.end()) {
        sequences_[static_cast<std::size_t>(sequence - kSequenceNames.begin())] = &tensor;
      } else if (const auto name = ParseLayerName(tensor.name)) {
        layers_[name->layer][name->part] = &tensor;
      } else {
        return errors_.Invalid(
            Place(tensor), "is not a name of kv-trace 1",
            "known: positions, q_window_positions, q_eval_positions, tokens, and layer.{i}.{k, v, "
            "q_window, q_eval, k_eval, v_eval, out_eval}");
      }
    }
    if (!layers_.empty()) return Status::Ok();
    return errors_.Invalid("", "holds no layer.{i}.k", kCapture);
  }

  // The tensor's bytes, from a copy when the file does not align them.
  const void* Aligned(const Tensor& tensor) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.bytes.data());
    if (address % TensorTypeBytes(tensor.type) == 0) return tensor.bytes.data();
    content_.aligned_copies.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
    return content_.aligned_copies.back().data();
  }

  Result<std::span<const std::int32_t>> ReadSequence(Sequence sequence) {
    const Tensor* tensor = sequences_[sequence];
    if (tensor == nullptr) {
      return errors_.Invalid(StrCat("tensor '", kSequenceNames[sequence], "'"), "is missing",
                             kCapture);
    }
    if (tensor->type != TensorType::kI32 || tensor->shape.size() != 1) {
      return Bad(*tensor, StrCat("is ", TensorTypeName(tensor->type), " ", ShapeText(tensor->shape),
                                 ", not I32 with one dimension"));
    }
    return std::span(static_cast<const std::int32_t*>(Aligned(*tensor)),
                     static_cast<std::size_t>(tensor->shape[0]));
  }

  Result<std::span<const TokenPos>> ReadPositions(Sequence sequence, std::size_t min_count) {
    KVS_ASSIGN_OR_RETURN(const auto positions, ReadSequence(sequence));
    const Tensor& tensor = *sequences_[sequence];
    if (positions.size() < min_count) return Bad(tensor, "is empty");
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] < 0) {
        return Bad(tensor, StrCat("holds ", positions[i], " at index ", i, ", below 0"));
      }
      if (positions[i] > kLastPosition) {
        return Bad(tensor, StrCat("holds ", positions[i], " at index ", i, ", above the last ",
                                  "position there is, ", kLastPosition));
      }
      if (i > 0 && positions[i] <= positions[i - 1]) {
        return Bad(tensor, StrCat("is not strictly increasing: ", positions[i], " at index ", i,
                                  " follows ", positions[i - 1]));
      }
    }
    return positions;
  }

  Status ReadSequences() {
    KVS_ASSIGN_OR_RETURN(content_.positions, ReadPositions(kPositions, 1));
    KVS_ASSIGN_OR_RETURN(content_.window_positions, ReadPositions(kWindowPositions, 0));
    KVS_ASSIGN_OR_RETURN(content_.eval_positions, ReadPositions(kEvalPositions, 1));
    const auto prompt = content_.positions;
    for (const TokenPos position : content_.window_positions) {
      if (std::binary_search(prompt.begin(), prompt.end(), position)) continue;
      return Bad(*sequences_[kWindowPositions],
                 StrCat("holds ", position, ", which is not a prompt position"));
    }
    if (content_.eval_positions.front() <= prompt.back()) {
      return Bad(*sequences_[kEvalPositions],
                 StrCat("begins at ", content_.eval_positions.front(),
                        ", not after the last prompt position ", prompt.back()));
    }
    if (sequences_[kTokens] == nullptr) return Status::Ok();
    KVS_ASSIGN_OR_RETURN(content_.token_ids, ReadSequence(kTokens));
    if (content_.token_ids.size() == prompt.size()) return Status::Ok();
    return Bad(*sequences_[kTokens], StrCat("has ", content_.token_ids.size(), " ids for ",
                                            prompt.size(), " prompt positions"));
  }

  Status CheckParts(int number, const LayerTensors& tensors) const {
    for (const Part part : {kK, kV, kQWindow, kQEval}) {
      if (tensors[part] != nullptr) continue;
      return errors_.Invalid(
          StrCat("tensor 'layer.", number, ".", kPartNames[part], "'"),
          part == kV ? "is missing (a trace holds V also where it lies in K)" : "is missing",
          kCapture);
    }
    if ((tensors[kKEval] == nullptr) != (tensors[kVEval] == nullptr)) {
      const Part there = tensors[kKEval] != nullptr ? kKEval : kVEval;
      const Part missing = there == kKEval ? kVEval : kKEval;
      return Bad(*tensors[there], StrCat("needs its partner ", kPartNames[missing]));
    }
    for (const Tensor* tensor : tensors) {
      if (tensor == nullptr) continue;
      if (!RowType(tensor->type)) {
        return Bad(*tensor, StrCat("is ", TensorTypeName(tensor->type), ", not F16, BF16 or F32"));
      }
      if (tensor->shape.size() != 3) {
        return Bad(*tensor, StrCat("has shape ", ShapeText(tensor->shape),
                                   ", not three dimensions [heads, rows, dim]"));
      }
    }
    return Status::Ok();
  }

  Result<LayerSpec> ReadSpec(int number, std::size_t layer_index,
                             const LayerTensors& tensors) const {
    // Extents past int are past the limits of LayerSpec too.
    const auto extent = [&](Part part, int axis) {
      return static_cast<int>(std::min<std::int64_t>(
          tensors[part]->shape[static_cast<std::size_t>(axis)], std::numeric_limits<int>::max()));
    };
    LayerSpec spec;
    spec.layer = number;
    spec.query_heads = extent(kQEval, 0);
    spec.kv_heads = extent(kK, 0);
    spec.key_dim = extent(kK, 2);
    spec.value_dim = extent(kV, 2);
    spec.scale = static_cast<float>(attention_.scale[layer_index]);
    spec.softcap = static_cast<float>(attention_.softcap[layer_index]);
    spec.sliding_window = static_cast<int>(attention_.sliding_window[layer_index]);
    const Status status = spec.Validate();
    if (status.ok()) return spec;
    return errors_.Invalid("", status.message(), kCapture);
  }

  Status ReadLayer(int number, std::size_t layer_index, const LayerTensors& tensors) {
    KVS_RETURN_IF_ERROR(CheckParts(number, tensors));
    TraceLayer layer;
    KVS_ASSIGN_OR_RETURN(layer.spec, ReadSpec(number, layer_index, tensors));
    const LayerSpec& spec = layer.spec;
    const auto tokens = static_cast<std::int64_t>(content_.positions.size());
    const auto window = static_cast<std::int64_t>(content_.window_positions.size());
    const auto n_eval = static_cast<std::int64_t>(content_.eval_positions.size());
    const struct {
      Part part;
      HeadsView* view;
      std::vector<std::int64_t> shape;
    } rules[] = {
        {kK, &layer.keys, {spec.kv_heads, tokens, spec.key_dim}},
        {kV, &layer.values, {spec.kv_heads, tokens, spec.value_dim}},
        {kQWindow, &layer.window_queries, {spec.query_heads, window, spec.key_dim}},
        {kQEval, &layer.eval_queries, {spec.query_heads, n_eval, spec.key_dim}},
        {kKEval, &layer.eval_keys, {spec.kv_heads, n_eval, spec.key_dim}},
        {kVEval, &layer.eval_values, {spec.kv_heads, n_eval, spec.value_dim}},
        {kOutEval, &layer.eval_outputs, {spec.query_heads, n_eval, spec.value_dim}},
    };
    for (const auto& rule : rules) {
      if (tensors[rule.part] == nullptr) continue;
      KVS_RETURN_IF_ERROR(ReadRows(*tensors[rule.part], rule.shape, rule.view));
    }
    content_.layers.push_back(layer);
    return Status::Ok();
  }

  Status ReadRows(const Tensor& tensor, const std::vector<std::int64_t>& shape, HeadsView* view) {
    if (tensor.shape != shape) {
      return Bad(tensor, StrCat("has shape ", ShapeText(tensor.shape), ", not ", ShapeText(shape),
                                " as the other tensors say"));
    }
    const int heads = static_cast<int>(shape[0]);
    const int dim = static_cast<int>(shape[2]);
    *view = {Aligned(tensor), *RowType(tensor.type), heads, shape[1], dim, shape[1] * dim, dim};
    const auto found = FindNonFinite(*view);
    if (!found) return Status::Ok();
    return errors_.Make(ErrorCode::kNonFinite, Place(tensor),
                        StrCat("holds ", found->is_nan ? "NaN" : "Inf", " at head ", found->head,
                               ", row ", found->row, ", element ", found->element),
                        "capture it again, or leave this layer out");
  }

  const Safetensors& file_;
  const FileErrors& errors_;
  TraceContent& content_;
  AttentionMetadata attention_;
  std::map<int, LayerTensors> layers_;
  std::array<const Tensor*, kSequences> sequences_ = {};
};

}  // namespace

Result<TraceContent> ReadTrace(std::span<const std::byte> file, const FileErrors& errors) {
  if (BeginsSavedState(file)) {
    return errors.Invalid("", "is a saved cache, not a trace", "kvsieve inspect reads it");
  }
  KVS_ASSIGN_OR_RETURN(const Safetensors tensors, ParseSafetensors(file, errors));
  TraceContent content;
  KVS_RETURN_IF_ERROR(TraceReader(tensors, errors, &content).Read());
  return content;
}

}  // namespace kvsieve::eval
