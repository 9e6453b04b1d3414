#include "lib/eval/html/report_html.h"

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "kvsieve/str_cat.h"
#include "lib/eval/html/scatter_svg.h"
#include "lib/eval/run_notes.h"

namespace kvsieve::eval {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvsieve compare</title>
<style>
:root { --ink: #1c1e21; --muted: #6b7178; --line: #e3e6ea; --front: #0b6e4f; --page: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --muted: #9aa1a9; --line: #33383e; --front: #58c79b; --page: #16181b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } p { color: var(--muted); }
svg { width: 100%; height: auto; }
.grid { stroke: var(--line); } .axis { fill: var(--muted); font-size: 12px; }
.front-line { fill: none; stroke: var(--front); stroke-width: 1.5; }
.point { fill: var(--page); stroke: var(--muted); stroke-width: 1.5; }
.point-front { fill: var(--front); stroke: var(--page); }
.number { fill: var(--ink); font-size: 11px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--muted); font-weight: 600; } td.spec, th.spec { text-align: left; }
td.spec { font-family: ui-monospace, monospace; } tr.front td { color: var(--front); }
</style></head><body>
)";

std::string Figure(std::optional<double> value, const char* format) {
  if (!value) return "\u2013";
  char text[64];
  std::snprintf(text, sizeof text, format, *value);
  return text;
}

std::string Cell(const std::string& text) { return "<td>" + text + "</td>"; }

double KeptKib(const PipelineResult& pipeline) {
  return static_cast<double>(pipeline.bytes.kept_bytes()) / 1024;
}

std::string Row(const PipelineResult& pipeline, int number) {
  std::optional<double> error, p99, kl, mass, top32;
  if (const auto& a = pipeline.accuracy) {
    error = a->output_rel_error.mean;
    p99 = a->output_rel_error.p99;
    kl = a->attention_kl;
    mass = a->attention_mass_kept;
    top32 = a->top32_overlap;
  }
  return StrCat(pipeline.pareto ? "<tr class=\"front\">" : "<tr>",
                Cell(StrCat(pipeline.pareto ? "* " : "", number)), "<td class=\"spec\" title=\"",
                HtmlText(pipeline.canonical), "\">", HtmlText(pipeline.typed), "</td>",
                Cell(Figure(KeptKib(pipeline), "%.1f")),
                Cell(Figure(pipeline.bytes.total_ratio(), "%.2f")),
                Cell(Figure(100 * pipeline.bytes.keep_rate(), "%.1f")), Cell(Figure(error, "%.4f")),
                Cell(Figure(p99, "%.4f")), Cell(Figure(kl, "%.4f")), Cell(Figure(mass, "%.4f")),
                Cell(Figure(top32, "%.3f")), Cell(Figure(pipeline.time.compact_ms, "%.1f")),
                Cell(Figure(pipeline.time.attend_us_per_token, "%.0f")), "</tr>\n");
}

// "7: none | kv=turbo4, 1020.2 KiB, error 0.0628".
std::string Tooltip(const PipelineResult& pipeline, int number) {
  return StrCat(number, ": ", pipeline.typed, ", ", Figure(KeptKib(pipeline), "%.1f"),
                " KiB, error ", Figure(pipeline.accuracy->output_rel_error.mean, "%.4f"));
}

std::string Scatter(const Comparison& comparison) {
  std::vector<ScatterPoint> points;
  int number = 0;
  for (const PipelineResult& pipeline : comparison.pipelines) {
    ++number;
    if (!pipeline.accuracy || pipeline.bytes.kept_bytes() <= 0) continue;
    const double error = pipeline.accuracy->output_rel_error.mean;
    points.push_back({static_cast<double>(pipeline.bytes.kept_bytes()), error, pipeline.pareto,
                      number, Tooltip(pipeline, number)});
  }
  return ScatterSvg(points);
}

}  // namespace

std::string ReportHtml(const Comparison& comparison) {
  std::string out = kHead;
  out += StrCat("<h1>", HtmlText(comparison.trace_name), "</h1>\n<p>", comparison.tokens,
                " prompt tokens", ChunksText(comparison), ", ", comparison.n_eval, " eval tokens, ",
                LayersText(comparison.layers), " of the model; kernels ", comparison.target, ", ",
                comparison.threads, " threads; eval rows ",
                comparison.decode_rows == DecodeRows::kExact ? "stay exact" : "are stored",
                "; engine_rel_error ", Figure(comparison.engine_rel_error, "%.2e"), "; kvsieve ",
                comparison.version, "</p>\n");
  out += Scatter(comparison);
  out +=
      "<p>Filled points and the line are the Pareto front: nothing else has both fewer bytes and "
      "a smaller error. The numbers are those of the table.</p>\n"
      "<div class=\"scroll\"><table>\n<tr><th>#</th><th class=\"spec\">pipeline</th>"
      "<th>kept KiB</th><th>ratio</th><th>rows %</th><th>error mean</th><th>error p99</th>"
      "<th>KL nats</th><th>mass</th><th>top32</th><th>compact ms</th>"
      "<th>attend \u00b5s/token</th></tr>\n";
  int number = 0;
  for (const PipelineResult& pipeline : comparison.pipelines) out += Row(pipeline, ++number);
  out += "</table></div>\n<p class=\"legend\">";
  for (const char* line : FigureLegend()) out += HtmlText(line) + "<br>\n";
  for (const std::string& note : RunNotes(comparison.pipelines)) out += HtmlText(note) + "<br>\n";
  return out + "</p>\n</body></html>\n";
}

}  // namespace kvsieve::eval
