#include "evict/presets.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "evict/budget.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

struct Default {
  std::string_view key;
  std::string_view value;
};

struct Preset {
  std::string_view name;
  std::string_view stage;
  std::span<const Default> defaults;
  // Rules that no default can say; null: none.
  Status (*adjust)(SpecCall* call);
};

SpecArg* Find(SpecCall* call, std::string_view key) {
  const auto found = std::find_if(call->args.begin(), call->args.end(),
                                  [&](const SpecArg& arg) { return arg.key == key; });
  return found == call->args.end() ? nullptr : &*found;
}

void Set(SpecCall* call, std::string_view key, std::string value) {
  if (SpecArg* arg = Find(call, key)) {
    arg->value = std::move(value);
  } else {
    call->args.push_back({std::string(key), std::move(value), call->column, call->column, {}});
  }
}

void SetDefault(SpecCall* call, std::string_view key, std::string_view value) {
  if (Find(call, key) == nullptr) Set(call, key, std::string(value));
}

// Takes out of `call` what only its preset knows, as a call of its own.
SpecCall TakeOwn(SpecCall* call, std::string_view key) {
  SpecCall own{call->name, call->column, {}};
  const auto is_own = [&](const SpecArg& arg) { return arg.key == key; };
  std::copy_if(call->args.begin(), call->args.end(), std::back_inserter(own.args), is_own);
  std::erase_if(call->args, is_own);
  return own;
}

// Nothing goes unless the prompt is longer than the window.
void NeedMoreThanWindow(SpecCall* call) {
  const std::string window = Find(call, "window")->value;
  if (ParseInt(window).ok()) SetDefault(call, "min_tokens", window);
}

// guarantee_sinks=false: sinks take no more than an eighth of the budget, at least one row, as in
// the first revision.
Status CapSinks(SpecCall* call) {
  const SpecCall own = TakeOwn(call, "guarantee_sinks");
  ArgReader args(own);
  bool guaranteed = true;
  args.Bool("guarantee_sinks", &guaranteed);
  KVS_RETURN_IF_ERROR(args.Finish());
  if (guaranteed) return Status::Ok();
  const SpecArg& budget = *Find(call, "budget");
  const Result<std::int64_t> rows = ParseInt(budget.value);
  if (!rows.ok()) {
    return SpecError(own.args.front().value_column,
                     StrCat("option guarantee_sinks: false caps sinks by the budget, which must "
                            "then be a number of rows, not ",
                            budget.value));
  }
  const Result<std::int64_t> sinks = ParseInt(Find(call, "sinks")->value);
  if (sinks.ok()) {
    Set(call, "sinks", StrCat(std::min(*sinks, std::max<std::int64_t>(1, *rows / 8))));
  }
  return Status::Ok();
}

// budget=auto is a rule over the engine's context length, when that is given.
Status SharpBudget(SpecCall* call) {
  const SpecCall own = TakeOwn(call, "max_tokens");
  ArgReader args(own);
  int max_tokens = 0;
  args.Int("max_tokens", &max_tokens, 1, kMaxRows);
  KVS_RETURN_IF_ERROR(args.Finish());
  SpecArg* budget = Find(call, "budget");
  const bool is_auto = budget != nullptr && budget->value == "auto";
  if (max_tokens > 0 && !is_auto) {
    return SpecError(own.args.front().key_column,
                     "option max_tokens means something with budget=auto only");
  }
  if (max_tokens > 0) budget->value = StrCat(AutoRowsOfContext(max_tokens));
  NeedMoreThanWindow(call);
  return Status::Ok();
}

// The press takes a ratio; rows are counted in its way when the budget is one too.
Status KvpressBudget(SpecCall* call) {
  const SpecArg* budget = Find(call, "budget");
  if (budget != nullptr && budget->value.ends_with('%')) SetDefault(call, "rounding", "kvpress");
  NeedMoreThanWindow(call);
  return Status::Ok();
}

#define KVS_PRESET_KEYS "and every other key of window_attention"

constexpr Default kPaper[] = {
    {"window", "32"},
    {"queries", "sum"},
    {"pool", "max:7"},
    {"sinks", "0"},
};
constexpr Default kReference[] = {
    {"budget", "320"}, {"window", "64"},     {"queries", "sum"},
    {"pool", "avg:5"}, {"pool_pad", "zero"}, {"sinks", "0"},
};
constexpr Default kSnapKvD[] = {
    {"budget", "512"},
    {"window", "24"},
    {"queries", "sum"},
    {"group", "sum"},
    {"pool", "none"},
    {"scope", "model"},
    {"sinks", "4"},
    {"recent", "budget/8"},
    {"protect_window", "false"},
    {"over_budget", "budget"},
    {"ties", "high"},
    {"min_tokens", "128"},
};
constexpr Default kVelox[] = {
    {"budget", "512"}, {"window", "32"}, {"causal", "false"},         {"pool", "none"},
    {"sinks", "4"},    {"recent", "0"},  {"protect_window", "false"}, {"over_budget", "budget"},
};
constexpr Default kSharp[] = {
    {"window", "64"}, {"queries", "sum"},          {"group", "sum"},
    {"pool", "none"}, {"scope", "model"},          {"sinks", "0"},
    {"recent", "64"}, {"protect_window", "false"}, {"over_budget", "budget"},
};
constexpr Default kKvpress[] = {
    {"window", "64"}, {"pool", "avg:5"},         {"pool_pad", "zero"},
    {"sinks", "0"},   {"over_budget", "budget"},
};

