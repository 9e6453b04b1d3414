// Which layers of a model hold K and V, and in what shape, from its config.json. Shapes are facts
// about public models; the files are written by hand.
#include "kvsieve/eval/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kvsieve/pipeline.h"
#include "kvsieve/plan_bytes.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

ModelConfig MustParse(const std::string& text) {
  Result<ModelConfig> config = ParseModelConfig(text, "config.json");
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *std::move(config) : ModelConfig();
}

std::string ErrorOf(const std::string& text) {
  const Result<ModelConfig> config = ParseModelConfig(text, "config.json");
  EXPECT_FALSE(config.ok()) << text;
  return config.ok() ? "" : config.error().message;
}

// A config of 8 layers, 8 query heads, 2 KV heads and head_dim 64, with more keys.
std::string Config(const std::string& more) {
  return StrCat(R"({"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
                    "hidden_size": 512)",
                more.empty() ? "" : ", ", more, "}");
}

// One letter per layer of the model: all rows, window, none.
std::string Kinds(const ModelConfig& config) {
  std::string kinds(static_cast<std::size_t>(config.layers), '-');
  for (const LayerSpec& layer : config.caches) {
    kinds[static_cast<std::size_t>(layer.layer)] = layer.sliding_window > 0 ? 'w' : 'a';
  }
  return kinds;
}

std::string KindsOf(const std::string& more) { return Kinds(MustParse(Config(more))); }

TEST(ModelConfig, HeadsAndDimsOfAPlainModel) {
  const ModelConfig config = MustParse(Config(R"("model_type": "llama")"));
  EXPECT_EQ(config.name, "llama");
  ASSERT_EQ(config.caches.size(), 8U);
  const LayerSpec& layer = config.caches[7];
  EXPECT_EQ(layer.layer, 7);
  EXPECT_EQ(layer.query_heads, 8);
  EXPECT_EQ(layer.kv_heads, 2);
  EXPECT_EQ(layer.key_dim, 64);
  EXPECT_EQ(layer.value_dim, 64);
  EXPECT_EQ(layer.scale, 0.125F);
  EXPECT_EQ(layer.sliding_window, 0);
  EXPECT_TRUE(config.notes.empty());
}

TEST(ModelConfig, ADimThatIsGivenWins) {
  // Qwen3-4B: 32 heads of 128 on a width of 2560.
  const ModelConfig config = MustParse(
      R"({"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
          "hidden_size": 2560, "head_dim": 128})");
  EXPECT_EQ(config.caches[0].key_dim, 128);
  EXPECT_EQ(MustParse(Config(R"("head_dim": 192, "v_head_dim": 128)")).caches[0].value_dim, 128);
}

TEST(ModelConfig, KvHeadsInTheirManyForms) {
  const auto kv_heads = [](const std::string& text) { return MustParse(text).caches[0].kv_heads; };
  EXPECT_EQ(kv_heads(R"({"n_layer": 12, "n_head": 12, "n_embd": 768})"), 12);  // GPT-2: one each
  EXPECT_EQ(kv_heads(R"({"n_layer": 2, "n_head": 8, "n_embd": 512, "multi_query": true})"), 1);
  EXPECT_EQ(kv_heads(R"({"num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 8192,
                         "num_kv_heads": 8, "new_decoder_architecture": true,
                         "multi_query": true})"),
            8);
  EXPECT_EQ(kv_heads(R"({"num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096,
                         "multi_query_attention": true, "multi_query_group_num": 2,
                         "kv_channels": 128})"),
            2);
  EXPECT_EQ(kv_heads(R"({"n_layers": 40, "n_heads": 48, "d_model": 6144,
                         "attn_config": {"kv_n_heads": 8}})"),
            8);
  EXPECT_EQ(kv_heads(R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
                         "num_key_value_heads": null})"),
            4);
  // OpenELM: heads per layer.
  const ModelConfig lists = MustParse(
      R"({"num_transformer_layers": 2, "head_dim": 64, "num_query_heads": [12, 16],
          "num_kv_heads": [3, 4]})");
  EXPECT_EQ(lists.caches[0].kv_heads, 3);
  EXPECT_EQ(lists.caches[1].kv_heads, 4);
  EXPECT_EQ(lists.caches[1].query_heads, 16);
}

