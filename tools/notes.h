// What did not run as asked: kernel paths other than fused, budgets that were not reached.
#ifndef KVSIEVE_TOOLS_NOTES_H_
#define KVSIEVE_TOOLS_NOTES_H_

#include <cstdio>
#include <span>
#include <string>

#include "kvsieve/eval/compare.h"

namespace kvsieve::tools {

// A line of text, wrapped at the width of a terminal and indented from the second line on.
void PrintWrapped(std::FILE* out, const std::string& text);

// Prints nothing when all pipelines ran as asked. Pipelines are named by their number, from 1.
void PrintNotes(std::FILE* out, std::span<const eval::PipelineResult> pipelines);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_NOTES_H_
