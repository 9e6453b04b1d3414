#include "lib/policy_settings.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "lib/spec_call_parser.h"
#include "lib/spec_cursor.h"

namespace kvsieve {
namespace {

// Names and defaults are those of mlx-lm's SnapKV-D server (pull requests 1518, 1519), but for the
// window, whose 24 belongs to SnapKV-D: each evict stage has its own.
constexpr PolicyOption kOptions[] = {
    {"--kv-eviction", "kv_eviction", "none, an evict stage or a preset, perhaps with arguments",
     "none", "which prompt rows go: none, snapkv, snapkv_d, recency, snapkv(pool=avg:5), ..."},
    {"--kv-budget", "kv_budget", "a number of rows, 25%, 64MiB, 8x or auto", "512",
     "what stays of a prompt: rows per KV head, or bytes of the whole cache"},
    {"--kv-window", "kv_window", "a number of rows", "",
     "how many of the last prompt queries look at the rows; the evict stage's own if not given"},
    {"--kv-sink-tokens", "kv_sink_tokens", "a number of rows", "",
     "how many of the first rows always stay; the evict stage's own if not given"},
    {"--kv-min-tokens", "kv_min_tokens", "a number of tokens", "128",
     "prompts that are not longer lose nothing"},
    {"--kv-store", "", "the store sections of a spec: k=int8, v=int4 | tail=64", "",
     "how rows are stored; f16 if not given"},
};
static_assert(std::size(kOptions) == policy::kKeys);

constexpr std::string_view kArguments[] = {"", "budget", "window", "sinks", "min_tokens", ""};
static_assert(std::size(kArguments) == policy::kKeys);

constexpr std::size_t kMaxQuoted = 64;

// What a message can hold of a text that came from outside.
std::string Quote(std::string_view text) {
  std::string out(text.substr(0, kMaxQuoted));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > kMaxQuoted ? out + "..." : out;
}

std::string_view NameOf(const PolicyOption& option, policy::Source source) {
  return source == policy::Source::kRequest ? option.field : option.flag;
}

Status UnknownName(std::string_view name, policy::Source source) {
  std::vector<std::string_view> known;
  for (const PolicyOption& option : kOptions) {
    if (!NameOf(option, source).empty()) known.push_back(NameOf(option, source));
  }
  const std::string_view what = source == policy::Source::kRequest ? "request field" : "flag";
  const std::string quoted = Quote(name);
  return Status::Invalid(StrCat("unknown ", what, " '", quoted, "'", Suggest(quoted, known)));
}

Status CheckText(const PolicySetting& given, std::size_t limit) {
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (given.value.empty()) return Status::Invalid(StrCat(given.name, " has no value"));
  if (!std::all_of(given.value.begin(), given.value.end(), printable)) {
    return Status::Invalid(
        StrCat(given.name, " ", Quote(given.value), ": the value must be printable ASCII"));
  }
  if (given.value.size() <= limit) return Status::Ok();
  return Status::Invalid(StrCat(given.name, " ", Quote(given.value), ": the value has ",
                                given.value.size(), " characters, the limit is ", limit));
}

}  // namespace

std::span<const PolicyOption> PolicyOptions() { return kOptions; }

namespace policy {

std::string_view ArgumentOf(Key key) { return kArguments[key]; }

bool SameEviction(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const Result<SpecCall> first = ParseCall(a);
  const Result<SpecCall> second = ParseCall(b);
  return first.ok() && second.ok() && first->ToString() == second->ToString();
}

Settings::Settings() {
  for (int key = 0; key < kKeys; ++key) Reset(static_cast<Key>(key));
}

void Settings::Reset(Key key) {
  settings_[key] = {std::string(kOptions[key].fallback), Source::kDefault};
}

Status Settings::Override(std::span<const PolicySetting> given, Source source) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto option =
        std::find_if(std::begin(kOptions), std::end(kOptions), [&](const PolicyOption& known) {
          return !given[i].name.empty() && NameOf(known, source) == given[i].name;
        });
    if (option == std::end(kOptions)) return UnknownName(given[i].name, source);
    Setting& setting = settings_[option - std::begin(kOptions)];
    const auto same = [&](const PolicySetting& other) { return other.name == given[i].name; };
    if (std::any_of(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return Status::Invalid(StrCat(given[i].name, " is given twice: '", Quote(setting.text),
                                    "' and '", Quote(given[i].value), "'"));
    }
    const bool is_spec = option == kOptions + kEviction || option == kOptions + kStore;
    KVS_RETURN_IF_ERROR(CheckText(given[i], is_spec ? kMaxSpecBytes : kMaxWordBytes));
    setting = {std::string(given[i].value), source};
  }
  return Status::Ok();
}

std::string Settings::Name(Key key) const {
  return std::string(NameOf(kOptions[key], settings_[key].source));
}

std::string Settings::Label(Key key) const {
  const Setting& setting = settings_[key];
  return StrCat(Name(key), setting.text.empty() ? "" : " ", Quote(setting.text),
                given(key) ? "" : " (default)");
}

// No text holds an unprintable byte.
std::string Settings::Identity() const {
  std::string out;
  for (const Setting& setting : settings_) {
    out += setting.text;
    out += static_cast<char>(setting.source);
  }
  return out;
}

}  // namespace policy
}  // namespace kvsieve
