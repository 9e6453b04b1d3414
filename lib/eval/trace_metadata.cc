#include "lib/eval/trace_metadata.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::eval {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr const char* kRequiredKeys[] = {
    "kvtrace.version", "model.name", "model.arch",   "model.license", "attn.scale",
    "rope.type",       "rope.theta", "source.dtype", "capture.tool",  "prompt.sha256"};

std::string Place(std::string_view key) { return StrCat("metadata '", key, "'"); }

// "a, b ,c" to {"a", "b", "c"}, blanks removed.
std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    const std::size_t first = part.find_first_not_of(' ');
    part = first == part.npos ? "" : part.substr(first, part.find_last_not_of(' ') - first + 1);
    parts.push_back(part);
    if (comma == text.npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// One text per layer: a single value stands for all of them.
Result<std::vector<std::string_view>> PerLayer(const Metadata& metadata, const char* key,
                                               std::size_t layers, const FileErrors& errors) {
  std::vector<std::string_view> values = SplitList(metadata.find(key)->second);
  if (values.size() == 1) values.resize(layers, values.front());
  if (values.size() == layers) return values;
  return errors.Invalid(Place(key),
                        StrCat("has ", values.size(), " values for ", layers, " stored layers"),
                        "give one value, or one per stored layer in ascending order");
}

struct NumberRule {
  const char* key;
  std::string_view allowed;  // for the message
  bool (*accepts)(double);
};

Result<std::vector<double>> NumbersPerLayer(const Metadata& metadata, const NumberRule& rule,
                                            std::size_t layers, const FileErrors& errors) {
  KVS_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts,
                       PerLayer(metadata, rule.key, layers, errors));
  std::vector<double> numbers;
  for (const std::string_view text : texts) {
    const Result<double> number = ParseReal(text);
    if (!number.ok() || !rule.accepts(*number)) {
      return errors.Invalid(Place(rule.key), StrCat("'", OneLine(text), "' is not ", rule.allowed),
                            "correct the metadata");
    }
    numbers.push_back(*number);
  }
  return numbers;
}

Status CheckRope(const Metadata& metadata, std::size_t layers, const FileErrors& errors) {
  KVS_ASSIGN_OR_RETURN(const std::vector<std::string_view> types,
                       PerLayer(metadata, "rope.type", layers, errors));
  for (const std::string_view type : types) {
    if (type == "half" || type == "interleaved" || type == "none") continue;
    return errors.Invalid(Place("rope.type"),
                          StrCat("'", OneLine(type), "' is not half, interleaved or none"),
                          "correct the metadata");
  }
  constexpr NumberRule kTheta = {"rope.theta", "a finite number of at least 0 (0 = none)",
                                 [](double theta) { return theta >= 0; }};
  Result<std::vector<double>> thetas = NumbersPerLayer(metadata, kTheta, layers, errors);
  return thetas.ok() ? Status::Ok() : thetas.TakeStatus();
}

Status CheckRequired(const Metadata& metadata, const FileErrors& errors) {
  for (const char* key : kRequiredKeys) {
    if (metadata.contains(key)) continue;
    return errors.Invalid("__metadata__", StrCat("key '", key, "' is missing"),
                          "see docs/trace-format.md for the keys a trace needs");
  }
  const std::string& version = metadata.find("kvtrace.version")->second;
  if (version == "1") return Status::Ok();
  return errors.Make(ErrorCode::kUnsupported, Place("kvtrace.version"),
                     StrCat("'", OneLine(version), "' is not 1, the version this build reads"),
                     "capture it again, or use the release that wrote it");
}

Status CheckPromptHash(const Metadata& metadata, const FileErrors& errors) {
  constexpr std::size_t kDigits = 64;
  const std::string& hash = metadata.find("prompt.sha256")->second;
  if (hash.size() == kDigits && hash.find_first_not_of("0123456789abcdefABCDEF") == hash.npos) {
    return Status::Ok();
  }
  return errors.Invalid(Place("prompt.sha256"),
                        StrCat("'", OneLine(hash), "' is not 64 hexadecimal digits"),
                        "correct the metadata");
}

}  // namespace

Result<AttentionMetadata> ReadMetadata(const Metadata& metadata, std::size_t layers,
                                       const FileErrors& errors) {
  KVS_RETURN_IF_ERROR(CheckRequired(metadata, errors));
  KVS_RETURN_IF_ERROR(CheckPromptHash(metadata, errors));
  KVS_RETURN_IF_ERROR(CheckRope(metadata, layers, errors));
  // Bounds hold after rounding to f32, the type of LayerSpec.
  constexpr NumberRule kScale = {"attn.scale", "a finite number greater than 0", [](double scale) {
                                   return static_cast<float>(scale) > 0 &&
                                          std::isfinite(static_cast<float>(scale));
                                 }};
  constexpr NumberRule kSoftcap = {
      "attn.softcap", "a finite number of at least 0 (0 = none)",
      [](double cap) { return cap >= 0 && std::isfinite(static_cast<float>(cap)); }};
  constexpr NumberRule kWindow = {
      "attn.sliding_window", "a whole number in [0, 2^31) (0 = none)", [](double rows) {
        return rows >= 0 && rows <= std::numeric_limits<int>::max() && std::floor(rows) == rows;
      }};
  AttentionMetadata attention;
  KVS_ASSIGN_OR_RETURN(attention.scale, NumbersPerLayer(metadata, kScale, layers, errors));
  attention.softcap.assign(layers, 0);
  if (metadata.contains(kSoftcap.key)) {
    KVS_ASSIGN_OR_RETURN(attention.softcap, NumbersPerLayer(metadata, kSoftcap, layers, errors));
  }
  attention.sliding_window.assign(layers, 0);
  if (metadata.contains(kWindow.key)) {
    KVS_ASSIGN_OR_RETURN(attention.sliding_window,
                         NumbersPerLayer(metadata, kWindow, layers, errors));
  }
  return attention;
}

}  // namespace kvsieve::eval
