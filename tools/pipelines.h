// Pipeline specs of the command line, parsed with messages that say which one is meant.
#ifndef KVSIEVE_TOOLS_PIPELINES_H_
#define KVSIEVE_TOOLS_PIPELINES_H_

#include <memory>
#include <string>

#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"

namespace kvsieve::tools {

// Errors read "pipeline 'SPEC': column N: ..."; of a long spec the part around the column is shown.
Result<std::shared_ptr<const Pipeline>> ParsePipeline(const std::string& spec);

// The same prefix for a mistake that only shows on the trace.
Status PipelineError(const std::string& spec, const Error& error);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_PIPELINES_H_
