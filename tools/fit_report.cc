#include "tools/fit_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/eval/byte_fields.h"
#include "tools/notes.h"
#include "tools/table.h"

namespace kvsieve::tools {
namespace {

using Json = nlohmann::ordered_json;

const char* VerdictText(const std::optional<Verdict>& verdict) {
  if (!verdict) return "";
  switch (*verdict) {
    case Verdict::kFits:
      return "yes";
    case Verdict::kDepends:
      return "maybe";
    case Verdict::kDoesNot:
      return "no";
  }
  return "";
}

std::string LongestText(std::int64_t tokens) {
  return StrCat(tokens >= kLongest ? ">=" : "", tokens);
}

std::string Range(const ByteRange& range, const ByteUnit& unit) {
  const std::string most = Fixed(static_cast<double>(range.most) / unit.bytes, 1);
  const std::string least = Fixed(static_cast<double>(range.least) / unit.bytes, 1);
  if (least == most) return most;
  return range.least == 0 ? StrCat("<=", most) : StrCat(least, "..", most);
}

double Ratio(const BytePlan& plan) {
  return static_cast<double>(plan.bytes.most.full_bytes()) /
         static_cast<double>(std::max<std::int64_t>(1, plan.kept.most));
}

void PrintTable(std::FILE* out, const FitReport& report) {
  std::int64_t largest = 0;
  for (const FitResult& result : report.results) {
    largest = std::max(largest, result.plan.prefill_peak.most);
  }
  const ByteUnit unit = ByteUnitFor(largest);
  const bool judged = report.memory_bytes.has_value();
  Table table;
  table.AddColumn("#", "");
  if (judged) table.AddColumn("fits", "");
  table.AddColumn("kept", unit.name);
  table.AddColumn("ratio", "x");
  table.AddColumn("resident", unit.name);
  table.AddColumn("at prefill", unit.name);
  if (judged) table.AddColumn("longest", "tokens");
  if (report.suggested) table.AddColumn("error", "mean");
  table.AddColumn("pipeline", "", Align::kLeft);
  int number = 0;
  for (const FitResult& result : report.results) {
    std::vector<std::string> cells = {StrCat(++number)};
    if (judged) cells.push_back(VerdictText(result.verdict));
    cells.push_back(Range(result.plan.kept, unit));
    cells.push_back(Fixed(Ratio(result.plan), 2));
    cells.push_back(Range(result.plan.resident, unit));
    cells.push_back(Range(result.plan.prefill_peak, unit));
    if (judged) cells.push_back(LongestText(result.longest_tokens));
    if (report.suggested) cells.push_back(Fixed(result.error, 4));
    cells.push_back(result.typed);
    const bool fits = result.verdict == Verdict::kFits;
    table.AddRow(std::move(cells), fits ? RowStyle::kMarked : RowStyle::kPlain);
  }
  table.Print(out);
}

// What is not told of a cache to come.
bool IsTold(const eval::ByteField& field) {
  return field.name != "scratch_peak_bytes" && field.name != "shared_bytes";
}

// Of the sums the plan may know closer bounds than the parts have.
ByteRange FieldRange(const BytePlan& plan, const eval::ByteField& field) {
  if (field.name == "kept_bytes") return plan.kept;
  if (field.name == "resident_bytes") return plan.resident;
  return {field.get(plan.bytes.least), field.get(plan.bytes.most)};
}

void PrintFields(std::FILE* out, const BytePlan& plan) {
  Table table;
  table.AddColumn("field", "");
  table.AddColumn("least", "bytes");
  table.AddColumn("most", "bytes");
  table.AddColumn("what it is", "", Align::kLeft);
  for (const eval::ByteField& field : eval::ByteFields()) {
    if (!IsTold(field)) continue;
    const ByteRange range = FieldRange(plan, field);
    table.AddRow(
        {StrCat(field.name), StrCat(range.least), StrCat(range.most), StrCat(field.meaning)});
  }
  table.AddRow({"at prefill", StrCat(plan.prefill_peak.least), StrCat(plan.prefill_peak.most),
                "the prompt as it came, the queries, and all that stays of them"});
  table.Print(out);
}

// "40 of 8 KV heads x 256, window 1024; 8 of 1 KV head x 512"
std::string LayersText(const eval::ModelConfig& model) {
  std::vector<std::pair<std::string, int>> shapes;  // in the order they come
  for (const LayerSpec& layer : model.caches) {
    const std::string dims = layer.value_is_key_prefix ? StrCat(layer.key_dim, " (MLA)")
                             : layer.key_dim == layer.value_dim
                                 ? StrCat(layer.key_dim)
                                 : StrCat(layer.key_dim, "/", layer.value_dim);
    const std::string shape =
        StrCat(layer.kv_heads, layer.kv_heads == 1 ? " KV head x " : " KV heads x ", dims,
               layer.sliding_window > 0 ? StrCat(", window ", layer.sliding_window) : "");
    const auto found = std::find_if(shapes.begin(), shapes.end(),
                                    [&](const auto& known) { return known.first == shape; });
    if (found == shapes.end()) {
      shapes.emplace_back(shape, 1);
    } else {
      ++found->second;
    }
  }
  std::string text;
  for (const auto& [shape, count] : shapes) {
    text +=
        StrCat(text.empty() ? "" : "; ", count, count == 1 ? " layer of " : " layers of ", shape);
  }
  return text;
}

Json RangeJson(std::int64_t least, std::int64_t most) { return {{"least", least}, {"most", most}}; }

Json LayerJson(const LayerSpec& layer) {
  return {{"layer", layer.layer},
          {"query_heads", layer.query_heads},
          {"kv_heads", layer.kv_heads},
          {"key_dim", layer.key_dim},
          {"value_dim", layer.value_dim},
          {"value_is_key_prefix", layer.value_is_key_prefix},
          {"window", layer.sliding_window > 0 ? Json(layer.sliding_window) : Json()}};
}

Json ResultJson(const FitResult& result, bool suggested) {
  const BytePlan& plan = result.plan;
  Json bytes = Json::object();
  for (const eval::ByteField& field : eval::ByteFields()) {
    if (!IsTold(field)) continue;
    const ByteRange range = FieldRange(plan, field);
    bytes[std::string(field.name)] = RangeJson(range.least, range.most);
  }
  Json out = {{"spec", result.canonical},
              {"typed", result.typed},
              {"at_most", result.at_most},
              {"kept", RangeJson(plan.kept.least, plan.kept.most)},
              {"resident", RangeJson(plan.resident.least, plan.resident.most)},
              {"prefill_peak", RangeJson(plan.prefill_peak.least, plan.prefill_peak.most)},
              {"rows_kept", RangeJson(plan.bytes.least.rows_kept, plan.bytes.most.rows_kept)},
              {"total_ratio", Ratio(plan)},
              {"bytes", std::move(bytes)}};
  out["fits"] = result.verdict ? Json(VerdictText(result.verdict)) : Json();
  out["longest_tokens"] = result.verdict ? Json(result.longest_tokens) : Json();
  if (suggested) out["output_rel_error"] = result.error ? Json(*result.error) : Json();
  return out;
}

}  // namespace

void PrintFit(std::FILE* out, const FitReport& report) {
  PrintTable(out, report);
  if (report.results.size() == 1) {
    std::fprintf(out, "\n");
    PrintFields(out, report.results[0].plan);
  }
  std::fprintf(out, "\n");
  PrintWrapped(
      out, StrCat(Printable(report.model.name.empty() ? report.path : report.model.name), ": ",
                  LayersText(report.model), "; ", report.request.prompt_tokens, " prompt tokens",
                  report.request.decode_tokens > 0
                      ? StrCat(" and ", report.request.decode_tokens, " after them")
                      : "",
                  ", rows come as ", ElementName(report.request.key_type)));
  if (std::ranges::any_of(report.results, &FitResult::at_most)) {
    PrintWrapped(out,
                 "<=: at most; what a plan keeps depends on the data, and never passes its budget");
  }
  for (const std::string& note : report.model.notes) PrintWrapped(out, StrCat("note: ", note));
  if (report.memory_bytes) {
    PrintWrapped(out, StrCat("fits: resident, at most, in ", *report.memory_bytes,
                             " bytes; longest: the longest context that does. At prefill the rows "
                             "lie there as they come, too, which fits does not ask"));
  }
  if (report.suggested) {
    PrintWrapped(out,
                 "error: mean output error on the bundled trace of SmolLM2-135M (docs/cli.md); "
                 "other models and texts rank close ones otherwise");
  }
}

std::string FitJson(const FitReport& report) {
  Json layers = Json::array();
  for (const LayerSpec& layer : report.model.caches) layers.push_back(LayerJson(layer));
  Json pipelines = Json::array();
  for (const FitResult& result : report.results) {
    pipelines.push_back(ResultJson(result, report.suggested));
  }
  const Json out = {{"schema", "kvsieve.fit/1"},
                    {"version", KVS_VERSION},
                    {"model",
                     {{"name", report.model.name},
                      {"layers", report.model.layers},
                      {"caches", std::move(layers)},
                      {"notes", report.model.notes}}},
                    {"prompt_tokens", report.request.prompt_tokens},
                    {"decode_tokens", report.request.decode_tokens},
                    {"rows", ElementName(report.request.key_type)},
                    {"memory_bytes", report.memory_bytes ? Json(*report.memory_bytes) : Json()},
                    {"pipelines", std::move(pipelines)}};
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace kvsieve::tools