TEST(ModelConfig, WhichLayersSlide) {
  EXPECT_EQ(KindsOf(R"("sliding_window": null)"), "aaaaaaaa");
  EXPECT_EQ(KindsOf(R"("sliding_window": 4096, "model_type": "mistral")"), "wwwwwwww");
  EXPECT_EQ(KindsOf(R"("sliding_window": 4096, "model_type": "gemma2")"), "wawawawa");
  EXPECT_EQ(KindsOf(R"("sliding_window": 1024, "sliding_window_pattern": 4)"), "wwwawwwa");
  EXPECT_EQ(KindsOf(R"("sliding_window": 512, "model_type": "gemma3_text")"), "wwwwwaww");
  EXPECT_EQ(KindsOf(R"("sliding_window": 4096, "use_sliding_window": false,
                       "max_window_layers": 6)"),
            "aaaaaaaa");
  EXPECT_EQ(KindsOf(R"("sliding_window": 4096, "use_sliding_window": true,
                       "max_window_layers": 6)"),
            "aaaaaaww");
  const std::string types = R"("layer_types": ["sliding_attention", "full_attention",
      "sliding_attention", "full_attention", "sliding_attention", "full_attention",
      "sliding_attention", "full_attention"], "sliding_window": 128)";
  EXPECT_EQ(KindsOf(types), "wawawawa");
  EXPECT_EQ(MustParse(Config(types)).caches[0].sliding_window, 128);
  const ModelConfig chunked = MustParse(
      R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
          "layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8192})");
  EXPECT_EQ(chunked.caches[0].sliding_window, 8192);
  EXPECT_EQ(chunked.notes.size(), 1U);
}

TEST(ModelConfig, LayersWithoutRowsAreLeftOut) {
  EXPECT_EQ(KindsOf(R"("attn_layer_period": 8, "attn_layer_offset": 4)"), "----a---");  // Jamba
  EXPECT_EQ(KindsOf(R"("full_attention_interval": 4)"), "---a---a");           // Qwen3-Next
  EXPECT_EQ(KindsOf(R"("attn_layer_indices": [2, 5])"), "--a--a--");           // Bamba
  EXPECT_EQ(KindsOf(R"("hybrid_override_pattern": "M-M*-M-E")"), "---a----");  // Nemotron-H
  EXPECT_EQ(KindsOf(R"("block_types": ["recurrent", "recurrent", "attention"],
                       "attention_window_size": 2048)"),
            "--w--w--");
  EXPECT_EQ(KindsOf(R"("attn_type_list": [0, 0, 0, 1, 0, 0, 0, 1])"), "---a---a");  // MiniMax
  EXPECT_EQ(KindsOf(R"("linear_attn_config": {"full_attn_layers": [4, 8]})"), "---a---a");
  EXPECT_EQ(KindsOf(R"("layer_types": ["mamba", "mamba", "attention", "mamba", "conv",
                       "linear_attention", "full_attention", "mamba"])"),
            "--a---a-");
  EXPECT_EQ(KindsOf(R"("num_kv_shared_layers": 3)"), "aaaaa---");  // Gemma 3n
  EXPECT_EQ(MustParse(Config(R"("full_attention_interval": 4)")).notes.size(), 1U);
}

TEST(ModelConfig, MlaHoldsTheLatentOnce) {
  // DeepSeek-V3.
  const ModelConfig config = MustParse(
      R"({"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
          "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
          "qk_nope_head_dim": 128, "v_head_dim": 128})");
  const LayerSpec& layer = config.caches[60];
  EXPECT_TRUE(layer.value_is_key_prefix);
  EXPECT_EQ(layer.kv_heads, 1);
  EXPECT_EQ(layer.key_dim, 576);
  EXPECT_EQ(layer.value_dim, 512);
  EXPECT_FLOAT_EQ(layer.scale, 1 / std::sqrt(192.0F));
}

