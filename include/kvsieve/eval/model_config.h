// Attention layers of a model from its Hugging Face config.json: what a plan of bytes needs to know
// (kvsieve/plan_bytes.h). Only shapes are read, no weights.
#ifndef KVSIEVE_EVAL_MODEL_CONFIG_H_
#define KVSIEVE_EVAL_MODEL_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve::eval {

struct ModelConfig {
  std::string name;               // model_type
  int layers = 0;                 // of the model, whatever is in them
  std::vector<LayerSpec> caches;  // layers that have K and V of their own, by their number
  // What the plan leaves out or takes as something else, a sentence each.
  std::vector<std::string> notes;
};

// `name` of the text stands in errors. A key that is missing, unknown or contradicts another is an
// error that names it: nothing is guessed, but what model_type says by itself (docs/cli.md).
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& name);
Result<ModelConfig> ReadModelConfig(const std::string& path);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_MODEL_CONFIG_H_
