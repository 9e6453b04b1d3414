#include "kvsieve/eval/model_config.h"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>

#include "lib/eval/config_keys.h"
#include "lib/eval/file_error.h"
#include "lib/eval/layer_kinds.h"

namespace kvsieve::eval {
namespace {

using Json = nlohmann::json;
using Rows = LayerKind::Rows;

// Layouts that are not read: to plan without them would be a guess.
struct Refused {
  std::string_view key;
  std::string_view why;
};
constexpr Refused kRefused[] = {
    {"cross_attention_layers", "K and V of images are not planned"},
    {"hybrid_layer_pattern", "not read; write layer_types instead"},
    {"attention_types", "not read; write layer_types instead"},
    {"block_configs", "not read; write num_key_value_heads as a list instead"},
    {"cla_share_factor", "layers that share K and V by this key are not planned"}};

// Of all layers: a plan holds some hundred bytes for each.
constexpr std::int64_t kMostKvHeads = 65536;

class ConfigReader {
 public:
  explicit ConfigReader(const ConfigKeys& keys) : keys_(keys) {}
  ModelConfig Read();

 private:
  struct Dims {
    int kv_heads = 0;
    int key_dim = 0;
    int value_dim = 0;
  };
  void CheckReadable() const;
  std::int64_t QueryHeads(std::int64_t layer) const;
  std::int64_t KvHeads(std::int64_t layer, std::int64_t query_heads) const;
  std::int64_t HeadDim(std::int64_t query_heads) const;
  LayerSpec Attention(std::int64_t layer, const LayerKind& kind) const;
  void SetLatent(LayerSpec& spec) const;
  void NoteWhatIsLeftOut(std::int64_t no_rows, std::int64_t shared);
  // An entry of a list, or the one number for all layers.
  std::int64_t OfLayer(std::string_view key, std::int64_t layer) const;

