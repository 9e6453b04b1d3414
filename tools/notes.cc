#include "tools/notes.h"

#include <map>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tools/table.h"
#include "tools/terminal.h"

namespace kvsieve::tools {
namespace {

std::string Join(const std::vector<int>& numbers) {
  std::string out;
  for (const int number : numbers) out += StrCat(out.empty() ? "" : ", ", number);
  return out;
}

// The layers of one pipeline that share a property: "" for all of them, else " (layers 0, 7)".
std::string LayersText(const std::vector<int>& layers, std::size_t all) {
  return layers.size() == all ? "" : StrCat(" (layers ", Join(layers), ")");
}

// Property of a layer -> the pipelines that have it, as "3, 7 (layers 0, 14)".
using Groups = std::map<std::string, std::string>;

template <class TextOf>
void Collect(const eval::PipelineResult& pipeline, int number, TextOf text_of, Groups& groups) {
  std::map<std::string, std::vector<int>> layers_of;
  for (const eval::LayerResult& layer : pipeline.layers) {
    const std::string text = text_of(layer.report);
    if (!text.empty()) layers_of[text].push_back(layer.report.layer);
  }
  for (const auto& [text, layers] : layers_of) {
    std::string& pipelines = groups[text];
    pipelines +=
        StrCat(pipelines.empty() ? "" : ", ", number, LayersText(layers, pipeline.layers.size()));
  }
}

void PrintWrapped(std::FILE* out, const std::string& text) {
  const char* indent = "";
  for (const std::string& line : Wrap(text, TerminalColumns(out))) {
    std::fprintf(out, "%s%s\n", indent, line.c_str());
    indent = "  ";
  }
}

}  // namespace

void PrintNotes(std::FILE* out, std::span<const eval::PipelineResult> pipelines) {
  Groups paths;
  Groups notes;
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    Collect(
        pipelines[i], number,
        [](const LayerReport& r) {
          const std::string path = eval::PathName(r);
          return path == "fused" ? std::string() : path;
        },
        paths);
    Collect(
        pipelines[i], number, [](const LayerReport& r) { return r.note; }, notes);
  }
  for (const auto& [path, numbers] : paths) {
    PrintWrapped(out, StrCat("not on fused kernels: ", path, ": ", numbers));
  }
  for (const auto& [note, numbers] : notes) {
    PrintWrapped(out, StrCat("note: ", note, ": ", numbers));
  }
}

}  // namespace kvsieve::tools
