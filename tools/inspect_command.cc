// kvsieve inspect FILE
#include <sys/stat.h>

#include <cstdio>
#include <memory>
#include <string>

#include "kvsieve/eval/state_file.h"
#include "kvsieve/eval/trace.h"
#include "kvsieve/str_cat.h"
#include "tools/compacted_file.h"
#include "tools/context.h"
#include "tools/saved_cache.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

struct InspectCommand {
  std::string file;
};

std::string PositionRange(std::span<const TokenPos> positions) {
  if (positions.empty()) return "none";
  return StrCat(positions.size(), " at positions ", positions.front(), "..", positions.back());
}

std::int64_t ViewBytes(const HeadsView& view) {
  if (view.data == nullptr) return 0;
  return view.heads * view.rows * view.dim * static_cast<std::int64_t>(ElementBytes(view.type));
}

std::string Recorded(const eval::TraceLayer& layer) {
  std::string out;
  if (layer.eval_keys.data != nullptr) out = "eval rows";
  if (layer.eval_outputs.data != nullptr) out += out.empty() ? "outputs" : ", outputs";
  return out.empty() ? "-" : out;
}

void PrintLayers(const eval::Trace& trace) {
  Table table;
  table.AddColumn("layer", "");
  table.AddColumn("query", "heads");
  table.AddColumn("KV", "heads");
  table.AddColumn("key", "dim");
  table.AddColumn("value", "dim");
  table.AddColumn("type", "K V");
  table.AddColumn("scale", "");
  table.AddColumn("softcap", "");
  table.AddColumn("window", "rows");
  table.AddColumn("K and V", "KiB");
  table.AddColumn("also recorded", "", Align::kLeft);
  for (const eval::TraceLayer& layer : trace.layers()) {
    const LayerSpec& spec = layer.spec;
    const double kib = static_cast<double>(ViewBytes(layer.keys) + ViewBytes(layer.values)) / 1024;
    table.AddRow({StrCat(spec.layer), StrCat(spec.query_heads), StrCat(spec.kv_heads),
                  StrCat(spec.key_dim), StrCat(spec.value_dim),
                  StrCat(ElementName(layer.keys.type), " ", ElementName(layer.values.type)),
                  StrCat(spec.scale), spec.softcap > 0 ? StrCat(spec.softcap) : "none",
                  spec.sliding_window > 0 ? StrCat(spec.sliding_window) : "all", Fixed(kib, 1),
                  Recorded(layer)});
  }
  table.Print(stdout);
}

Status RunInspect(Context&, const InspectCommand& command) {
  if (eval::IsSavedCache(command.file)) return PrintSavedCache(command.file);
  Result<eval::Trace> opened = eval::Trace::Open(command.file);
  if (!opened.ok()) {
    return PrintCompactedFile(command.file) ? Status() : opened.TakeStatus();
  }
  const eval::Trace trace = *std::move(opened);
  struct stat status {};
  const bool known = stat(command.file.c_str(), &status) == 0;
  std::printf("%s: kv-trace 1, valid, %s KiB\n", trace.name().c_str(),
              known ? Fixed(static_cast<double>(status.st_size) / 1024, 1).c_str() : "?");
  std::printf("prompt tokens:  %s%s\n", PositionRange(trace.positions()).c_str(),
              trace.token_ids().empty() ? "" : ", ids recorded");
  std::printf("window queries: %s\n", PositionRange(trace.window_positions()).c_str());
  std::printf("eval queries:   %s\n\n", PositionRange(trace.eval_positions()).c_str());
  PrintLayers(trace);
  std::printf("\n");
  Table table;
  table.AddColumn("metadata", "", Align::kLeft);
  table.AddColumn("", "", Align::kLeft);
  for (const auto& [key, value] : trace.metadata()) {
    table.AddRow({Printable(key), Printable(value)});
  }
  table.Print(stdout);
  return {};
}

}  // namespace

void AddInspect(CLI::App& app, Context& context) {
  auto options = std::make_shared<InspectCommand>();
  CLI::App* command = AddCommand(
      app, context, "inspect",
      "What a trace or a saved cache holds, validated, or a file of compact", options, RunInspect);
  command->add_option("FILE", options->file, "Trace, saved cache, or what compact wrote")
      ->required()
      ->type_name("");
}

}  // namespace kvsieve::tools
