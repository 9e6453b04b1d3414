#include "kvsieve/eval/generate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>
#include <vector>

#include "kvsieve/eval/quality.h"
#include "kvsieve/float16.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/generate_presets.h"
#include "lib/eval/safetensors.h"
#include "lib/eval/sha256.h"

namespace kvsieve::eval {
namespace {

Status CheckRange(std::string_view option, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value >= min && value <= max) return Status::Ok();
  return Status::Invalid(
      StrCat("option ", option, ": ", value, " is outside [", min, ", ", max, "]"));
}

Status CheckPreset(const std::string& preset) {
  std::vector<std::string_view> names;
  for (const StageInfo& info : GeneratePresets()) names.push_back(info.name);
  if (std::find(names.begin(), names.end(), preset) != names.end()) return Status::Ok();
  return Status::Invalid(
      StrCat("option preset: '", OneLine(preset), "' is unknown", Suggest(preset, names)));
}

Status CheckOptions(const GenerateOptions& options) {
  constexpr std::int64_t kMaxTokens = 1 << 24;
  constexpr std::int64_t kMaxEval = 1 << 16;
  constexpr int kMaxLayers = 1024;
  constexpr double kMaxElements = 0x1p31;
  KVS_RETURN_IF_ERROR(CheckPreset(options.preset));
  KVS_RETURN_IF_ERROR(CheckRange("tokens", options.tokens, 1, kMaxTokens));
  KVS_RETURN_IF_ERROR(CheckRange("n_eval", options.n_eval, 1, kMaxEval));
  KVS_RETURN_IF_ERROR(CheckRange("window", options.window, 0, kMaxTokens));
  KVS_RETURN_IF_ERROR(CheckRange("layers", options.layers, 1, kMaxLayers));
  LayerSpec spec;
  spec.query_heads = options.query_heads;
  spec.kv_heads = options.kv_heads;
  spec.key_dim = options.key_dim;
  spec.value_dim = options.value_dim;
  spec.scale = 1;
  KVS_RETURN_IF_ERROR(spec.Validate());
  const double rows = static_cast<double>(options.tokens + options.n_eval) * options.kv_heads;
  const double elements = rows * (options.key_dim + options.value_dim) * options.layers;
  if (elements <= kMaxElements) return Status::Ok();
  return Status::Invalid(StrCat("options tokens, layers, kv_heads and dims make ",
                                static_cast<std::int64_t>(elements),
                                " elements, more than the limit of 2^31"));
}

TensorType FileType(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return TensorType::kF16;
    case ElementType::kBF16:
      return TensorType::kBF16;
    case ElementType::kF32:
      return TensorType::kF32;
  }
  return TensorType::kF32;
}

// A trace under construction, with the bytes that its tensors point to.
class TraceBuilder {
 public:
  template <class T>
  void Add(std::string name, TensorType type, std::vector<std::int64_t> shape,
           const std::vector<T>& elements) {
    const auto bytes = std::as_bytes(std::span(elements));
    const auto& owned = bytes_.emplace_back(bytes.begin(), bytes.end());
    file_.tensors.push_back({std::move(name), type, std::move(shape), owned});
  }

  void AddSequence(std::string name, std::int64_t first, std::int64_t count) {
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
    std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(first));
    Add(std::move(name), TensorType::kI32, {count}, numbers);
  }

  // Rows [first, first + count) of every head, rounded to `type`.
  void AddRows(std::string name, ElementType type, HeadRows& from, std::int64_t first,
               std::int64_t count) {
    std::vector<float> rows;
    for (int head = 0; head < from.heads; ++head) {
      for (std::int64_t r = first; r < first + count; ++r) {
        const auto row = from.row(head, r);
        rows.insert(rows.end(), row.begin(), row.end());
      }
    }
    const std::vector<std::int64_t> shape = {from.heads, count, from.dim};
    if (type == ElementType::kF32) return Add(std::move(name), TensorType::kF32, shape, rows);
    std::vector<std::uint16_t> bits(rows.size());
    std::transform(rows.begin(), rows.end(), bits.begin(), [&](float value) {
      return type == ElementType::kF16 ? ToF16(value).bits : ToBF16(value).bits;
    });
    Add(std::move(name), FileType(type), shape, bits);
  }

  Safetensors& file() { return file_; }

 private:
  Safetensors file_;
  std::deque<std::vector<std::byte>> bytes_;  // a deque: tensors point into its elements
};

