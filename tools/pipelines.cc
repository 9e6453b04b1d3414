#include "tools/pipelines.h"

#include <utility>

#include "kvsieve/str_cat.h"

namespace kvsieve::tools {

Result<std::shared_ptr<const Pipeline>> ParsePipeline(const std::string& spec) {
  Result<Pipeline> pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) return PipelineError(spec, pipeline.error());
  return std::make_shared<const Pipeline>(*std::move(pipeline));
}

Status PipelineError(const std::string& spec, const Error& error) {
  return {error.code, StrCat("pipeline '", spec, "': ", error.message)};
}

}  // namespace kvsieve::tools
