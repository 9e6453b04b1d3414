// Pipeline specs of the command line, parsed with messages that say which one is meant.
#ifndef KVSIEVE_TOOLS_PIPELINES_H_
#define KVSIEVE_TOOLS_PIPELINES_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvsieve/eval/external_scores.h"
#include "kvsieve/eval/trace.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"

namespace kvsieve::tools {

// Errors read "pipeline 'SPEC': column N: ..."; of a long spec the part around the column is shown.
Result<std::shared_ptr<const Pipeline>> ParsePipeline(const std::string& spec);

// The scores of --scores for pipelines that rank by them. Errors: scores that no pipeline asks for,
// a pipeline that asks for scores without any. Empty when none are asked for.
Result<std::optional<eval::ExternalScores>> ReadScores(
    const std::string& path, const eval::Trace& trace,
    std::span<const std::shared_ptr<const Pipeline>> pipelines);
void AddScoresOption(CLI::App& command, std::string* path);
void AddChunkRowsOption(CLI::App& command, int* rows);

// The same prefix for a mistake that only shows on the trace.
Status PipelineError(const std::string& spec, const Error& error);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_PIPELINES_H_