TEST(ModelConfig, TheLanguageModelOfALargerOneIsRead) {
  EXPECT_EQ(Kinds(MustParse(StrCat(R"({"model_type": "some_vl", "text_config": )",
                                   Config(R"("full_attention_interval": 2)"),
                                   R"(, "vision_config": {"num_hidden_layers": 24}})"))),
            "-a-a-a-a");
}

TEST(ModelConfig, WhatIsUnknownIsNamed) {
  const auto expect = [](const std::string& text, const std::string& said) {
    const std::string error = ErrorOf(text);
    EXPECT_NE(error.find(said), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  };
  expect("not json", "no JSON object");
  expect("[]", "no JSON object");
  expect("{}", "key num_hidden_layers: missing");
  expect(R"({"num_hidden_layers": 2})", "key num_attention_heads: missing");
  expect(R"({"num_hidden_layers": 2, "num_attention_heads": 4})", "key hidden_size: missing");
  expect(R"({"num_hidden_layers": 2, "num_attention_heads": 7, "hidden_size": 64})",
         "key head_dim: missing, and hidden_size 64 is no multiple of 7 heads");
  expect(R"({"num_hidden_layers": -2})", "key num_hidden_layers: '-2' is no integer");
  expect(R"({"num_hidden_layers": 1e99})", "key num_hidden_layers: '");
  expect(R"({"num_hidden_layers": "8"})", "key num_hidden_layers: '");
  expect(Config(R"("sliding_window": 4096)"), "key sliding_window: which layers slide is not said");
  expect(Config(R"("sliding_window": 4096, "sliding_window_pattern": "LLLG")"),
         "key sliding_window_pattern: ");
  expect(Config(R"("layer_types": ["full_attention"])"),
         "key layer_types: holds 1 entries for 8 layers");
  expect(R"({"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64,
             "layer_types": ["telepathy"]})",
         "key layer_types: unknown kind of layer \"telepathy\"");
  expect(R"({"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64,
             "layer_types": ["sliding_attention"]})",
         "key sliding_window: missing");
  expect(R"({"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64,
             "layer_types": ["mamba"]})",
         "no layer holds K and V");
  expect(Config(R"("hybrid_override_pattern": "M-M*")"), "has 4 letters for 8 layers");
  expect(Config(R"("kv_lora_rank": 512)"), "key qk_rope_head_dim: missing");
  expect(Config(R"("cross_attention_layers": [3])"), "key cross_attention_layers: ");
  expect(Config(R"("is_encoder_decoder": true)"), "key is_encoder_decoder: true");
  expect(Config(R"("use_sliding_window": "no", "sliding_window": 4)"), "key use_sliding_window: '");
  expect(Config(R"("num_kv_shared_layers": 8)"), "key num_kv_shared_layers: 8 of 8 layers");
  expect(R"({"num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 4,
             "head_dim": 64})",
         "6 query heads are not a multiple of 4 KV heads");
  expect(Config(R"("head_dim": 5000)"), "dims must be in [1, 4096]");
}

