// What a pipeline means, in words: the text of `kvsieve explain`.
#include <algorithm>
#include <charconv>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kvsieve/pipeline.h"
#include "kvsieve/str_cat.h"
#include "lib/spec_call_parser.h"
#include "lib/spec_names.h"

namespace kvsieve {
namespace {

constexpr std::size_t kLineWidth = 100;
constexpr std::size_t kTextColumn = 16;  // where texts start, behind their labels

// Lines of "label   text", texts wrapped at words and aligned.
class LabelledText {
 public:
  void Heading(std::string_view text) { out_ += StrCat(out_.empty() ? "" : "\n", text, "\n"); }
  // Writes nothing when `text` is empty.
  void Line(std::string_view label, std::string_view text);
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

void LabelledText::Line(std::string_view label, std::string_view text) {
  if (text.empty()) return;
  std::string line = StrCat("  ", label);
  line.resize(std::max(line.size() + 1, kTextColumn), ' ');
  bool line_has_word = false;
  while (!text.empty()) {
    const std::size_t word_size = std::min(text.find(' '), text.size());
    if (line_has_word && line.size() + 1 + word_size > kLineWidth) {
      out_ += line + '\n';
      line.assign(kTextColumn, ' ');
      line_has_word = false;
    }
    if (line_has_word) line += ' ';
    line += text.substr(0, word_size);
    line_has_word = true;
    text.remove_prefix(std::min(word_size + 1, text.size()));
  }
  out_ += line + '\n';
}

std::string OneDecimal(double value) {
  char digits[64];
  const auto [end, ec] =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, 1);
  return ec == std::errc() ? std::string(digits, end) : "?";
}

std::string Arguments(const SpecCall& call) {
  std::string out;
  for (const SpecArg& arg : call.args) {
    out += StrCat(out.empty() ? "" : " ", arg.key, arg.is_word() ? "" : "=",
                  arg.call.empty() ? arg.value : arg.call.front().ToString());
  }
  return out;
}

// `call` is canonical, so that its arguments are the values in force.
void DescribeStage(const SpecCall& call, const StageInfo* info, LabelledText* text) {
  text->Line(call.name, info == nullptr ? "" : info->summary);
  text->Line("  in force", Arguments(call));
  if (info == nullptr) return;
  text->Line("  formula", info->formula);
  text->Line("  choices", info->options);
  text->Line("  approximates", info->approximates);
}

// The scorers of a mix, each with its formula.
void DescribeTerms(const SpecCall& call, LabelledText* text) {
  for (const SpecArg& arg : call.args) {
    if (!arg.is_word()) continue;
    const std::string_view name = std::string_view(arg.value).substr(arg.value.find('*') + 1);
    const StageInfo* info = FindStage(EvictorInfos(), name);
    if (info != nullptr) text->Line("  term", StrCat(name, ": ", info->formula));
  }
}

void DescribeStorage(const StorageRules& rules, LabelledText* text) {
  text->Line("  format", rules.format);
  text->Line("  granularity", rules.granularity);
  text->Line("  group axis", rules.group_axis);
  text->Line("  scale rule", rules.scale_rule);
  text->Line("  rounding", rules.rounding);
}

// first: the chain of the first tier, for those behind it.
void DescribeBytes(const Chain& chain, const Chain* first, LabelledText* text) {
  const RowBytes bytes = chain.codec().row_bytes();
  const std::int64_t row_bytes = bytes.codes + bytes.scales;
  const std::int64_t f16_bytes = std::int64_t{2} * chain.dim();
  text->Line(
      "bytes per row",
      StrCat(row_bytes, " at dim ", chain.dim(), " (", bytes.codes, " codes + ", bytes.scales,
             " scales); f16 takes ", f16_bytes, ", ",
             OneDecimal(static_cast<double>(f16_bytes) / static_cast<double>(row_bytes)), "x"));
  const int shared = first != nullptr && chain.BeginsAs(*first) ? chain.first_stats_floats() : 0;
  if (chain.stats_floats() > 0) {
    text->Line("bytes per head",
               StrCat(4 * (chain.stats_floats() - shared), ", learnt from its rows",
                      shared > 0 ? StrCat("; ", 4 * shared, " more are the first store's") : ""));
  }
  text->Line("kernels", KernelPathName(chain.codec().path()));
}

Status DescribeChain(std::string_view side, const Chain& chain, const Chain* first,
                     LabelledText* text) {
  const std::string canonical = chain.Canonical();
  text->Heading(StrCat(side, ": ", canonical));
  KVS_ASSIGN_OR_RETURN(const std::vector<SpecCall> calls, ParseChain(canonical));
  for (const SpecCall& call : calls) {
    const bool is_codec = &call == &calls.back();
    const StageInfo* info = FindStage(is_codec ? CodecInfos() : TransformInfos(), call.name);
    DescribeStage(call, info, text);
    if (is_codec && info != nullptr) DescribeStorage(info->storage, text);
  }
  DescribeBytes(chain, first, text);
  return Status::Ok();
}

// Of one store, for given dims. Null: none.
struct Chains {
  std::shared_ptr<const Chain> key;
  std::shared_ptr<const Chain> value;
};

Result<Chains> MakeChains(const StoreSpec& store, int key_dim, int value_dim) {
  Chains chains;
  KVS_ASSIGN_OR_RETURN(chains.key, MakeChain(store.key, key_dim, Side::kKey));
  KVS_ASSIGN_OR_RETURN(chains.value, MakeChain(store.value, value_dim, Side::kValue));
  return chains;
}

Status DescribeStore(const Chains& store, const Chains& first, LabelledText* text) {
  const Chain& key = *store.key;
  if (key.dim() == store.value->dim() && key.Canonical() == store.value->Canonical()) {
    return DescribeChain("keys and values, each", key, first.key.get(), text);
  }
  KVS_RETURN_IF_ERROR(DescribeChain("keys", key, first.key.get(), text));
  return DescribeChain("values", *store.value, first.value.get(), text);
}

Status DescribeEvictor(const Evictor* evictor, LabelledText* text) {
  if (evictor == nullptr) {
    text->Heading("evict: none");
    text->Line("none", "every row stays, nothing is scored");
    return Status::Ok();
  }
  const std::string canonical = evictor->Canonical();
  text->Heading(StrCat("evict: ", canonical.substr(0, canonical.find('('))));
  if (const StageInfo* preset = FindStage(PresetInfos(), evictor->preset())) {
    text->Line(StrCat("preset ", preset->name), preset->summary);
    text->Line("  is", preset->formula);
    text->Line("  choices", preset->options);
    text->Line("  approximates", preset->approximates);
  }
  KVS_ASSIGN_OR_RETURN(const SpecCall call, ParseCall(canonical));
  const std::span<const StageInfo> infos =
      evictor->loss_estimator() == nullptr ? EvictorInfos() : PlannerInfos();
  DescribeStage(call, FindStage(infos, call.name), text);
  DescribeTerms(call, text);
  text->Line("  keeps", evictor->Explanation());
  const ScorerNeeds needs = evictor->needs();
  if (needs.window_queries > 0) {
    text->Line("  reads", StrCat("the last ", needs.window_queries, " queries of the prompt, keys",
                                 needs.values ? " and values" : ""));
  }
  return Status::Ok();
}

std::string ScheduleText(const Schedule& schedule) {
  const std::string name = schedule.Canonical();
  switch (schedule.kind) {
    case Schedule::Kind::kOnce:
      return name + ": rows are scored and dropped when the prompt ends";
    case Schedule::Kind::kPerChunk:
      return name +
             ": after each chunk, over the rows kept so far and the chunk; early decisions "
             "are final";
    case Schedule::Kind::kEvery:
      return name +
             ": when the prompt ends, then again after so many tokens of decode, over the "
             "rows as they are stored";
  }
  return name;
}

void DescribeRows(const Pipeline& pipeline, LabelledText* text) {
  text->Heading("rows");
  text->Line("residual", StrCat("exact_sinks=", pipeline.exact_sinks(), ", tail=", pipeline.tail(),
                                ": that many first and last rows of each head stay in source "
                                "precision"));
  text->Line("schedule", ScheduleText(pipeline.schedule()));
  if (pipeline.demotes()) {
    text->Line("demote",
               "yes: each selection moves rows that rank low to colder stores, encoded "
               "again from what they decode to");
  }
  text->Line("nonfinite", pipeline.nonfinite() == NonFinitePolicy::kError
                              ? "error: NaN or Inf in an appended row is refused"
                              : "zero: NaN or Inf in an appended row becomes 0 and is counted");
}

std::string RangesText(std::span<const LayerRange> ranges) {
  std::string out;
  for (const LayerRange& range : ranges) {
    out += StrCat(out.empty() ? "" : ",", range.first, "..", range.last);
  }
  return out;
}

// Of the store behind the first with this index.
std::string TierHeading(const Pipeline& pipeline, std::size_t i) {
  if (pipeline.plans_tiers()) return StrCat("tier ", i + 1);
  const std::vector<ColdRows>& cold = pipeline.tier_rule().cold;
  return StrCat("cold ", cold[i].ToString(), ": of the rows that stay the ",
                i + 1 < cold.size() ? "next lowest" : "lowest",
                cold[i].share ? ", a share of the tokens" : "");
}

}  // namespace

Result<std::string> Explain(const Pipeline& pipeline, int key_dim, int value_dim) {
  return NoThrow([&]() -> Result<std::string> {
    LabelledText text;
    text.Heading("spec");
    text.Line("canonical", pipeline.Canonical());
    KVS_RETURN_IF_ERROR(DescribeEvictor(pipeline.evictor(), &text));
    if (pipeline.plans_tiers()) text.Heading("tier 0: also of decode rows");
    const auto chains = [&](const StoreSpec& store) {
      return MakeChains(store, key_dim, value_dim);
    };
    KVS_ASSIGN_OR_RETURN(const Chains first, chains(pipeline.main_store()));
    KVS_RETURN_IF_ERROR(DescribeStore(first, {}, &text));
    const std::span<const StoreSpec> others = pipeline.cold_stores();
    for (std::size_t i = 0; i < others.size(); ++i) {
      text.Heading(TierHeading(pipeline, i));
      KVS_ASSIGN_OR_RETURN(const Chains other, chains(others[i]));
      KVS_RETURN_IF_ERROR(DescribeStore(other, first, &text));
    }
    for (const LayerOverride& layers : pipeline.layer_overrides()) {
      text.Heading(StrCat("layers ", RangesText(layers.ranges), ": instead of the store above"));
      KVS_ASSIGN_OR_RETURN(const Chains other, chains(layers.store));
      KVS_RETURN_IF_ERROR(DescribeStore(other, {}, &text));
    }
    DescribeRows(pipeline, &text);
    return text.Take();
  });
}

}  // namespace kvsieve
