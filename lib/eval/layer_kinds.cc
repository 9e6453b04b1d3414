#include "lib/eval/layer_kinds.h"

#include <algorithm>
#include <string_view>

namespace kvsieve::eval {
namespace {

using Json = nlohmann::json;
using Rows = LayerKind::Rows;

constexpr LayerKind kAll{Rows::kAll, 0};
constexpr LayerKind kNone{Rows::kNone, 0};

// Words for layers that hold no K and V, and for those that hold all of them.
constexpr std::string_view kNoRows[] = {"linear_attention", "mamba", "mamba2", "conv",
                                        "recurrent",        "moe",   "mlp"};
constexpr std::string_view kAllRows[] = {"full_attention", "attention", "hybrid"};

template <class List>
bool Contains(const List& words, std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// What models do whose configs do not say which layers slide, from their own code: one layer of
// `period` sees all rows, the last of each; 0: none does.
struct KnownPattern {
  std::string_view model_type;
  std::int64_t period;
};
constexpr KnownPattern kKnownPatterns[] = {
    {"gemma2", 2},  {"gemma3", 6},  {"gemma3_text", 6}, {"gemma3n", 5}, {"gemma3n_text", 5},
    {"cohere2", 4}, {"gpt_oss", 2}, {"mistral", 0},     {"mixtral", 0}, {"ministral", 0},
    {"phi3", 0},    {"phimoe", 0},  {"starcoder2", 0}};

class KindReader {
 public:
  KindReader(const ConfigKeys& keys, std::int64_t layers, std::vector<std::string>& notes)
      : keys_(keys), layers_(layers), notes_(notes) {}

  std::vector<LayerKind> Read();

 private:
  LayerKind Window() const;
  LayerKind Chunk();
  LayerKind FromWord(std::string_view key, const Json& word);
  std::vector<LayerKind> FromWords(std::string_view key);
  std::vector<LayerKind> FromLetters() const;
  std::vector<LayerKind> FromCycle() const;
  std::vector<LayerKind> FromIndices(std::string_view key, const Json& indices,
                                     std::int64_t base) const;
  std::vector<LayerKind> FromSwitches(std::string_view key) const;
  std::vector<LayerKind> Sliding() const;
  std::int64_t Pattern() const;

  // `chosen(i)` layers are `yes`, the others `no`.
  template <class Chosen>
  std::vector<LayerKind> Pick(LayerKind yes, LayerKind no, Chosen chosen) const {
    std::vector<LayerKind> kinds;
    for (std::int64_t i = 0; i < layers_; ++i) kinds.push_back(chosen(i) ? yes : no);
    return kinds;
  }

  const ConfigKeys& keys_;
  const std::int64_t layers_;
  std::vector<std::string>& notes_;
};

LayerKind KindReader::Window() const {
  return {Rows::kWindow, keys_.Int(keys_.NameOf({"sliding_window", "attention_window_size"}))};
}

LayerKind KindReader::Chunk() {
  const std::int64_t chunk = keys_.Int("attention_chunk_size");
  const std::string note =
      StrCat("layers with chunked attention are planned as windows of a chunk, ", chunk, " rows");
  if (!Contains(notes_, note)) notes_.push_back(note);
  return {Rows::kWindow, chunk};
}

LayerKind KindReader::FromWord(std::string_view key, const Json& word) {
  const std::string text = word.is_string() ? word.get<std::string>() : std::string();
  if (Contains(kAllRows, text)) return kAll;
  if (Contains(kNoRows, text)) return kNone;
  if (text == "sliding_attention") return Window();
  if (text == "chunked_attention") return Chunk();
  throw ConfigError(key, StrCat("unknown kind of layer ", ConfigKeys::Text(word)));
}

std::vector<LayerKind> KindReader::FromWords(std::string_view key) {
  std::vector<LayerKind> kinds;
  for (const Json& word : keys_.PerLayer(key, layers_)) kinds.push_back(FromWord(key, word));
  return kinds;
}

// Nemotron-H: one letter per layer.
std::vector<LayerKind> KindReader::FromLetters() const {
  constexpr std::string_view kKey = "hybrid_override_pattern";
  const std::string letters = keys_.String(kKey);
  if (static_cast<std::int64_t>(letters.size()) != layers_) {
    throw ConfigError(kKey, StrCat("has ", letters.size(), " letters for ", layers_, " layers"));
  }
  if (letters.find_first_not_of("*ME-") != std::string::npos) {
    throw ConfigError(kKey, "has letters other than *, M, E and -");
  }
  return Pick(kAll, kNone,
              [&](std::int64_t i) { return letters[static_cast<std::size_t>(i)] == '*'; });
}

// RecurrentGemma: the kinds repeat; its attention layers slide.
std::vector<LayerKind> KindReader::FromCycle() const {
  const Json& words = *keys_.Find("block_types");
  const auto is_word = [](const Json& word) { return word == "recurrent" || word == "attention"; };
  if (!words.is_array() || words.empty() || !std::all_of(words.begin(), words.end(), is_word)) {
    throw ConfigError("block_types", "no list of recurrent and attention");
  }
  return Pick(Window(), kNone, [&](std::int64_t i) {
    return words[static_cast<std::size_t>(i) % words.size()] == "attention";
  });
}

std::vector<LayerKind> KindReader::FromIndices(std::string_view key, const Json& indices,
                                               std::int64_t base) const {
  if (!indices.is_array()) throw ConfigError(key, "no list of layers");
  std::vector<LayerKind> kinds(static_cast<std::size_t>(layers_), kNone);
  for (const Json& index : indices) {
    const std::int64_t i = ConfigKeys::IntOf(key, index, base) - base;
    if (i >= layers_) throw ConfigError(key, StrCat("layer ", i + base, " of ", layers_));
    kinds[static_cast<std::size_t>(i)] = kAll;
  }
  return kinds;
}

// 1: attention over all rows, 0: none that holds rows.
std::vector<LayerKind> KindReader::FromSwitches(std::string_view key) const {
  const Json& switches = keys_.PerLayer(key, layers_);
  for (const Json& value : switches) {
    if (value != 0 && value != 1) throw ConfigError(key, "has entries other than 0 and 1");
  }
  return Pick(kAll, kNone,
              [&](std::int64_t i) { return switches[static_cast<std::size_t>(i)] == 1; });
}

// One layer of how many sees all rows.
std::int64_t KindReader::Pattern() const {
  if (const Json* pattern = keys_.Find("sliding_window_pattern")) {
    if (pattern->is_number()) return ConfigKeys::IntOf("sliding_window_pattern", *pattern, 1);
    throw ConfigError("sliding_window_pattern",
                      StrCat(ConfigKeys::Text(*pattern), " is no number; add layer_types"));
  }
  const std::string model_type = keys_.String("model_type");
  for (const KnownPattern& known : kKnownPatterns) {
    if (known.model_type == model_type) return known.period;
  }
  throw ConfigError("sliding_window",
                    StrCat("which layers slide is not said; add layer_types or ",
                           "sliding_window_pattern, or sliding_window null if none does"));
}

std::vector<LayerKind> KindReader::Sliding() const {
  // Qwen: the first max_window_layers see all rows.
  if (keys_.Has("use_sliding_window") && keys_.Has("max_window_layers")) {
    const std::int64_t first = keys_.Int("max_window_layers", 0);
    return Pick(Window(), kAll, [&](std::int64_t i) { return i >= first; });
  }
  const std::int64_t period = Pattern();
  return Pick(Window(), kAll, [&](std::int64_t i) { return period == 0 || (i + 1) % period != 0; });
}

std::vector<LayerKind> KindReader::Read() {
  for (const std::string_view key : {"layer_types", "layers_block_type"}) {
    if (keys_.Has(key)) return FromWords(key);
  }
  if (keys_.Has("hybrid_override_pattern")) return FromLetters();
  if (keys_.Has("block_types")) return FromCycle();
  for (const std::string_view key : {"attn_layer_indices", "full_attn_idxs"}) {
    if (const Json* indices = keys_.Find(key)) return FromIndices(key, *indices, 0);
  }
  if (const Json* linear = keys_.Find("linear_attn_config")) {
    constexpr std::string_view kKey = "full_attn_layers";
    if (!linear->is_object()) throw ConfigError("linear_attn_config", "no object");
    const Json* indices = ConfigKeys(*linear).Find(kKey);
    if (indices == nullptr) throw ConfigError(kKey, "missing in linear_attn_config");
    return FromIndices(kKey, *indices, 1);
  }
  if (keys_.Has("attn_layer_period")) {
    const std::int64_t period = keys_.Int("attn_layer_period");
    const std::int64_t first = keys_.Int("attn_layer_offset", 0);
    return Pick(kAll, kNone, [&](std::int64_t i) { return i % period == first; });
  }
  if (keys_.Has("full_attention_interval")) {
    const std::int64_t period = keys_.Int("full_attention_interval");
    return Pick(kAll, kNone, [&](std::int64_t i) { return (i + 1) % period == 0; });
  }
  if (keys_.Has("attn_type_list")) return FromSwitches("attn_type_list");
  const bool off = keys_.Has("use_sliding_window") && !keys_.True("use_sliding_window");
  if (keys_.Has("sliding_window") && !off) return Sliding();
  return std::vector<LayerKind>(static_cast<std::size_t>(layers_), kAll);
}

}  // namespace

std::vector<LayerKind> LayerKinds(const ConfigKeys& keys, std::int64_t layers,
                                  std::vector<std::string>& notes) {
  return KindReader(keys, layers, notes).Read();
}

}  // namespace kvsieve::eval
