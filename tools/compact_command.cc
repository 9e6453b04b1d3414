// kvsieve compact TRACE -p SPEC -o OUT.safetensors [--json F]
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/eval/compare.h"
#include "kvsieve/str_cat.h"
#include "lib/eval/report_json.h"
#include "lib/eval/row_errors.h"
#include "lib/eval/safetensors.h"
#include "tools/context.h"
#include "tools/notes.h"
#include "tools/output.h"
#include "tools/pipelines.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

struct CompactCommand {
  std::string trace;
  std::string spec;
  std::string scores;
  int chunk_rows = 0;
  std::string out;
  std::string json;
};

// Tensors with the memory that they point to.
struct CompactedRows {
  eval::Safetensors file;
  std::deque<std::vector<TokenPos>> positions;
  std::deque<std::vector<std::int32_t>> tiers;
  std::deque<std::vector<float>> rows;
};

template <class T>
void AddTensor(const std::string& name, eval::TensorType type, std::vector<std::int64_t> shape,
               const std::vector<T>& values, eval::Safetensors& file) {
  file.tensors.push_back({name, type, std::move(shape), std::as_bytes(std::span(values))});
}

Status AddHead(const Cache& cache, int layer_index, int head, CompactedRows& out) {
  const LayerSpec& layer = cache.layer(layer_index);
  const std::int64_t rows = cache.rows(layer_index, head);
  auto& positions = out.positions.emplace_back(rows);
  auto& tiers = out.tiers.emplace_back(rows);
  auto& keys = out.rows.emplace_back(rows * layer.key_dim);
  auto& values = out.rows.emplace_back(rows * layer.value_dim);
  KVS_RETURN_IF_ERROR(cache.Gather(layer_index, head, positions, keys, values));
  KVS_RETURN_IF_ERROR(cache.RowTiers(layer_index, head, tiers));
  const std::string prefix = StrCat("layer.", layer.layer, ".head.", head);
  AddTensor(prefix + ".positions", eval::TensorType::kI32, {rows}, positions, out.file);
  AddTensor(prefix + ".tiers", eval::TensorType::kI32, {rows}, tiers, out.file);
  AddTensor(prefix + ".k", eval::TensorType::kF32, {rows, layer.key_dim}, keys, out.file);
  AddTensor(prefix + ".v", eval::TensorType::kF32, {rows, layer.value_dim}, values, out.file);
  return {};
}

Status WriteRows(const Cache& cache, const std::string& path) {
  CompactedRows rows;
  for (int i = 0; i < cache.layers(); ++i) {
    for (int head = 0; head < cache.layer(i).kv_heads; ++head) {
      KVS_RETURN_IF_ERROR(AddHead(cache, i, head, rows));
    }
  }
  return eval::WriteSafetensors(path, rows.file);
}

void PrintSummary(const eval::PipelineResult& result, const std::string& path) {
  const ByteReport& bytes = result.bytes;
  std::printf("%s: %lld of %lld rows, decoded; the cache holds them in %lld bytes (ratio %s)\n",
              path.c_str(), static_cast<long long>(bytes.rows_kept),
              static_cast<long long>(bytes.tokens_seen), static_cast<long long>(bytes.kept_bytes()),
              Fixed(bytes.total_ratio(), 2).c_str());
  PrintNotes(stdout, std::span(&result, 1));
}

Status RunCompact(Context& context, const CompactCommand& command) {
  KVS_ASSIGN_OR_RETURN(auto pipeline, ParsePipeline(command.spec));
  KVS_RETURN_IF_ERROR(CheckOutputFile("--output", command.out));
  KVS_RETURN_IF_ERROR(CheckOutput("--json", command.json));
  KVS_RETURN_IF_ERROR(CheckDistinct("the trace", command.trace,
                                    {{"--output", command.out}, {"--json", command.json}}));
  KVS_ASSIGN_OR_RETURN(const eval::Trace trace, eval::Trace::Open(command.trace));
  KVS_ASSIGN_OR_RETURN(const auto scores, ReadScores(command.scores, trace, {&pipeline, 1}));
  CacheOptions options;
  options.parallel = &context.parallel();
  Result<eval::CompressedPrompt> prompt = eval::CompressPrompt(
      trace, std::move(pipeline), options, {command.chunk_rows, scores ? &*scores : nullptr});
  if (!prompt.ok()) return PipelineError(command.spec, prompt.error());
  KVS_RETURN_IF_ERROR(WriteRows(prompt->cache, command.out));
  KVS_RETURN_IF_ERROR(
      eval::MeasureRowErrors(trace, prompt->cache, context.parallel(), &prompt->result));
  eval::Comparison comparison = eval::DescribeSetting(trace, context.parallel());
  comparison.version = KVS_VERSION;
  comparison.chunk_rows = command.chunk_rows;
  comparison.pipelines.push_back(std::move(prompt->result));
  eval::MarkParetoFront(comparison.pipelines);
  if (!command.json.empty()) {
    KVS_RETURN_IF_ERROR(WriteOutput(command.json, eval::ReportJson(comparison)));
  }
  if (command.json != kStdout) PrintSummary(comparison.pipelines[0], command.out);
  return {};
}

}  // namespace

void AddCompact(CLI::App& app, Context& context) {
  auto options = std::make_shared<CompactCommand>();
  CLI::App* command =
      AddCommand(app, context, "compact", "Write the kept positions and decoded rows of the prompt",
                 options, RunCompact);
  command->add_option("TRACE", options->trace, "Trace file (kv-trace 1, safetensors)")
      ->required()
      ->type_name("");
  command->add_option("-p,--pipeline", options->spec, "Pipeline spec")
      ->type_name("SPEC")
      ->required();
  AddScoresOption(*command, &options->scores);
  AddChunkRowsOption(*command, &options->chunk_rows);
  AddOutput(*command, "-o,--output", options->out, "Safetensors file to write")->required();
  AddOutput(*command, "--json", options->json,
            "Write the byte report to this file; '-': to standard output");
}

}  // namespace kvsieve::tools
