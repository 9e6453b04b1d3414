// kvsieve compare TRACE [-p SPEC]... [--grid quick|full] [--json F] [--csv F] [--html F]
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvsieve/eval/compare.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/html/report_html.h"
#include "lib/eval/report_json.h"
#include "tools/compare_table.h"
#include "tools/context.h"
#include "tools/output.h"
#include "tools/pipelines.h"
#include "tools/terminal.h"

namespace kvsieve::tools {
namespace {

struct CompareCommand {
  std::string trace;
  std::vector<std::string> specs;
  std::string grid;
  std::string scores;
  int chunk_rows = 0;
  std::string json;
  std::string csv;
  std::string html;
  std::string decode_rows = "exact";
};

struct Job {
  std::shared_ptr<const Pipeline> pipeline;
  bool from_grid = false;  // may be left out with a warning where a trace cannot run it
};

// In -p order, then the grid without what -p named already.
Result<std::vector<Job>> Jobs(const CompareCommand& command) {
  std::vector<Job> jobs;
  std::set<std::string> seen;
  for (const std::string& spec : command.specs) {
    KVS_ASSIGN_OR_RETURN(auto pipeline, ParsePipeline(spec));
    seen.insert(pipeline->Canonical());
    jobs.push_back({std::move(pipeline), false});
  }
  if (!command.specs.empty() && command.grid.empty()) return jobs;
  const auto grid = command.grid == "full" ? eval::Grid::kFull : eval::Grid::kQuick;
  for (const std::string& spec : eval::GridSpecs(grid)) {
    KVS_ASSIGN_OR_RETURN(auto pipeline, ParsePipeline(spec));
    if (seen.insert(pipeline->Canonical()).second) jobs.push_back({std::move(pipeline), true});
  }
  return jobs;
}

Status RunJobs(const Context& context, const eval::Comparer& comparer, const std::vector<Job>& jobs,
               eval::Comparison& comparison) {
  Progress progress(context.quiet, static_cast<int>(jobs.size()));
  for (const Job& job : jobs) {
    progress.Step(job.pipeline->Typed());
    Result<eval::PipelineResult> result = comparer.Run(job.pipeline);
    if (result.ok()) {
      comparison.pipelines.push_back(*std::move(result));
      continue;
    }
    Status error = PipelineError(job.pipeline->Typed(), result.error());
    if (!job.from_grid) return error;
    progress.Clear();
    Warn(context.quiet, StrCat(error.message(), " (left out of the grid)"));
  }
  if (comparison.pipelines.empty()) {
    return Status::Invalid("no pipeline of the grid can run on this trace, choose some with -p");
  }
  eval::MarkParetoFront(comparison.pipelines);
  return {};
}

Status WriteReports(const CompareCommand& command, const eval::Comparison& comparison) {
  if (!command.json.empty()) {
    KVS_RETURN_IF_ERROR(WriteOutput(command.json, eval::ReportJson(comparison)));
  }
  if (!command.csv.empty()) {
    KVS_RETURN_IF_ERROR(WriteOutput(command.csv, eval::ReportCsv(comparison)));
  }
  if (!command.html.empty()) {
    KVS_RETURN_IF_ERROR(WriteOutput(command.html, eval::ReportHtml(comparison)));
  }
  const bool stdout_taken =
      command.json == kStdout || command.csv == kStdout || command.html == kStdout;
  if (!stdout_taken) PrintCompareTable(stdout, comparison);
  return {};
}

Status RunCompare(Context& context, const CompareCommand& command) {
  KVS_ASSIGN_OR_RETURN(const std::vector<Job> jobs, Jobs(command));
  KVS_RETURN_IF_ERROR(CheckOneStdout({command.json, command.csv, command.html}));
  KVS_RETURN_IF_ERROR(CheckOutput("--json", command.json));
  KVS_RETURN_IF_ERROR(CheckOutput("--csv", command.csv));
  KVS_RETURN_IF_ERROR(CheckOutput("--html", command.html));
  KVS_RETURN_IF_ERROR(
      CheckDistinct("the trace", command.trace,
                    {{"--json", command.json}, {"--csv", command.csv}, {"--html", command.html}}));
  KVS_ASSIGN_OR_RETURN(const eval::Trace trace, eval::Trace::Open(command.trace));
  std::vector<std::shared_ptr<const Pipeline>> pipelines;
  for (const Job& job : jobs) pipelines.push_back(job.pipeline);
  KVS_ASSIGN_OR_RETURN(const auto scores, ReadScores(command.scores, trace, pipelines));
  eval::CompareOptions options;
  options.prompt = {command.chunk_rows, scores ? &*scores : nullptr};
  if (command.decode_rows == "stored") options.decode_rows = DecodeRows::kStored;
  KVS_ASSIGN_OR_RETURN(const eval::Comparer comparer,
                       eval::Comparer::Create(trace, context.parallel(), options));
  eval::Comparison comparison = comparer.Describe();
  comparison.version = KVS_VERSION;
  KVS_RETURN_IF_ERROR(RunJobs(context, comparer, jobs, comparison));
  return WriteReports(command, comparison);
}

}  // namespace

void AddCompare(CLI::App& app, Context& context) {
  auto options = std::make_shared<CompareCommand>();
  CLI::App* command =
      AddCommand(app, context, "compare", "Bytes, accuracy and time of pipelines on a trace",
                 options, RunCompare);
  command->add_option("TRACE", options->trace, "Trace file (kv-trace 1, safetensors)")
      ->required()
      ->type_name("");
  command->add_option("-p,--pipeline", options->specs, "Pipeline spec; may be repeated")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command
      ->add_option("--grid", options->grid,
                   "A ready-made set: quick (one of each kind, the default without -p) or full")
      ->check(CLI::IsMember({"quick", "full"}))
      ->type_name("GRID");
  AddScoresOption(*command, &options->scores);
  AddChunkRowsOption(*command, &options->chunk_rows);
  AddOutput(*command, "--json", options->json, "Write JSON to this file; '-': to standard output");
  AddOutput(*command, "--csv", options->csv, "Write one CSV line per pipeline to this file");
  AddOutput(*command, "--html", options->html, "Write an HTML report to this file");
  command
      ->add_option("--decode-rows", options->decode_rows,
                   "Rows of the eval tokens: exact (judges the prompt's compression alone) or "
                   "stored (through the codec, as in an engine)")
      ->check(CLI::IsMember({"exact", "stored"}))
      ->type_name("WHAT")
      ->capture_default_str();
}

}  // namespace kvsieve::tools
