#include "tools/compare_table.h"

#include <algorithm>
#include <optional>
#include <string>

#include "kvsieve/str_cat.h"
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

constexpr char kLegend[] =
    "* Pareto front of kept bytes and mean output error. ratio: f16 bytes of all tokens / kept "
    "bytes. rows: kept.\n"
    "output error |o-o*|/|o*|, KL(compressed|full), mass of full attention on kept rows, top32 "
    "shared strongest rows.\n";

}  // namespace

void PrintSetting(std::FILE* out, const eval::Comparison& comparison) {
  std::string engine = "not recorded";
  if (comparison.engine_rel_error) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", *comparison.engine_rel_error);
    engine = text;
  }
  std::fprintf(out,
               "%s: %lld prompt tokens, %lld eval tokens (their rows %s), %zu layers; kernels %s, "
               "%d thread%s; engine_rel_error %s\n",
               comparison.trace_name.c_str(), static_cast<long long>(comparison.tokens),
               static_cast<long long>(comparison.n_eval),
               comparison.decode_rows == DecodeRows::kExact ? "stay exact" : "are stored",
               comparison.layers.size(), comparison.target.c_str(), comparison.threads,
               comparison.threads == 1 ? "" : "s", engine.c_str());
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
  table.AddColumn("top32", "shared");
  table.AddColumn("compact", "ms");
  table.AddColumn("attend", "us/token");
  table.AddColumn("pipeline", "", Align::kLeft);
  int number = 0;
  for (const eval::PipelineResult& pipeline : comparison.pipelines) {
    table.AddRow(Cells(pipeline, ++number, unit),
                 pipeline.pareto ? RowStyle::kMarked : RowStyle::kPlain);
  }
  table.Print(out);
  std::fprintf(out, "\n%s", kLegend);
  PrintSetting(out, comparison);
  PrintNotes(out, comparison.pipelines);
}

}  // namespace kvsieve::tools
