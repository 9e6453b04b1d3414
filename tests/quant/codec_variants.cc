#include "codec_variants.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kvsieve/spec_args.h"

namespace kvsieve::quant_test {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// "group=32|row" -> nothing (the default) and "group=row"; "asym|sym" -> nothing and "sym".
std::vector<SpecArg> Choices(std::string_view option) {
  std::vector<SpecArg> choices(1);
  const std::size_t equals = option.find('=');
  const std::string_view key = equals == option.npos ? "" : option.substr(0, equals);
  const std::string_view values = equals == option.npos ? option : option.substr(equals + 1);
  const std::vector<std::string_view> words = Split(values, '|');
  for (std::size_t i = 1; i < words.size(); ++i) {
    choices.push_back({std::string(key), std::string(words[i]), 1, 1, {}});
  }
  return choices;
}

std::vector<SpecCall> Variants(const StageInfo& info) {
  std::vector<SpecCall> calls = {{std::string(info.name), 1, {}}};
  for (const std::string_view option : Split(info.options, ' ')) {
    std::vector<SpecCall> longer;
    for (const SpecCall& call : calls) {
      for (const SpecArg& choice : Choices(option)) {
        longer.push_back(call);
        if (!choice.value.empty()) longer.back().args.push_back(choice);
      }
    }
    calls = std::move(longer);
  }
  return calls;
}

}  // namespace

std::vector<std::string> EveryCodec(int dim, Side side) {
  std::vector<std::string> codecs;
  for (const StageInfo& info : CodecInfos()) {
    for (const SpecCall& call : Variants(info)) {
      if (MakeChain({&call, 1}, dim, side).ok()) codecs.push_back(call.ToString());
    }
  }
  return codecs;
}

}  // namespace kvsieve::quant_test