std::map<std::string, std::string> Metadata(const GenerateOptions& options) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(options.tokens));
  std::iota(ids.begin(), ids.end(), 0);
  return {{"kvtrace.version", "1"},
          {"model.name", "synthetic " + options.preset},
          {"model.arch", "synthetic"},
          {"model.license", "Apache-2.0"},
          {"attn.scale", StrCat(1 / std::sqrt(static_cast<double>(options.key_dim)))},
          {"rope.type", "none"},
          {"rope.theta", "0"},
          {"source.dtype", "f32"},
          {"capture.tool", "kvsieve gen"},
          {"prompt.sha256", Sha256Hex(std::as_bytes(std::span(ids)))},
          {"text.source", StrCat("none: preset ", options.preset, ", seed ", options.seed,
                                 "; token ids are positions")}};
}

void AddLayer(const GenerateOptions& options, int layer, TraceBuilder& trace) {
  SyntheticLayer made = GenerateLayer(options, layer);
  const std::string prefix = StrCat("layer.", layer, ".");
  const auto add = [&](const char* part, HeadRows& rows, std::int64_t first, std::int64_t count) {
    trace.AddRows(prefix + part, options.dtype, rows, first, count);
  };
  add("k", made.keys, 0, options.tokens);
  add("v", made.values, 0, options.tokens);
  add("k_eval", made.keys, options.tokens, options.n_eval);
  add("v_eval", made.values, options.tokens, options.n_eval);
  add("q_window", made.queries, 0, options.window);
  add("q_eval", made.queries, options.window, options.n_eval);
}

// The "engine's" outputs: exact attention over the rows as the trace stores them.
Status AddOutputs(const GenerateOptions& options, TraceBuilder& builder) {
  KVS_ASSIGN_OR_RETURN(const Trace trace,
                       Trace::FromBytes(EncodeSafetensors(builder.file()), "generated trace"));
  SerialParallel serial;
  KVS_ASSIGN_OR_RETURN(const ExactAttention exact, ExactAttention::Compute(trace, serial));
  for (int layer = 0; layer < options.layers; ++layer) {
    std::vector<float> outputs;
    for (int head = 0; head < options.query_heads; ++head) {
      for (std::int64_t query = 0; query < options.n_eval; ++query) {
        const auto output = exact.Output(layer, head, query);
        outputs.insert(outputs.end(), output.begin(), output.end());
      }
    }
    builder.Add(StrCat("layer.", layer, ".out_eval"), TensorType::kF32,
                {options.query_heads, options.n_eval, options.value_dim}, outputs);
  }
  return Status::Ok();
}

}  // namespace

Status GenerateTrace(const GenerateOptions& requested, const std::string& path) try {
  KVS_RETURN_IF_ERROR(CheckOptions(requested));
  GenerateOptions options = requested;
  options.window = std::min(options.window, options.tokens);
  TraceBuilder builder;
  builder.file().metadata = Metadata(options);
  builder.AddSequence("positions", 0, options.tokens);
  builder.AddSequence("tokens", 0, options.tokens);
  builder.AddSequence("q_window_positions", options.tokens - options.window, options.window);
  builder.AddSequence("q_eval_positions", options.tokens, options.n_eval);
  for (int layer = 0; layer < options.layers; ++layer) AddLayer(options, layer, builder);
  KVS_RETURN_IF_ERROR(AddOutputs(options, builder));
  return WriteSafetensors(path, builder.file());
} catch (const std::bad_alloc&) {
  return {ErrorCode::kOutOfMemory,
          "the synthetic trace needs more memory than there is (options tokens, layers, heads)"};
}

}  // namespace kvsieve::eval
