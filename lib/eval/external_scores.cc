#include "kvsieve/eval/external_scores.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/eval/file_error.h"
#include "lib/eval/mapped_file.h"
#include "lib/eval/safetensors.h"

namespace kvsieve::eval {
namespace {

std::string NameOf(const LayerSpec& layer) { return StrCat("layer.", layer.layer, ".scores"); }

// The layer whose scores the tensor holds, or an error.
Result<int> LayerOf(const Tensor& tensor, const Trace& trace, const FileErrors& errors) {
  const auto& layers = trace.layers();
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const TraceLayer& layer) {
    return NameOf(layer.spec) == tensor.name;
  });
  if (found != layers.end()) return static_cast<int>(found - layers.begin());
  return errors.Invalid(StrCat("tensor '", OneLine(tensor.name), "'"),
                        "is not layer.{i}.scores of a layer of the trace",
                        "write the scores of this trace's layers only");
}

Result<std::vector<float>> ScoresOf(const Tensor& tensor, const LayerSpec& layer,
                                    std::int64_t tokens, const FileErrors& errors) {
  const std::string place = StrCat("tensor '", tensor.name, "'");
  const std::string remedy = "write one score per KV head and prompt row";
  if (tensor.type != TensorType::kF32) {
    return errors.Invalid(place, StrCat("is ", TensorTypeName(tensor.type), ", expected F32"),
                          remedy);
  }
  if (tensor.shape != std::vector<std::int64_t>{layer.kv_heads, tokens}) {
    std::string shape;
    for (const std::int64_t extent : tensor.shape) {
      shape += StrCat(shape.empty() ? "" : ", ", extent);
    }
    return errors.Invalid(
        place, StrCat("has shape [", shape, "], expected [", layer.kv_heads, ", ", tokens, "]"),
        remedy);
  }
  std::vector<float> scores(tensor.bytes.size() / sizeof(float));
  std::memcpy(scores.data(), tensor.bytes.data(), tensor.bytes.size());
  return scores;
}

}  // namespace

Result<ExternalScores> ExternalScores::Open(const std::string& path, const Trace& trace) {
  const FileErrors errors(path);
  KVS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  KVS_ASSIGN_OR_RETURN(const Safetensors tensors, ParseSafetensors(file.bytes(), errors));
  ExternalScores scores;
  scores.layers_.resize(trace.layers().size());
  for (const Tensor& tensor : tensors.tensors) {
    KVS_ASSIGN_OR_RETURN(const int index, LayerOf(tensor, trace, errors));
    KVS_ASSIGN_OR_RETURN(scores.layers_[index],
                         ScoresOf(tensor, trace.layers()[index].spec, trace.tokens(), errors));
  }
  for (std::size_t i = 0; i < scores.layers_.size(); ++i) {
    const LayerSpec& layer = trace.layers()[i].spec;
    if (!scores.layers_[i].empty() || layer.sliding_window > 0) continue;
    return errors.Invalid(StrCat("tensor '", NameOf(layer), "'"), "is missing",
                          "write the scores of every layer of the trace");
  }
  return scores;
}

}  // namespace kvsieve::eval
