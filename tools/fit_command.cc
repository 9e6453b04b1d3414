// kvsieve fit --model CONFIG.json --ctx N [--mem SIZE] [-p SPEC]... [--suggest] [--json F]
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "tools/context.h"
#include "tools/decimal.h"
#include "tools/fit_report.h"
#include "tools/output.h"
#include "tools/pipelines.h"
#include "tools/suggestions.h"
#include "tools/terminal.h"

namespace kvsieve::tools {
namespace {

struct FitCommand {
  std::string model;
  std::int64_t context_tokens = 0;
  std::int64_t decode_tokens = 0;
  int chunk_rows = 0;
  std::string memory;
  std::string rows = "f16";
  std::vector<std::string> specs;
  bool suggest = false;
  std::string json;
};

ElementType ElementNamed(const std::string& name) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16}) {
    if (name == ElementName(type)) return type;
  }
  return ElementType::kF16;
}

Verdict Judge(const ByteRange& resident, std::int64_t memory_bytes) {
  if (resident.most <= memory_bytes) return Verdict::kFits;
  return resident.least <= memory_bytes ? Verdict::kDepends : Verdict::kDoesNot;
}

// The longest context whose resident bytes are within the memory at most, by bisection: they grow
// with it. Tokens after the prompt stay as many, or as many as there are.
Result<std::int64_t> LongestContext(const Pipeline& pipeline, const FitReport& report) {
  std::int64_t fits = 0;
  for (std::int64_t fits_not = kLongest + 1; fits_not - fits > 1;) {
    const std::int64_t tokens = fits + (fits_not - fits) / 2;
    PlanRequest request = report.request;
    request.decode_tokens = std::min(request.decode_tokens, tokens);
    request.prompt_tokens = tokens - request.decode_tokens;
    KVS_ASSIGN_OR_RETURN(const BytePlan plan, PlanBytes(pipeline, report.model.caches, request));
    (plan.resident.most <= *report.memory_bytes ? fits : fits_not) = tokens;
  }
  return fits;
}

Result<FitResult> Fit(const Pipeline& pipeline, const FitReport& report) {
  FitResult result;
  result.typed = pipeline.Typed();
  result.canonical = pipeline.Canonical();
  result.at_most = pipeline.plans_tiers();
  KVS_ASSIGN_OR_RETURN(result.plan, PlanBytes(pipeline, report.model.caches, report.request));
  if (report.memory_bytes) {
    result.verdict = Judge(result.plan.resident, *report.memory_bytes);
    KVS_ASSIGN_OR_RETURN(result.longest_tokens, LongestContext(pipeline, report));
  }
  return result;
}

// Every pipeline must be one that the model can have.
Status FitGiven(const std::vector<std::string>& specs, FitReport& report) {
  for (const std::string& spec : specs) {
    KVS_ASSIGN_OR_RETURN(const auto pipeline, ParsePipeline(spec));
    Result<FitResult> result = Fit(*pipeline, report);
    if (!result.ok()) return PipelineError(spec, result.error());
    report.results.push_back(*std::move(result));
  }
  return {};
}

// Of those that the model can have, the ones that fit; all of them without a limit.
Status FitSuggested(Context& context, FitReport& report) {
  for (const Suggestion& suggestion : Suggestions()) {
    KVS_ASSIGN_OR_RETURN(const auto pipeline, ParsePipeline(suggestion.spec));
    Result<FitResult> result = Fit(*pipeline, report);
    if (!result.ok()) {
      Warn(context.quiet,
           StrCat("left out: ", PipelineError(suggestion.spec, result.error()).message()));
      continue;
    }
    result->error = suggestion.error;
    if (!report.memory_bytes || result->verdict == Verdict::kFits) {
      report.results.push_back(*std::move(result));
    }
  }
  return {};
}

Result<FitReport> ReadOptions(const FitCommand& command) {
  FitReport report;
  report.path = command.model;
  report.context_tokens = command.context_tokens;
  report.suggested = command.suggest;
  if (command.decode_tokens > command.context_tokens) {
    return Status::Invalid(StrCat("--decode ", command.decode_tokens, " is more than --ctx ",
                                  command.context_tokens, ", which counts all tokens"));
  }
  report.request.prompt_tokens = command.context_tokens - command.decode_tokens;
  report.request.decode_tokens = command.decode_tokens;
  report.request.chunk_tokens = command.chunk_rows;
  report.request.key_type = report.request.value_type = ElementNamed(command.rows);
  if (!command.memory.empty()) {
    const Result<std::int64_t> bytes = ParseByteSize(command.memory);
    if (!bytes.ok()) {
      return Status::Invalid(StrCat("--mem: ", bytes.error().message, ", such as 24GiB"));
    }
    report.memory_bytes = *bytes;
  }
  KVS_ASSIGN_OR_RETURN(report.model, eval::ReadModelConfig(command.model));
  return report;
}

Status RunFit(Context& context, const FitCommand& command) {
  KVS_RETURN_IF_ERROR(CheckOutput("--json", command.json));
  KVS_RETURN_IF_ERROR(
      CheckDistinct("the model's config", command.model, {{"--json", command.json}}));
  KVS_ASSIGN_OR_RETURN(FitReport report, ReadOptions(command));
  std::vector<std::string> specs = command.specs;
  if (specs.empty() && !command.suggest) specs = {"none | kv=f16"};
  KVS_RETURN_IF_ERROR(FitGiven(specs, report));
  if (command.suggest) KVS_RETURN_IF_ERROR(FitSuggested(context, report));
  if (!command.json.empty()) KVS_RETURN_IF_ERROR(WriteOutput(command.json, FitJson(report)));
  if (command.json != kStdout) PrintFit(stdout, report);
  context.answer_is_no =
      report.memory_bytes &&
      std::none_of(report.results.begin(), report.results.end(),
                   [](const FitResult& result) { return result.verdict == Verdict::kFits; });
  return {};
}

}  // namespace

void AddFit(CLI::App& app, Context& context) {
  auto options = std::make_shared<FitCommand>();
  CLI::App* command =
      AddCommand(app, context, "fit",
                 "Bytes of pipelines on a model, before anything runs: what fits", options, RunFit);
  command->add_option("--model", options->model, "The model's config.json (Hugging Face)")
      ->required()
      ->type_name("CONFIG.json");
  command->add_option("--ctx", options->context_tokens, "Tokens of context, all of them")
      ->required()
      ->check(Decimal<std::int64_t>(1, kLongest))
      ->type_name("N");
  command
      ->add_option("--decode", options->decode_tokens,
                   "How many of them come one by one after the prompt (default: none)")
      ->check(Decimal<std::int64_t>(0, kLongest))
      ->type_name("N");
  AddChunkRowsOption(*command, &options->chunk_rows);
  command->add_option("--mem", options->memory, "Memory for K and V, as 24GiB: what fits in it?")
      ->check([](const std::string& text) {
        return text.empty() ? "the size is empty, give one such as 24GiB" : std::string();
      })
      ->type_name("SIZE");
  command->add_option("--rows", options->rows, "Type of the engine's rows (default: f16)")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->type_name("TYPE");
  command->add_option("-p,--pipeline", options->specs, "Pipeline spec; repeat for more")
      ->type_name("SPEC")
      ->expected(1)
      ->take_all();
  command->add_flag("--suggest", options->suggest,
                    "Rank recommended pipelines and presets that fit, least error first");
  AddOutput(*command, "--json", options->json, "Write JSON to this file; '-': to standard output");
}

}  // namespace kvsieve::tools
