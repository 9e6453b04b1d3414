// kvsieve explain SPEC [--key-dim N] [--value-dim N] [--json]
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kvsieve/pipeline.h"
#include "tools/context.h"
#include "tools/decimal.h"
#include "tools/pipelines.h"

namespace kvsieve::tools {
namespace {

constexpr int kMaxDim = 4096;  // as LayerSpec

struct ExplainCommand {
  std::string spec;
  int key_dim = 128;
  int value_dim = 128;
  bool json = false;
};

Status RunExplain(Context&, const ExplainCommand& command) {
  KVS_ASSIGN_OR_RETURN(const auto pipeline, ParsePipeline(command.spec));
  Result<std::string> text = Explain(*pipeline, command.key_dim, command.value_dim);
  if (!text.ok()) return PipelineError(command.spec, text.error());
  if (!command.json) {
    std::fputs(text->c_str(), stdout);
    if (!text->ends_with('\n')) std::fputc('\n', stdout);
    return {};
  }
  const nlohmann::ordered_json out = {{"spec", pipeline->Canonical()},
                                      {"typed", pipeline->Typed()},
                                      {"key_dim", command.key_dim},
                                      {"value_dim", command.value_dim},
                                      {"text", *text}};
  std::printf("%s\n", out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return {};
}

}  // namespace

void AddExplain(CLI::App& app, Context& context) {
  auto options = std::make_shared<ExplainCommand>();
  CLI::App* command = AddCommand(app, context, "explain",
                                 "What a pipeline spec means: stages, formulas, bytes per row",
                                 options, RunExplain);
  command->add_option("SPEC", options->spec, "Pipeline spec")->required()->type_name("");
  command->add_option("--key-dim", options->key_dim, "Elements of a K row")
      ->check(Decimal(1, kMaxDim))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--value-dim", options->value_dim, "Elements of a V row")
      ->check(Decimal(1, kMaxDim))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
}

}  // namespace kvsieve::tools
