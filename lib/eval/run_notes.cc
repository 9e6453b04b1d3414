#include "lib/eval/run_notes.h"

#include <map>
#include <utility>

#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

constexpr const char* kLegend[] = {
    "* Pareto front of kept bytes and mean output error. ratio: f16 bytes of all tokens / kept "
    "bytes. rows: kept.",
    "output error |o-o*|/|o*|, KL(compressed|full), mass of full attention on kept rows, top32 "
    "shared strongest rows.",
    "compact, attend: best of several rounds; pipelines that are not on fused kernels attend "
    "slowly, they decode every row first."};

std::string Join(const std::vector<int>& numbers) {
  std::string out;
  for (const int number : numbers) out += StrCat(out.empty() ? "" : ", ", number);
  return out;
}

// The layers of one pipeline that share a property: "" for all of them, else " (layers 0, 7)".
std::string SomeLayers(const std::vector<int>& layers, std::size_t all) {
  return layers.size() == all ? "" : StrCat(" (layers ", Join(layers), ")");
}

// Property of a layer -> the pipelines that have it, as "3, 7 (layers 0, 14)".
using Groups = std::map<std::string, std::string>;

template <class TextOf>
void Collect(const PipelineResult& pipeline, int number, TextOf text_of, Groups& groups) {
  std::map<std::string, std::vector<int>> layers_of;
  for (const LayerResult& layer : pipeline.layers) {
    const std::string text = text_of(layer.report);
    if (!text.empty()) layers_of[text].push_back(layer.report.layer);
  }
  for (const auto& [text, layers] : layers_of) {
    std::string& pipelines = groups[text];
    pipelines +=
        StrCat(pipelines.empty() ? "" : ", ", number, SomeLayers(layers, pipeline.layers.size()));
  }
}

// Of demote=yes, over all layers.
std::vector<std::string> DemotedLines(std::span<const PipelineResult> pipelines) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    std::int64_t rows = 0;
    for (const LayerResult& layer : pipelines[i].layers) rows += layer.report.demoted_rows;
    if (rows > 0) {
      lines.push_back(
          StrCat("demoted: ", rows, " rows moved to a colder store after the prompt: ", i + 1));
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> RunNotes(std::span<const PipelineResult> pipelines) {
  Groups paths;
  Groups notes;
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    Collect(
        pipelines[i], number,
        [](const LayerReport& r) {
          const std::string path = PathName(r);
          return path == "fused" ? std::string() : path;
        },
        paths);
    Collect(
        pipelines[i], number, [](const LayerReport& r) { return r.note; }, notes);
  }
  std::vector<std::string> lines = DemotedLines(pipelines);
  for (const auto& [path, numbers] : paths) {
    lines.push_back(StrCat("not on fused kernels: ", path, ": ", numbers));
  }
  for (const auto& [note, numbers] : notes) {
    lines.push_back(StrCat("note: ", note, ": ", numbers));
  }
  return lines;
}

std::string LayersText(std::span<const LayerSpec> layers) {
  std::vector<int> numbers;
  for (const LayerSpec& layer : layers) numbers.push_back(layer.layer);
  return StrCat(numbers.size() == 1 ? "layer " : "layers ", Join(numbers));
}

std::string KeyAdvice(const LayerSpec& layer, const Codec& key_codec) {
  constexpr int kManyQueryHeads = 6;
  const std::int64_t code_bits = key_codec.row_bytes().codes * 8;
  if (layer.group() < kManyQueryHeads || code_bits >= std::int64_t{8} * key_codec.dim()) return {};
  return StrCat(layer.group(), " query heads share each KV head and keys have ",
                code_bits / key_codec.dim(),
                " bits: errors of keys weigh most here, consider k=int8 (see key_rel_error)");
}

std::string ChunksText(const Comparison& comparison) {
  const std::int64_t rows = comparison.chunk_rows;
  return rows > 0 && rows < comparison.tokens ? StrCat(" in chunks of ", rows) : "";
}

std::span<const char* const> FigureLegend() { return kLegend; }

}  // namespace kvsieve::eval
