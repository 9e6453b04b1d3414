// kvsieve gen -o TRACE [--preset NAME] [--tokens N] [--seed S] ...
#include <cstdio>
#include <memory>
#include <string>

#include "kvsieve/eval/generate.h"
#include "kvsieve/str_cat.h"
#include "tools/context.h"
#include "tools/decimal.h"
#include "tools/output.h"
#include "tools/terminal.h"

namespace kvsieve::tools {
namespace {

struct GenCommand {
  eval::GenerateOptions options;
  std::string dtype = "f16";
  std::string out;
  const CLI::Option* window = nullptr;  // whether it was given; the default may well be too long
};

Status RunGen(Context& context, const GenCommand& command) {
  KVS_RETURN_IF_ERROR(CheckOutputFile("--output", command.out));
  eval::GenerateOptions options = command.options;
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    if (command.dtype == ElementName(type)) options.dtype = type;
  }
  KVS_RETURN_IF_ERROR(eval::GenerateTrace(options, command.out));
  if (command.window->count() > 0 && options.window > options.tokens) {
    Warn(context.quiet, StrCat("--window ", options.window, " is more than there are tokens, all ",
                               options.tokens, " prompt queries are recorded"));
  }
  if (!context.quiet) {
    std::printf("%s: %s, %lld tokens, seed %llu\n", command.out.c_str(), options.preset.c_str(),
                static_cast<long long>(options.tokens),
                static_cast<unsigned long long>(options.seed));
  }
  return {};
}

std::string PresetNames() {
  std::string out;
  for (const StageInfo& preset : eval::GeneratePresets()) {
    out += StrCat(out.empty() ? "" : ", ", preset.name);
  }
  return out;
}

std::string PresetsFooter() {
  std::string out = "Presets:\n";
  for (const StageInfo& preset : eval::GeneratePresets()) {
    const std::string gap(preset.name.size() < 12 ? 12 - preset.name.size() : 1, ' ');
    out += StrCat("  ", preset.name, gap, preset.summary, "\n");
  }
  return out;
}

}  // namespace

void AddGen(CLI::App& app, Context& context) {
  auto command = std::make_shared<GenCommand>();
  CLI::App* gen = AddCommand(app, context, "gen", "Write a synthetic trace with known structure",
                             command, RunGen);
  eval::GenerateOptions& options = command->options;
  const auto add = [&](const char* name, auto& value, const char* what) {
    return gen->add_option(name, value, what)->capture_default_str();
  };
  AddOutput(*gen, "-o,--output", command->out, "Trace file to write")->required();
  gen->add_option("--preset", options.preset, StrCat("What it holds: ", PresetNames()))
      ->type_name("NAME")
      ->capture_default_str();
  add("--tokens", options.tokens, "Prompt rows");
  gen->add_option("--seed", options.seed, "Of the noise")
      ->check(Decimal<std::uint64_t>())
      ->type_name("UINT")
      ->capture_default_str();
  add("--layers", options.layers, "Layers");
  add("--query-heads", options.query_heads, "Query heads per layer");
  add("--kv-heads", options.kv_heads, "KV heads per layer");
  add("--key-dim", options.key_dim, "Elements of a K row");
  add("--value-dim", options.value_dim, "Elements of a V row");
  command->window = add("--window", options.window, "Recorded prompt queries, the last ones");
  add("--n-eval", options.n_eval, "Queries, and rows, after the prompt");
  gen->add_option("--dtype", command->dtype, "Elements of K, V and Q")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  for (const char* name : {"--tokens", "--layers", "--query-heads", "--kv-heads", "--key-dim",
                           "--value-dim", "--window", "--n-eval"}) {
    gen->get_option(name)->check(Decimal<std::int64_t>());
  }
  gen->footer(PresetsFooter() + "\n" + gen->get_footer());
}

}  // namespace kvsieve::tools
