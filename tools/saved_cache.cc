#include "tools/saved_cache.h"

#include <cstdio>
#include <string>
#include <utility>

#include "kvsieve/eval/state_file.h"
#include "kvsieve/str_cat.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

std::string Losses(const StateInfo& info) {
  if (!info.lossy()) return "nothing: every token's rows have the bits they came with";
  std::string text = info.rows_rounded ? "rows are stored rounded" : "";
  if (info.rows_dropped) text += StrCat(text.empty() ? "" : ", ", "tokens have no row any more");
  return text;
}

// "k=int8, v=int4", or where rows are in more than one store "4 exact; 96 of k=int8, v=int4".
std::string StoresText(const SavedLayer& layer, const LayerReport& report) {
  std::vector<std::string> held;
  for (const auto& [store, bytes] : report.stores) {
    if (bytes.rows_kept == 0) continue;
    held.push_back(store == "exact" ? StrCat(bytes.rows_kept, " exact")
                                    : StrCat(bytes.rows_kept, " of ", store));
  }
  if (held.size() < 2) held = layer.stores;
  std::string text;
  for (const std::string& store : held) text += StrCat(text.empty() ? "" : "; ", store);
  return text;
}

void PrintLayers(const StateInfo& info, const Cache& cache) {
  Table table;
  table.AddColumn("layer", "");
  table.AddColumn("query", "heads");
  table.AddColumn("KV", "heads");
  table.AddColumn("key", "dim");
  table.AddColumn("value", "dim");
  table.AddColumn("window", "rows");
  table.AddColumn("tokens", "seen");
  table.AddColumn("rows", "all heads");
  table.AddColumn("kept", "KiB");
  table.AddColumn("stores", "", Align::kLeft);
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerSpec& spec = cache.layer(i);
    const LayerReport report = cache.ReportLayer(i);
    const std::string stores = StoresText(info.layers[i], report);
    table.AddRow({StrCat(spec.layer), StrCat(spec.query_heads), StrCat(spec.kv_heads),
                  StrCat(spec.key_dim), StrCat(spec.value_dim),
                  spec.sliding_window > 0 ? StrCat(spec.sliding_window) : "all",
                  StrCat(report.bytes.tokens_seen / spec.kv_heads), StrCat(report.bytes.rows_kept),
                  Fixed(static_cast<double>(report.bytes.kept_bytes()) / 1024, 1),
                  report.note.empty() ? stores : StrCat(stores, " (", report.note, ")")});
  }
  table.Print(stdout);
}

}  // namespace

Status PrintSavedCache(const std::string& path) {
  KVS_ASSIGN_OR_RETURN(const StateInfo info, eval::ReadStateInfo(path));
  CacheOptions options;
  options.decode_rows = info.decode_rows;
  KVS_ASSIGN_OR_RETURN(const Cache cache, eval::LoadCache(path, std::nullopt, options));
  const std::string name = path.substr(path.find_last_of('/') + 1);
  std::printf("%s: saved cache, format %d, valid, %s KiB\n", name.c_str(), info.version,
              Fixed(static_cast<double>(info.bytes) / 1024, 1).c_str());
  std::printf("identity:  %s\n", info.identity.empty() ? "none" : info.identity.c_str());
  std::printf("pipeline:  %s\n", info.spec.c_str());
  std::printf("prompt:    %s\n", info.finished ? "finished" : "not finished, rows as they came");
  std::printf("positions: next %d, exact again from %d on\n", cache.next_position(),
              cache.oldest_exact_position());
  std::printf("lost:      %s\n\n", Losses(info).c_str());
  PrintLayers(info, cache);
  std::int64_t demoted = 0;
  for (int i = 0; i < cache.layers(); ++i) demoted += cache.ReportLayer(i).demoted_rows;
  if (demoted > 0) {
    std::printf("\ndemoted: %s rows moved to a colder store after the prompt\n",
                StrCat(demoted).c_str());
  }
  return {};
}

}  // namespace kvsieve::tools