// A plan takes memory and time for each of them: what no model has is refused at once.
TEST(ModelConfig, CountsHaveLimitsThatAreNamed) {
  const auto expect = [](const std::string& text, const std::string& said) {
    const std::string error = ErrorOf(text);
    EXPECT_NE(error.find(said), std::string::npos) << error;
  };
  constexpr std::string_view kLimit = "' is no integer from 1 to 4096";
  for (const std::string_view layers : {"4097", "1000000000"}) {
    expect(StrCat(R"({"num_hidden_layers": )", layers, R"(, "num_attention_heads": 8,
                      "hidden_size": 512})"),
           StrCat("key num_hidden_layers: '", layers, kLimit));
    expect(StrCat(R"({"num_hidden_layers": 8, "num_attention_heads": )", layers,
                  R"(, "head_dim": 64})"),
           StrCat("key num_attention_heads: '", layers, kLimit));
    expect(StrCat(R"({"num_hidden_layers": 8, "num_attention_heads": 8, "head_dim": 64,
                      "num_key_value_heads": )",
                  layers, "}"),
           StrCat("key num_key_value_heads: '", layers, kLimit));
  }
  expect(R"({"num_hidden_layers": 2, "num_attention_heads": [8, 5000], "head_dim": 64})",
         StrCat("key num_attention_heads: '5000", kLimit));
  expect(Config(R"("num_global_key_value_heads": 5000)"),
         StrCat("key num_global_key_value_heads: '5000", kLimit));
  expect(R"({"num_hidden_layers": 4096, "num_attention_heads": 32, "head_dim": 64})",
         "key num_hidden_layers: 4096 layers hold more than 65536 KV heads together");
  EXPECT_EQ(MustParse(R"({"num_hidden_layers": 4096, "num_attention_heads": 16, "head_dim": 64})")
                .caches.size(),
            4096U);
}

std::int64_t KeptF16(const ModelConfig& config, std::int64_t tokens) {
  const Result<Pipeline> pipeline = Pipeline::Parse("none | kv=f16");
  PlanRequest request;
  request.prompt_tokens = tokens;
  const Result<BytePlan> plan = PlanBytes(*pipeline, config.caches, request);
  EXPECT_TRUE(plan.ok());
  EXPECT_EQ(plan->bytes.most.full_bytes(), plan->bytes.most.payload_bytes);
  return plan->bytes.most.payload_bytes + plan->bytes.most.scale_bytes;
}

// Five window layers of many heads, then one that sees all rows, with a head and a dim of its own.
TEST(Cases, U72_WindowsHeadsAndDimsOfEachLayerCount) {
  const Result<ModelConfig> config =
      ReadModelConfig(KVS_SOURCE_DIR "/tests/tools/models/window_and_global.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  ASSERT_EQ(config->caches.size(), 48U);
  EXPECT_EQ(KeptF16(*config, 131072), 2'483'027'968);
}

// The same of two others: all layers alike, and 30 layers of which the last 15 have no rows of
// their own.
TEST(Cases, U72_SharedAndPlainLayersCount) {
  const Result<ModelConfig> dense =
      ReadModelConfig(KVS_SOURCE_DIR "/tests/tools/models/dense.json");
  ASSERT_TRUE(dense.ok()) << dense.error().message;
  EXPECT_EQ(KeptF16(*dense, 8192), 1'073'741'824);
  const Result<ModelConfig> shared =
      ReadModelConfig(KVS_SOURCE_DIR "/tests/tools/models/shared.json");
  ASSERT_TRUE(shared.ok()) << shared.error().message;
  // 12 window layers of 512 rows and 3 of all rows, 2 heads of 256.
  EXPECT_EQ(KeptF16(*shared, 32768), (12 * 512 + 3 * 32768) * std::int64_t{2} * 256 * 2 * 2);
}

// MLA: the latent and the rotated part, once for K and V and all heads.
TEST(Cases, U72_LatentsCountOnce) {
  const Result<ModelConfig> config =
      ReadModelConfig(KVS_SOURCE_DIR "/tests/tools/models/latent.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(KeptF16(*config, 4096), std::int64_t{61} * 4096 * (512 + 64) * 2);
}

TEST(ModelConfig, FilesThatCannotBeReadAreNamed) {
  const Result<ModelConfig> absent = ReadModelConfig("/no/such/config.json");
  ASSERT_FALSE(absent.ok());
  EXPECT_NE(absent.error().message.find("/no/such/config.json: cannot open"), std::string::npos);
  EXPECT_FALSE(ReadModelConfig("/").ok());
}

}  // namespace
}  // namespace kvsieve::eval
