#include "lib/eval/report_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "kvsieve/str_cat.h"
#include "lib/eval/byte_fields.h"

namespace kvsieve::eval {
namespace {

using Json = nlohmann::ordered_json;

Json Number(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

Json AccuracyJson(const std::optional<Accuracy>& accuracy) {
  if (!accuracy) return nullptr;
  const auto& error = accuracy->output_rel_error;
  return {{"output_rel_error",
           {{"mean", Number(error.mean)},
            {"p50", Number(error.p50)},
            {"p99", Number(error.p99)},
            {"max", Number(error.max)}}},
          {"output_cosine", Number(accuracy->output_cosine)},
          {"attention_kl", Number(accuracy->attention_kl)},
          {"attention_mass_kept", Number(accuracy->attention_mass_kept)},
          {"top32_overlap", Number(accuracy->top32_overlap)}};
}

// The fields that a pipeline and each of its layers have in common.
void AddFigures(const ByteReport& report, const RowErrors& row_errors,
                const std::optional<Accuracy>& accuracy, const Timing& time, Json& out) {
  Json bytes = Json::object();
  for (const ByteField& field : ByteFields()) bytes[std::string(field.name)] = field.get(report);
  out["bytes"] = std::move(bytes);
  out["rows"] = {{"tokens_seen", report.tokens_seen}, {"rows_kept", report.rows_kept}};
  for (const RatioField& field : RatioFields()) {
    out[std::string(field.name)] = Number(field.get(report));
  }
  out["key_rel_error"] = Number(row_errors.key);
  out["value_rel_error"] = Number(row_errors.value);
  out["accuracy"] = AccuracyJson(accuracy);
  out["time"] = {{"compact_ms", Number(time.compact_ms)},
                 {"attend_us_per_token", Number(time.attend_us_per_token)}};
}

Json StoresJson(const LayerReport& report) {
  Json stores = Json::array();
  for (const StoreReport& store : report.stores) {
    stores.push_back({{"store", store.store},
                      {"rows_kept", store.bytes.rows_kept},
                      {"payload_bytes", store.bytes.payload_bytes},
                      {"scale_bytes", store.bytes.scale_bytes},
                      {"metadata_bytes", store.bytes.metadata_bytes},
                      {"kept_bytes", store.bytes.kept_bytes()}});
  }
  return stores;
}

Json LayerJson(const LayerResult& layer) {
  Json out = {{"layer", layer.report.layer},
              {"requested", layer.report.requested},
              {"applied", layer.report.applied},
              {"path", PathName(layer.report)},
              {"demoted_rows", layer.report.demoted_rows},
              {"note", layer.report.note}};
  AddFigures(layer.report.bytes, layer.row_errors, layer.accuracy, layer.time, out);
  out["stores"] = StoresJson(layer.report);
  return out;
}

Json PipelineJson(const PipelineResult& pipeline) {
  Json out = {{"spec", pipeline.canonical}, {"typed", pipeline.typed}};
  AddFigures(pipeline.bytes, pipeline.row_errors, pipeline.accuracy, pipeline.time, out);
  out["pareto"] = pipeline.pareto;
  out["layers"] = Json::array();
  for (const LayerResult& layer : pipeline.layers) out["layers"].push_back(LayerJson(layer));
  return out;
}

Json TraceJson(const Comparison& comparison) {
  Json layers = Json::array();
  for (const LayerSpec& layer : comparison.layers) {
    layers.push_back(
        {{"layer", layer.layer},
         {"kv_heads", layer.kv_heads},
         {"query_heads", layer.query_heads},
         {"key_dim", layer.key_dim},
         {"value_dim", layer.value_dim},
         {"scale", Number(layer.scale)},
         {"window", layer.sliding_window > 0 ? Json(layer.sliding_window) : Json(nullptr)}});
  }
  return {{"name", comparison.trace_name},
          {"tokens", comparison.tokens},
          {"n_eval", comparison.n_eval},
          {"layers", std::move(layers)},
          {"engine_rel_error", Number(comparison.engine_rel_error)}};
}

std::string CsvText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string CsvNumber(std::optional<double> value) {
  return value && std::isfinite(*value) ? StrCat(*value) : std::string();
}

// The kernel paths of the K or V side over all layers: "fused", or "fused/portable" where layers
// differ.
std::string PathsOf(const PipelineResult& pipeline, std::string LayerReport::*side) {
  std::set<std::string> paths;
  for (const LayerResult& layer : pipeline.layers) paths.insert(layer.report.*side);
  std::string out;
  for (const std::string& path : paths) out += StrCat(out.empty() ? "" : "/", path);
  return out;
}

// Tokens of the prompt that were appended at a time.
std::int64_t ChunkRows(const Comparison& comparison) {
  return comparison.chunk_rows > 0 ? std::min(comparison.chunk_rows, comparison.tokens)
                                   : comparison.tokens;
}

// Behind the figures: what a line needs to stand among those of other runs.
constexpr char kCsvSetting[] =
    ",typed,trace,target,threads,decode_rows,chunk_rows,key_path,value_path,key_rel_error,"
    "value_rel_error";

std::string CsvSetting(const Comparison& comparison, const PipelineResult& pipeline) {
  return StrCat(",", CsvText(pipeline.typed), ",", CsvText(comparison.trace_name), ",",
                comparison.target, ",", comparison.threads, ",",
                comparison.decode_rows == DecodeRows::kExact ? "exact" : "stored", ",",
                ChunkRows(comparison), ",", PathsOf(pipeline, &LayerReport::key_path), ",",
                PathsOf(pipeline, &LayerReport::value_path), ",",
                CsvNumber(pipeline.row_errors.key), ",", CsvNumber(pipeline.row_errors.value));
}

}  // namespace

std::string ReportJson(const Comparison& comparison) {
  Json out = {{"schema", "kvsieve.report/1"},
              {"version", comparison.version},
              {"target", comparison.target},
              {"threads", comparison.threads},
              {"decode_rows", comparison.decode_rows == DecodeRows::kExact ? "exact" : "stored"},
              {"chunk_rows", ChunkRows(comparison)},
              {"trace", TraceJson(comparison)},
              {"pipelines", Json::array()}};
  for (const PipelineResult& pipeline : comparison.pipelines) {
    out["pipelines"].push_back(PipelineJson(pipeline));
  }
  // File names and specs may hold bytes that are not UTF-8; JSON may not.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ReportCsv(const Comparison& comparison) {
  std::string out = "pipeline";
  for (const ByteField& field : ByteFields()) out += StrCat(",", field.name);
  out += ",tokens_seen,rows_kept";
  for (const RatioField& field : RatioFields()) out += StrCat(",", field.name);
  out +=
      ",output_rel_error_mean,output_rel_error_p50,output_rel_error_p99,output_rel_error_max,"
      "output_cosine,attention_kl,attention_mass_kept,top32_overlap,compact_ms,"
      "attend_us_per_token,pareto";
  out += StrCat(kCsvSetting, "\n");
  for (const PipelineResult& pipeline : comparison.pipelines) {
    out += CsvText(pipeline.canonical);
    for (const ByteField& field : ByteFields()) out += StrCat(",", field.get(pipeline.bytes));
    out += StrCat(",", pipeline.bytes.tokens_seen, ",", pipeline.bytes.rows_kept);
    for (const RatioField& field : RatioFields()) {
      out += StrCat(",", CsvNumber(field.get(pipeline.bytes)));
    }
    std::optional<double> figures[8];
    if (const auto& a = pipeline.accuracy; a) {
      const auto& error = a->output_rel_error;
      const double values[8] = {error.mean,
                                error.p50,
                                error.p99,
                                error.max,
                                a->output_cosine,
                                a->attention_kl,
                                a->attention_mass_kept,
                                a->top32_overlap};
      for (int i = 0; i < 8; ++i) figures[i] = values[i];
    }
    for (const auto& figure : figures) out += StrCat(",", CsvNumber(figure));
    out += StrCat(",", CsvNumber(pipeline.time.compact_ms), ",",
                  CsvNumber(pipeline.time.attend_us_per_token), ",", pipeline.pareto ? 1 : 0,
                  CsvSetting(comparison, pipeline), "\n");
  }
  return out;
}

}  // namespace kvsieve::eval
