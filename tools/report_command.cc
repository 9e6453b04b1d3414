// kvsieve report TRACE -p SPEC [--json F]
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kvsieve/eval/compare.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/byte_fields.h"
#include "lib/eval/report_json.h"
#include "tools/compare_table.h"
#include "tools/context.h"
#include "tools/notes.h"
#include "tools/output.h"
#include "tools/pipelines.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

struct ReportCommand {
  std::string trace;
  std::string spec;
  std::string scores;
  int chunk_rows = 0;
  std::string json;
};

std::vector<std::string> LayerCells(const std::string& name, const ByteReport& bytes,
                                    const eval::RowErrors& errors, ByteUnit unit,
                                    const std::string& path) {
  const auto size = [&](std::int64_t count) {
    return Fixed(static_cast<double>(count) / unit.bytes, 1);
  };
  return {name,
          StrCat(bytes.tokens_seen),
          StrCat(bytes.rows_kept),
          Fixed(100 * bytes.keep_rate(), 1),
          size(bytes.full_bytes()),
          size(bytes.payload_bytes),
          size(bytes.scale_bytes),
          size(bytes.metadata_bytes),
          size(bytes.kept_bytes()),
          size(bytes.resident_bytes()),
          Fixed(bytes.total_ratio(), 2),
          Fixed(bytes.resident_ratio(), 2),
          Fixed(errors.key, 5),
          Fixed(errors.value, 5),
          path};
}

void PrintLayers(const eval::PipelineResult& pipeline) {
  const ByteUnit unit = ByteUnitFor(pipeline.bytes.full_bytes());
  Table table;
  table.AddColumn("layer", "");
  table.AddColumn("tokens", "seen");
  table.AddColumn("rows", "kept");
  table.AddColumn("keep", "%");
  for (const char* name : {"full", "payload", "scales", "metadata", "kept", "resident"}) {
    table.AddColumn(name, unit.name);
  }
  table.AddColumn("total", "ratio");
  table.AddColumn("resident", "ratio");
  table.AddColumn("K error", "share");
  table.AddColumn("V error", "share");
  table.AddColumn("kernels", "", Align::kLeft);
  for (const eval::LayerResult& layer : pipeline.layers) {
    table.AddRow(LayerCells(StrCat(layer.report.layer), layer.report.bytes, layer.row_errors, unit,
                            eval::PathName(layer.report)));
  }
  table.AddRow(LayerCells("all", pipeline.bytes, pipeline.row_errors, unit, ""), RowStyle::kMarked);
  table.Print(stdout);
}

// Which store holds how much, over all layers; only where rows are in more than one.
void PrintStores(const eval::PipelineResult& pipeline) {
  std::vector<StoreReport> stores;
  for (const eval::LayerResult& layer : pipeline.layers) {
    for (const StoreReport& store : layer.report.stores) {
      const auto same = std::ranges::find(stores, store.store, &StoreReport::store);
      if (same == stores.end()) {
        stores.push_back(store);
      } else {
        same->bytes += store.bytes;
      }
    }
  }
  std::erase_if(stores, [](const StoreReport& store) { return store.bytes.rows_kept == 0; });
  if (stores.size() < 2) return;
  const ByteUnit unit = ByteUnitFor(pipeline.bytes.full_bytes());
  Table table;
  table.AddColumn("rows", "kept");
  table.AddColumn("of kept", "%");
  table.AddColumn("kept", unit.name);
  table.AddColumn("of kept", "%");
  table.AddColumn("stored as", "", Align::kLeft);
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return Fixed(100 * static_cast<double>(part) / static_cast<double>(whole), 1);
  };
  for (const auto& [store, bytes] : stores) {
    table.AddRow({StrCat(bytes.rows_kept), share(bytes.rows_kept, pipeline.bytes.rows_kept),
                  Fixed(static_cast<double>(bytes.kept_bytes()) / unit.bytes, 1),
                  share(bytes.kept_bytes(), pipeline.bytes.kept_bytes()), store});
  }
  std::printf("\n");
  table.Print(stdout);
}

void PrintFields(const ByteReport& bytes) {
  Table table;
  table.AddColumn("field", "");
  table.AddColumn("all layers", "bytes");
  table.AddColumn("what it is", "", Align::kLeft);
  for (const eval::ByteField& field : eval::ByteFields()) {
    table.AddRow({StrCat(field.name), StrCat(field.get(bytes)), StrCat(field.meaning)});
  }
  for (const eval::RatioField& field : eval::RatioFields()) {
    table.AddRow({StrCat(field.name), Fixed(field.get(bytes), 4), StrCat(field.meaning)});
  }
  table.Print(stdout);
}

void PrintReport(const eval::Comparison& comparison) {
  const eval::PipelineResult& pipeline = comparison.pipelines[0];
  std::printf("pipeline: %s\n", pipeline.typed.c_str());
  std::printf("in full:  %s\n\n", pipeline.canonical.c_str());
  PrintLayers(pipeline);
  PrintStores(pipeline);
  std::printf("\n");
  PrintFields(pipeline.bytes);
  std::printf("\ncompact %s ms, attend %s us per token\n",
              Fixed(pipeline.time.compact_ms, 1).c_str(),
              Fixed(pipeline.time.attend_us_per_token, 0).c_str());
  PrintSetting(stdout, comparison);
  PrintNotes(stdout, comparison.pipelines);
}

Status RunReport(Context& context, const ReportCommand& command) {
  KVS_ASSIGN_OR_RETURN(auto pipeline, ParsePipeline(command.spec));
  KVS_RETURN_IF_ERROR(CheckOutput("--json", command.json));
  KVS_RETURN_IF_ERROR(CheckDistinct("the trace", command.trace, {{"--json", command.json}}));
  KVS_ASSIGN_OR_RETURN(const eval::Trace trace, eval::Trace::Open(command.trace));
  KVS_ASSIGN_OR_RETURN(const auto scores, ReadScores(command.scores, trace, {&pipeline, 1}));
  eval::CompareOptions options;
  options.prompt = {command.chunk_rows, scores ? &*scores : nullptr};
  options.measure = eval::Measure::kBytesAndTime;
  KVS_ASSIGN_OR_RETURN(const eval::Comparer comparer,
                       eval::Comparer::Create(trace, context.parallel(), options));
  eval::Comparison comparison = comparer.Describe();
  comparison.version = KVS_VERSION;
  Result<eval::PipelineResult> result = comparer.Run(std::move(pipeline));
  if (!result.ok()) return PipelineError(command.spec, result.error());
  comparison.pipelines.push_back(*std::move(result));
  eval::MarkParetoFront(comparison.pipelines);
  if (!command.json.empty()) {
    KVS_RETURN_IF_ERROR(WriteOutput(command.json, eval::ReportJson(comparison)));
  }
  if (command.json != kStdout) PrintReport(comparison);
  return {};
}

}  // namespace

void AddReport(CLI::App& app, Context& context) {
  auto options = std::make_shared<ReportCommand>();
  CLI::App* command =
      AddCommand(app, context, "report", "Byte accounting of one pipeline on a trace, per layer",
                 options, RunReport);
  command->add_option("TRACE", options->trace, "Trace file (kv-trace 1, safetensors)")
      ->required()
      ->type_name("");
  command->add_option("-p,--pipeline", options->spec, "Pipeline spec")
      ->type_name("SPEC")
      ->required();
  AddScoresOption(*command, &options->scores);
  AddChunkRowsOption(*command, &options->chunk_rows);
  AddOutput(*command, "--json", options->json, "Write JSON to this file; '-': to standard output");
}

}  // namespace kvsieve::tools