  const ConfigKeys& keys_;
  ModelConfig config_;
};

void ConfigReader::CheckReadable() const {
  for (const Refused& refused : kRefused) {
    if (keys_.Has(refused.key)) throw ConfigError(refused.key, refused.why);
  }
  for (const std::string_view key : {"is_encoder_decoder", "use_cla"}) {
    if (keys_.True(key)) throw ConfigError(key, "true: such models are not planned");
  }
}

std::int64_t ConfigReader::OfLayer(std::string_view key, std::int64_t layer) const {
  const Json* value = keys_.Find(key);
  if (value == nullptr || !value->is_array()) return keys_.Count(key);
  return ConfigKeys::CountOf(key,
                             keys_.PerLayer(key, config_.layers)[static_cast<std::size_t>(layer)]);
}

std::int64_t ConfigReader::QueryHeads(std::int64_t layer) const {
  return OfLayer(keys_.NameOf({"num_attention_heads", "num_query_heads", "n_head", "n_heads"}),
                 layer);
}

// Absent: one per query head.
std::int64_t ConfigReader::KvHeads(std::int64_t layer, std::int64_t query_heads) const {
  // Falcon and GPT-BigCode; the newer Falcon ignores it.
  if (keys_.True("multi_query") && !keys_.True("new_decoder_architecture")) return 1;
  if (keys_.True("multi_query_attention")) return keys_.Count("multi_query_group_num");
  if (const Json* nested = keys_.Find("attn_config"); nested != nullptr && nested->is_object()) {
    return ConfigKeys(*nested).Count("kv_n_heads");
  }
  const std::string_view key = keys_.NameOf({"num_key_value_heads", "num_kv_heads", "n_head_kv"});
  return keys_.Has(key) ? OfLayer(key, layer) : query_heads;
}

std::int64_t ConfigReader::HeadDim(std::int64_t query_heads) const {
  const std::string_view key = keys_.NameOf({"head_dim", "attention_head_dim", "kv_channels"});
  if (keys_.Has(key)) return keys_.Int(key);
  const std::string_view width_key = keys_.NameOf({"hidden_size", "n_embd", "d_model"});
  const std::int64_t width = keys_.Int(width_key);
  if (width % query_heads != 0) {
    throw ConfigError("head_dim", StrCat("missing, and ", width_key, " ", width,
                                         " is no multiple of ", query_heads, " heads"));
  }
  return width / query_heads;
}

// MLA: engines hold the latent and the rotated part of the key, once for all heads.
void ConfigReader::SetLatent(LayerSpec& spec) const {
  const std::int64_t latent = keys_.Int("kv_lora_rank");
  const std::int64_t rotated = keys_.Int("qk_rope_head_dim");
  spec.kv_heads = 1;
  spec.key_dim = static_cast<int>(latent + rotated);
  spec.value_dim = static_cast<int>(latent);
  spec.value_is_key_prefix = true;
  spec.scale = 1 / std::sqrt(static_cast<float>(keys_.Int("qk_nope_head_dim", 0) + rotated));
}

LayerSpec ConfigReader::Attention(std::int64_t layer, const LayerKind& kind) const {
  LayerSpec spec;
  spec.layer = static_cast<int>(layer);
  const std::int64_t query_heads = QueryHeads(layer);
  spec.query_heads = static_cast<int>(query_heads);
  spec.sliding_window = static_cast<int>(kind.window);
  spec.softcap = static_cast<float>(keys_.Real("attn_logit_softcapping"));
  if (keys_.Has("kv_lora_rank")) {
    SetLatent(spec);
    return spec;
  }
  std::int64_t kv_heads = KvHeads(layer, query_heads);
  std::int64_t dim = 0;
  const bool all_rows = kind.rows == Rows::kAll;
  // Gemma 4: layers that see all rows have heads of their own.
  if (all_rows && keys_.Has("num_global_key_value_heads") &&
      (!keys_.Has("attention_k_eq_v") || keys_.True("attention_k_eq_v"))) {
    kv_heads = keys_.Count("num_global_key_value_heads");
  }
  dim = all_rows && keys_.Has("global_head_dim") ? keys_.Int("global_head_dim")
                                                 : HeadDim(query_heads);
  spec.kv_heads = static_cast<int>(kv_heads);
  spec.key_dim = static_cast<int>(dim);
  spec.value_dim = static_cast<int>(keys_.Has("v_head_dim") ? keys_.Int("v_head_dim") : dim);
  const double scalar = keys_.Real("query_pre_attn_scalar");
  const double multiplier = keys_.Real("attention_multiplier");
  spec.scale = static_cast<float>(
      multiplier > 0 ? multiplier : 1 / std::sqrt(scalar > 0 ? scalar : static_cast<double>(dim)));
  return spec;
}

void ConfigReader::NoteWhatIsLeftOut(std::int64_t no_rows, std::int64_t shared) {
  if (no_rows > 0) {
    config_.notes.push_back(StrCat(no_rows, " of ", config_.layers,
                                   " layers hold no K and V; the state of recurrent ones is not "
                                   "planned"));
  }
  if (shared > 0) {
    config_.notes.push_back(
        StrCat("the last ", shared, " layers use K and V of earlier ones (num_kv_shared_layers)"));
  }
  if (keys_.Has("index_head_dim")) {
    config_.notes.push_back("keys of the indexer (index_head_dim) are not planned");
  }
  if (!config_.caches.empty() && config_.caches.front().value_is_key_prefix) {
    config_.notes.push_back("MLA: the latent is planned, which serves K and V");
  }
}

ModelConfig ConfigReader::Read() {
  CheckReadable();
  config_.name = keys_.String("model_type");
  const std::string_view layers_key = keys_.NameOf(
      {"num_hidden_layers", "n_layer", "n_layers", "num_transformer_layers", "num_layers"});
  config_.layers = static_cast<int>(keys_.Count(layers_key));
  const std::vector<LayerKind> kinds = LayerKinds(keys_, config_.layers, config_.notes);
  std::int64_t shared = 0;
  if (keys_.Has("num_kv_shared_layers")) {
    shared = keys_.Int("num_kv_shared_layers", 0);
    if (shared >= config_.layers) {
      throw ConfigError("num_kv_shared_layers",
                        StrCat(shared, " of ", config_.layers, " layers leave none of their own"));
    }
  }
  std::int64_t no_rows = 0;
  std::int64_t kv_heads = 0;
  for (std::int64_t i = 0; i < config_.layers - shared; ++i) {
    const LayerKind& kind = kinds[static_cast<std::size_t>(i)];
    if (kind.rows == Rows::kNone) {
      ++no_rows;
      continue;
    }
    config_.caches.push_back(Attention(i, kind));
    const Status valid = config_.caches.back().Validate();
    if (!valid.ok()) throw std::runtime_error(std::string(valid.message()));
    kv_heads += config_.caches.back().kv_heads;
    if (kv_heads > kMostKvHeads) {
      throw ConfigError(layers_key, StrCat(config_.layers, " layers hold more than ", kMostKvHeads,
                                           " KV heads together"));
    }
  }
  if (config_.caches.empty()) throw ConfigError("layer_types", "no layer holds K and V");
  NoteWhatIsLeftOut(no_rows, shared);
  return std::move(config_);
}

// Models with images or sound keep their language model's keys one level down.
const Json& TextPart(const Json& root) {
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const auto found = root.find(key);
    if (found != root.end() && found->is_object()) return *found;
  }
  return root;
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& name) {
  const FileErrors errors(name);
  const Json root = Json::parse(text, nullptr, false);
  if (root.is_discarded() || !root.is_object()) {
    return errors.Invalid("", "no JSON object", "give the config.json of a Hugging Face model");
  }
  try {
    return ConfigReader(ConfigKeys(TextPart(root))).Read();
  } catch (const std::runtime_error& error) {
    return errors.Invalid("", error.what(), "");
  }
}

Result<ModelConfig> ReadModelConfig(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  const FileErrors errors(path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return errors.System("open", errno);
  std::string text;
  char block[1 << 16];
  while (file.read(block, sizeof block) || file.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostBytes) {
      return errors.Invalid("", "is larger than 16 MiB", "give the config.json of a model");
    }
  }
  if (file.bad()) return errors.System("read", errno);
  return ParseModelConfig(text, path);
}

}  // namespace kvsieve::eval