constexpr StageInfo kInfos[] = {
    {"snapkv_paper", "SnapKV with the settings of the paper (arXiv:2404.14469).",
     "window_attention, attention summed over the window, max-pool 7, no sinks",
     "budget=<rows> window=32 pool=max:7 " KVS_PRESET_KEYS,
     "the paper keeps a set per query head and leaves ties open; here one per KV head, of the mean "
     "over its query heads"},
    {"snapkv_reference", "SnapKV as its authors' code has it (FasterDecoding/SnapKV e216ddc).",
     "window_attention, attention summed over the window, average-pool 5 with zeros beyond the "
     "ends, no sinks",
     "budget=320 window=64 pool=avg:5 " KVS_PRESET_KEYS,
     "the code repeats K and V to query heads and keeps a set for each; here one per KV head, of "
     "the mean over its query heads"},
    {"snapkv_d", "SnapKV-D of mlx-lm (pull request 1518).",
     "window_attention, summed over window, query heads and layers: one set for the model; sinks, "
     "an eighth of the budget for the newest rows, then the best; later positions win ties",
     "budget=512 window=24 sinks=4 recent=budget/8 min_tokens=128 "
     "guarantee_sinks=true|false " KVS_PRESET_KEYS,
     "one set serves every layer and head; window rows compete with all others"},
    {"velox_snapkv", "The SnapKV cache of VeloxQuant-MLX.",
     "key_proxy without a causal mask, mean over the last keys; chunked prompts: "
     "schedule=per_chunk",
     "budget=512 window=32 sinks=4 and every other key of key_proxy",
     "keys stand in for queries and see the rows behind them"},
    {"sharp_snapkv", "The SnapKV compaction of SharpInference.",
     "window_attention, summed over window, query heads and layers: one set for the model; the "
     "newest rows, then the best. budget=auto with max_tokens=n: clamp(n / 4, min(1024, n), 4096)",
     "budget=<rows>|auto max_tokens=n window=64 recent=64 " KVS_PRESET_KEYS,
     "one set serves every layer and head; no sinks; window rows compete with all others"},
    {"kvpress_snapkv", "SnapKVPress of NVIDIA's kvpress.",
     "window_attention, mean over window and group, average-pool 5 with zeros beyond the ends, no "
     "sinks; of n tokens max(1, int(n * (1 - ratio))) rows stay, in doubles, ratio = 1 - budget",
     "budget=<percent>|<rows> window=64 pool=avg:5 rounding=kvpress|up " KVS_PRESET_KEYS,
     "its rounding can lose a row (rounding=up does not)"},
};

constexpr Preset kPresets[] = {
    {"snapkv_paper", "window_attention", kPaper, nullptr},
    {"snapkv_reference", "window_attention", kReference, nullptr},
    {"snapkv_d", "window_attention", kSnapKvD, CapSinks},
    {"velox_snapkv", "key_proxy", kVelox, nullptr},
    {"sharp_snapkv", "window_attention", kSharp, SharpBudget},
    {"kvpress_snapkv", "window_attention", kKvpress, KvpressBudget},
};

const Preset* FindPreset(std::string_view name) {
  const auto found = std::find_if(std::begin(kPresets), std::end(kPresets),
                                  [&](const Preset& preset) { return preset.name == name; });
  return found == std::end(kPresets) ? nullptr : &*found;
}

}  // namespace

std::span<const StageInfo> Presets() { return kInfos; }

std::string_view PresetName(std::string_view name) {
  const Preset* preset = FindPreset(name);
  return preset == nullptr ? std::string_view() : preset->name;
}

std::string_view StageOf(std::string_view name) {
  const Preset* preset = FindPreset(name);
  return preset == nullptr ? name : preset->stage;
}

Result<SpecCall> CompletePreset(SpecCall call) {
  const Preset* preset = FindPreset(call.name);
  if (preset == nullptr) return call;
  for (const Default& one : preset->defaults) {
    const SpecArg* pool = Find(&call, "pool");
    const bool pads = pool == nullptr || pool->value != "none";
    if (one.key != "pool_pad" || pads) SetDefault(&call, one.key, one.value);
  }
  if (preset->adjust != nullptr) KVS_RETURN_IF_ERROR(preset->adjust(&call));
  return call;
}

}  // namespace kvsieve::evict
