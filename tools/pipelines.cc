#include "tools/pipelines.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/eval/file_error.h"

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

Status PipelineError(const std::string& spec, const Error& error) {
  return {error.code,
          StrCat("pipeline '", Quoted(spec, ColumnOf(error.message)), "': ", error.message)};
}

}  // namespace kvsieve::tools
