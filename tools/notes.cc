#include "tools/notes.h"

#include <string>

#include "lib/eval/run_notes.h"
#include "tools/table.h"
#include "tools/terminal.h"

namespace kvsieve::tools {

void PrintWrapped(std::FILE* out, const std::string& text) {
  const char* indent = "";
  for (const std::string& line : Wrap(text, TerminalColumns(out))) {
    std::fprintf(out, "%s%s\n", indent, line.c_str());
    indent = "  ";
  }
}

void PrintNotes(std::FILE* out, std::span<const eval::PipelineResult> pipelines) {
  for (const std::string& note : eval::RunNotes(pipelines)) PrintWrapped(out, note);
}

}  // namespace kvsieve::tools
