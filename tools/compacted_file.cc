#include "tools/compacted_file.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsieve/str_cat.h"
#include "lib/eval/file_error.h"
#include "lib/eval/mapped_file.h"
#include "lib/eval/safetensors.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

struct HeadRows {
  const eval::Tensor* positions = nullptr;
  const eval::Tensor* tiers = nullptr;
  const eval::Tensor* keys = nullptr;
  const eval::Tensor* values = nullptr;

  bool complete() const {
    return positions != nullptr && tiers != nullptr && keys != nullptr && values != nullptr &&
           tiers->type == eval::TensorType::kI32 && positions->shape.size() == 1 &&
           tiers->shape == positions->shape && keys->shape.size() == 2 &&
           values->shape.size() == 2 && keys->shape[0] == positions->shape[0] &&
           values->shape[0] == positions->shape[0];
  }
  std::int64_t rows() const { return positions->shape[0]; }
  void CountTiers(std::map<std::int32_t, std::int64_t>& counts) const {
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows()); ++r) {
      std::int32_t tier = 0;
      std::memcpy(&tier, tiers->bytes.data() + r * sizeof tier, sizeof tier);
      ++counts[tier];
    }
  }
};

// [layer][head]
using Layers = std::map<int, std::map<int, HeadRows>>;

bool AddTensor(const eval::Tensor& tensor, Layers& layers) {
  int layer = 0;
  int head = 0;
  char part[16];
  char rest = 0;
  const int read =
      std::sscanf(tensor.name.c_str(), "layer.%9d.head.%9d.%15[a-z]%c", &layer, &head, part, &rest);
  if (read != 3) return false;
  HeadRows& rows = layers[layer][head];
  const std::string_view name(part);
  if (name == "positions") rows.positions = &tensor;
  if (name == "tiers") rows.tiers = &tensor;
  if (name == "k") rows.keys = &tensor;
  if (name == "v") rows.values = &tensor;
  return name == "positions" || name == "tiers" || name == "k" || name == "v";
}

std::optional<Layers> CompactedLayers(const eval::Safetensors& file) {
  Layers layers;
  for (const eval::Tensor& tensor : file.tensors) {
    if (!AddTensor(tensor, layers)) return std::nullopt;
  }
  for (const auto& [layer, heads] : layers) {
    for (const auto& [head, rows] : heads) {
      if (!rows.complete()) return std::nullopt;
    }
  }
  if (layers.empty()) return std::nullopt;
  return layers;
}

// "4 exact, 20 in tier 0, 7 in tier 1", numbered as docs/cli.md says; empty where all are
// in one.
std::string TiersText(const std::map<std::int32_t, std::int64_t>& tiers) {
  if (tiers.size() < 2) return "";
  std::string text;
  for (const auto& [tier, rows] : tiers) {
    text += StrCat(text.empty() ? "" : ", ", rows,
                   tier < 0 ? std::string(" exact") : StrCat(" in tier ", tier));
  }
  return text;
}

void PrintLayers(const Layers& layers) {
  Table table;
  table.AddColumn("layer", "");
  table.AddColumn("KV", "heads");
  table.AddColumn("key", "dim");
  table.AddColumn("value", "dim");
  table.AddColumn("rows", "all heads");
  table.AddColumn("rows", "per head");
  table.AddColumn("rows per tier", "", Align::kLeft);
  for (const auto& [layer, heads] : layers) {
    const HeadRows& first = heads.begin()->second;
    std::int64_t total = 0;
    std::int64_t least = first.rows();
    std::int64_t most = first.rows();
    std::map<std::int32_t, std::int64_t> tiers;
    for (const auto& [head, rows] : heads) {
      rows.CountTiers(tiers);
      total += rows.rows();
      least = std::min(least, rows.rows());
      most = std::max(most, rows.rows());
    }
    table.AddRow({StrCat(layer), StrCat(heads.size()), StrCat(first.keys->shape[1]),
                  StrCat(first.values->shape[1]), StrCat(total),
                  least == most ? StrCat(least) : StrCat(least, " to ", most), TiersText(tiers)});
  }
  table.Print(stdout);
}

}  // namespace

bool PrintCompactedFile(const std::string& path) {
  const Result<eval::MappedFile> mapped = eval::MappedFile::Open(path);
  if (!mapped.ok()) return false;
  const Result<eval::Safetensors> file =
      eval::ParseSafetensors(mapped->bytes(), eval::FileErrors(path));
  if (!file.ok()) return false;
  const std::optional<Layers> layers = CompactedLayers(*file);
  if (!layers) return false;
  std::printf("%s: rows that stayed, decoded, as kvsieve compact writes them; no trace\n\n",
              eval::OneLine(path, path.size()).c_str());
  PrintLayers(*layers);
  return true;
}

}  // namespace kvsieve::tools
