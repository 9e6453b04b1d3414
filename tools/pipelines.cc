#include "tools/pipelines.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/eval/file_error.h"
#include "tools/decimal.h"

namespace kvsieve::tools {
namespace {

constexpr std::size_t kMaxQuotedBytes = 120;

// From 1; 1 when the message names no column.
std::size_t ColumnOf(std::string_view message) {
  constexpr std::string_view kColumn = "column ";
  std::size_t column = 1;
  if (message.starts_with(kColumn)) {
    std::from_chars(message.data() + kColumn.size(), message.data() + message.size(), column);
  }
  return std::max<std::size_t>(column, 1);
}

// The spec, or the part of a long one around the column: "...t4, v=turbo4 | tail=x | layers(0...".
std::string Quoted(std::string_view spec, std::size_t column) {
  if (spec.size() <= kMaxQuotedBytes) return eval::OneLine(spec, spec.size());
  constexpr std::size_t kBefore = kMaxQuotedBytes / 2;
  const std::size_t wanted = column - 1 > kBefore ? column - 1 - kBefore : 0;
  const std::size_t first = std::min(wanted, spec.size() - kMaxQuotedBytes);
  return StrCat(first > 0 ? "..." : "", eval::OneLine(spec.substr(first), kMaxQuotedBytes));
}

}  // namespace

Result<std::shared_ptr<const Pipeline>> ParsePipeline(const std::string& spec) {
  Result<Pipeline> pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) return PipelineError(spec, pipeline.error());
  return std::make_shared<const Pipeline>(*std::move(pipeline));
}

Result<std::optional<eval::ExternalScores>> ReadScores(
    const std::string& path, const eval::Trace& trace,
    std::span<const std::shared_ptr<const Pipeline>> pipelines) {
  const auto asks = std::find_if(pipelines.begin(), pipelines.end(), [](const auto& pipeline) {
    return pipeline->evictor() != nullptr && pipeline->evictor()->needs().external_scores;
  });
  if (asks == pipelines.end()) {
    if (path.empty()) return std::optional<eval::ExternalScores>();
    return Status::Invalid(StrCat("--scores ", path,
                                  ": no pipeline ranks by scores handed in; use the evict stage "
                                  "external, or leave --scores out"));
  }
  if (path.empty()) {
    return PipelineError(
        (*asks)->Typed(),
        {ErrorCode::kInvalidArgument, "external ranks by scores handed in; add --scores FILE"});
  }
  KVS_ASSIGN_OR_RETURN(eval::ExternalScores scores, eval::ExternalScores::Open(path, trace));
  return std::optional(std::move(scores));
}

void AddScoresOption(CLI::App& command, std::string* path) {
  command
      .add_option("--scores", *path,
                  "Scores for the evict stage external: safetensors, layer.{i}.scores F32 "
                  "[kv_heads, tokens]")
      ->type_name("FILE");
}

void AddChunkRowsOption(CLI::App& command, int* rows) {
  command
      .add_option("--chunk-rows", *rows,
                  "Append the prompt in chunks of N tokens (schedule=per_chunk evicts after each); "
                  "without: all at once")
      ->check(Decimal(1, 1 << 30))
      ->type_name("N");
}

Status PipelineError(const std::string& spec, const Error& error) {
  return {error.code,
          StrCat("pipeline '", Quoted(spec, ColumnOf(error.message)), "': ", error.message)};
}

}  // namespace kvsieve::tools
