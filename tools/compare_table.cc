#include "tools/compare_table.h"

#include <algorithm>
#include <optional>
#include <string>

#include "kvsieve/str_cat.h"
#include "lib/eval/run_notes.h"
#include "tools/notes.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

std::vector<std::string> Cells(const eval::PipelineResult& pipeline, int number, ByteUnit unit) {
  std::optional<double> mean, p99, kl, mass, top32;
  if (const auto& accuracy = pipeline.accuracy) {
    mean = accuracy->output_rel_error.mean;
    p99 = accuracy->output_rel_error.p99;
    kl = accuracy->attention_kl;
    mass = accuracy->attention_mass_kept;
    top32 = accuracy->top32_overlap;
  }
  const ByteReport& bytes = pipeline.bytes;
  return {StrCat(number),
          pipeline.pareto ? "*" : "",
          Fixed(static_cast<double>(bytes.kept_bytes()) / unit.bytes, 1),
          Fixed(bytes.total_ratio(), 2),
          Fixed(100 * bytes.keep_rate(), 1),
          Fixed(mean, 4),
          Fixed(p99, 4),
          Fixed(kl, 4),
          Fixed(mass, 4),
          Fixed(top32, 3),
          Fixed(pipeline.time.compact_ms, 1),
          Fixed(pipeline.time.attend_us_per_token, 0),
          pipeline.typed};
}

}  // namespace

void PrintSetting(std::FILE* out, const eval::Comparison& comparison) {
  std::string engine = "not recorded";
  if (comparison.engine_rel_error) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", *comparison.engine_rel_error);
    engine = text;
  }
  PrintWrapped(
      out,
      StrCat(comparison.trace_name, ": ", comparison.tokens, " prompt tokens",
             eval::ChunksText(comparison), ", ", comparison.n_eval, " eval tokens (their rows ",
             comparison.decode_rows == DecodeRows::kExact ? "stay exact" : "are stored", "), ",
             eval::LayersText(comparison.layers), " of the model; kernels ", comparison.target,
             ", ", comparison.threads, " thread", comparison.threads == 1 ? "" : "s",
             "; engine_rel_error ", engine));
}

void PrintCompareTable(std::FILE* out, const eval::Comparison& comparison) {
  std::int64_t largest = 0;
  for (const eval::PipelineResult& pipeline : comparison.pipelines) {
    largest = std::max(largest, pipeline.bytes.kept_bytes());
  }
  const ByteUnit unit = ByteUnitFor(largest);
  Table table;
  table.AddColumn("#", "");
  table.AddColumn("", "");
  table.AddColumn("kept", unit.name);
  table.AddColumn("ratio", "x");
  table.AddColumn("rows", "%");
  table.AddColumn("error", "mean");
  table.AddColumn("error", "p99");
  table.AddColumn("KL", "nats");
  table.AddColumn("mass", "kept");
  table.AddColumn("top32", "share");
  table.AddColumn("compact", "ms");
  table.AddColumn("attend", "us/token");
  table.AddColumn("pipeline", "", Align::kLeft);
  int number = 0;
  for (const eval::PipelineResult& pipeline : comparison.pipelines) {
    table.AddRow(Cells(pipeline, ++number, unit),
                 pipeline.pareto ? RowStyle::kMarked : RowStyle::kPlain);
  }
  table.Print(out);
  std::fprintf(out, "\n");
  for (const char* line : eval::FigureLegend()) PrintWrapped(out, line);
  PrintSetting(out, comparison);
  PrintNotes(out, comparison.pipelines);
}

}  // namespace kvsieve::tools
