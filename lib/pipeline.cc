#include "kvsieve/pipeline.h"

#include <algorithm>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/spec_cursor.h"
#include "lib/spec_names.h"
#include "lib/spec_parser.h"

namespace kvsieve {
namespace {

constexpr int kDefaultExactSinks = 4;

LayerRange Resolve(const LayerRange& range, int layer_count) {
  const auto from_start = [layer_count](int n) { return n < 0 ? n + layer_count : n; };
  return {from_start(range.first), from_start(range.last)};
}

std::string RangeText(const LayerRange& range) { return StrCat(range.first, "..", range.last); }

// Orders the ranges of equal overrides alike, those that count from the end last.
bool Before(const LayerRange& a, const LayerRange& b) {
  if ((a.first < 0) != (b.first < 0)) return b.first < 0;
  return a.first < b.first;
}

// Where V lies in K a chain of its own would go unused.
Status CheckOneStore(const StoreSpec& store, const LayerSpec& layer) {
  KVS_ASSIGN_OR_RETURN(const ChainOutline key, OutlineChain(store.key));
  KVS_ASSIGN_OR_RETURN(const ChainOutline value, OutlineChain(store.value));
  if (key.canonical == value.canonical) return Status::Ok();
  return SpecError(store.value.front().column,
                   StrCat("v=", value.canonical, ": V is the first ", layer.value_dim,
                          " elements of K (value_is_key_prefix) and has no store of its own; use "
                          "kv=",
                          key.canonical));
}

}  // namespace

// Turns syntax into a pipeline: builds what can be built before dimensions are known, and writes
// the canonical form.
class PipelineBuilder {
 public:
  static Result<Pipeline> Build(std::string_view typed, SpecSyntax syntax);

 private:
  explicit PipelineBuilder(std::string_view typed) { pipeline_.typed_ = typed; }

  // Whether the evict stage plans the tiers of rows.
  const LossEstimator* plans() const {
    return pipeline_.evictor_ == nullptr ? nullptr : pipeline_.evictor_->loss_estimator();
  }
  Status AddEvictor(const std::optional<SpecCall>& call);
  Status CheckSchedule(const SpecSyntax& syntax) const;
  Status AddMainStore(StoreSpec store);
  Status AddTiers(const SpecSyntax& syntax);
  Status AddColdStores(const SpecSyntax& syntax);
  Status AddOverrides(std::vector<LayerOverride> overrides);
  Status CheckGroups(const SpecSyntax& syntax) const;
  Status CheckDemote(const SpecSyntax& syntax) const;
  void AddOptions(const SpecSyntax& syntax);
  Status CheckCanonical() const;
  // "k=int8, v=f16", or "kv=f16" when both are alike.
  Result<std::string> StoreText(const StoreSpec& store);

  Pipeline pipeline_;
  bool wants_exact_sinks_ = false;
  int group_rows_ = 1;  // the largest of any codec
};

Result<Pipeline> PipelineBuilder::Build(std::string_view typed, SpecSyntax syntax) {
  PipelineBuilder builder(typed);
  KVS_RETURN_IF_ERROR(builder.AddEvictor(syntax.evict));
  KVS_RETURN_IF_ERROR(builder.CheckSchedule(syntax));
  if (builder.plans() || !syntax.tiers.empty()) {
    KVS_RETURN_IF_ERROR(builder.AddTiers(syntax));
  } else {
    KVS_RETURN_IF_ERROR(builder.AddMainStore(std::move(syntax.store)));
    KVS_RETURN_IF_ERROR(builder.AddColdStores(syntax));
  }
  KVS_RETURN_IF_ERROR(builder.AddOverrides(std::move(syntax.overrides)));
  KVS_RETURN_IF_ERROR(builder.CheckGroups(syntax));
  KVS_RETURN_IF_ERROR(builder.CheckDemote(syntax));
  builder.AddOptions(syntax);
  KVS_RETURN_IF_ERROR(builder.CheckCanonical());
  return std::move(builder.pipeline_);
}

// What was typed is within the limit; written out it must be, for it is a spec itself.
Status PipelineBuilder::CheckCanonical() const {
  const std::size_t bytes = pipeline_.canonical_.size();
  if (bytes <= kMaxSpecBytes) return Status::Ok();
  return SpecError(1, StrCat("with all defaults written out the spec has ", bytes,
                             " bytes, the limit is ", kMaxSpecBytes));
}

Status PipelineBuilder::AddEvictor(const std::optional<SpecCall>& call) {
  if (!call) {
    pipeline_.canonical_ = "none";
    return Status::Ok();
  }
  KVS_RETURN_IF_ERROR(CheckEvictName(*call));
  KVS_ASSIGN_OR_RETURN(pipeline_.evictor_, MakeEvictor(*call));
  pipeline_.canonical_ = pipeline_.evictor_->Canonical();
  return Status::Ok();
}

// A schedule that decides more than once sees one layer, and not the whole prompt.
Status PipelineBuilder::CheckSchedule(const SpecSyntax& syntax) const {
  if (syntax.schedule.kind == Schedule::Kind::kOnce) return Status::Ok();
  const std::string schedule = StrCat("schedule=", syntax.schedule.Canonical());
  if (pipeline_.evictor_ == nullptr) {
    return SpecError(syntax.schedule_column, StrCat(schedule, " needs an evict stage"));
  }
  const Status repeats = pipeline_.evictor_->CheckRepeatable();
  if (repeats.ok()) return Status::Ok();
  return SpecError(syntax.schedule_column, StrCat(schedule, ": ", repeats.message()));
}

Status PipelineBuilder::AddMainStore(StoreSpec store) {
  KVS_ASSIGN_OR_RETURN(const std::string text, StoreText(store));
  pipeline_.main_ = std::move(store);
  pipeline_.canonical_ += StrCat(" | ", text);
  return Status::Ok();
}

Status PipelineBuilder::AddTiers(const SpecSyntax& syntax) {
  if (plans() == nullptr) {
    return SpecError(syntax.tiers_column,
                     "tiers=[...] needs an evict stage that plans them: waterfill(budget=8x)");
  }
  if (syntax.tiers.empty()) {
    return SpecError(syntax.evict->column,
                     "waterfill needs the stores to choose from, for example "
                     "tiers=[kv=turbo4; k=turbo3, v=turbo2]");
  }
  for (const StoreSpec& tier : syntax.tiers) {
    KVS_ASSIGN_OR_RETURN(const std::string text, StoreText(tier));
    pipeline_.canonical_ += StrCat(&tier == &syntax.tiers.front() ? " | tiers=[" : "; ", text);
  }
  pipeline_.canonical_ += "]";
  pipeline_.main_ = syntax.tiers.front();
  pipeline_.cold_.assign(syntax.tiers.begin() + 1, syntax.tiers.end());
  return Status::Ok();
}

Status PipelineBuilder::AddColdStores(const SpecSyntax& syntax) {
  if (!syntax.cold.empty() && pipeline_.evictor_ == nullptr) {
    return SpecError(syntax.cold_column,
                     "cold(...) needs an evict stage, which ranks the rows; with budget=100% it "
                     "drops none");
  }
  for (const ColdSyntax& cold : syntax.cold) {
    KVS_ASSIGN_OR_RETURN(const std::string text, StoreText(cold.store));
    pipeline_.canonical_ += StrCat(" | cold(", cold.rows.ToString(), ")={", text, "}");
    pipeline_.tier_rule_.cold.push_back(cold.rows);
    pipeline_.cold_.push_back(cold.store);
  }
  return Status::Ok();
}

Status PipelineBuilder::AddOverrides(std::vector<LayerOverride> overrides) {
  for (LayerOverride& layers : overrides) {
    std::sort(layers.ranges.begin(), layers.ranges.end(), Before);
  }
  std::sort(overrides.begin(), overrides.end(), [](const auto& a, const auto& b) {
    return Before(a.ranges.front(), b.ranges.front());
  });
  for (const LayerOverride& layers : overrides) {
    KVS_ASSIGN_OR_RETURN(const std::string store, StoreText(layers.store));
    std::string ranges;
    for (const LayerRange& range : layers.ranges) {
      ranges += StrCat(ranges.empty() ? "" : ",", RangeText(range));
    }
    pipeline_.canonical_ += StrCat(" | layers(", ranges, ")={", store, "}");
  }
  pipeline_.overrides_ = std::move(overrides);
  return Status::Ok();
}

// A group of rows is sealed when it leaves the tail, and goes or stays as a whole where it can:
// with other units every eviction would leave scales of whole groups behind for a few rows.
Status PipelineBuilder::CheckGroups(const SpecSyntax& syntax) const {
  if (group_rows_ == 1) return Status::Ok();
  if (syntax.tail && *syntax.tail < group_rows_) {
    return SpecError(syntax.tail_column,
                     StrCat("option tail: ", *syntax.tail, " is smaller than the ", group_rows_,
                            " rows that codec channel stores together"));
  }
  if (syntax.schedule.kind != Schedule::Kind::kEvery) return Status::Ok();
  if (pipeline_.evictor_->block_rows() % group_rows_ == 0) return Status::Ok();
  return SpecError(
      syntax.schedule_column,
      StrCat("schedule=", syntax.schedule.Canonical(), " with codec channel needs ",
             "select=block:n, n a multiple of its ", group_rows_, " rows (option select)"));
}

// Rows find their place among those of the colder store one by one.
Status PipelineBuilder::CheckDemote(const SpecSyntax& syntax) const {
  if (syntax.demote_column == 0) return Status::Ok();
  const std::string_view missing = syntax.cold.empty() ? "cold(...)"
                                   : syntax.schedule.kind != Schedule::Kind::kEvery
                                       ? "schedule=every(n)"
                                       : "";
  if (!missing.empty()) {
    return SpecError(syntax.demote_column, StrCat("demote=yes needs ", missing));
  }
  if (group_rows_ == 1) return Status::Ok();
  return SpecError(syntax.demote_column,
                   "demote=yes moves single rows, codec channel stores groups of them");
}

void PipelineBuilder::AddOptions(const SpecSyntax& syntax) {
  int default_sinks = wants_exact_sinks_ ? kDefaultExactSinks : 0;
  if (plans() != nullptr) default_sinks = plans()->sinks();
  pipeline_.exact_sinks_ = syntax.exact_sinks ? *syntax.exact_sinks : default_sinks;
  const int default_tail = group_rows_ > 1 ? group_rows_ : 0;
  pipeline_.tail_ = syntax.tail ? *syntax.tail : default_tail;
  pipeline_.tier_rule_.exact_tail = pipeline_.tail_;
  pipeline_.schedule_ = syntax.schedule;
  pipeline_.demotes_ = syntax.demote_column > 0;
  pipeline_.nonfinite_ = syntax.nonfinite;
  const bool zero = syntax.nonfinite == NonFinitePolicy::kZero;
  const bool may_demote = !syntax.cold.empty() && syntax.schedule.kind == Schedule::Kind::kEvery;
  const std::string_view demote = !may_demote          ? ""
                                  : pipeline_.demotes_ ? " | demote=yes"
                                                       : " | demote=no";
  pipeline_.canonical_ +=
      StrCat(" | exact_sinks=", pipeline_.exact_sinks_, " | tail=", pipeline_.tail_,
             " | schedule=", syntax.schedule.Canonical(), demote,
             " | nonfinite=", zero ? "zero" : "error");
}

Result<std::string> PipelineBuilder::StoreText(const StoreSpec& store) {
  KVS_ASSIGN_OR_RETURN(const ChainOutline key, OutlineChain(store.key));
  KVS_ASSIGN_OR_RETURN(const ChainOutline value, OutlineChain(store.value));
  wants_exact_sinks_ |= key.wants_exact_sinks || value.wants_exact_sinks;
  group_rows_ = std::max({group_rows_, key.group_rows, value.group_rows});
  if (key.canonical == value.canonical) return StrCat("kv=", key.canonical);
  return StrCat("k=", key.canonical, ", v=", value.canonical);
}

std::string Schedule::Canonical() const {
  switch (kind) {
    case Kind::kOnce:
      return "once";
    case Kind::kPerChunk:
      return "per_chunk";
    case Kind::kEvery:
      return StrCat("every(", tokens, ")");
  }
  return "?";
}

Result<Pipeline> Pipeline::Parse(std::string_view spec) {
  return NoThrow([&]() -> Result<Pipeline> {
    KVS_ASSIGN_OR_RETURN(SpecSyntax syntax, ParseSpec(spec));
    return PipelineBuilder::Build(spec, std::move(syntax));
  });
}

Status Pipeline::CheckLayers(int layer_count) const {
  std::vector<LayerRange> earlier;  // resolved ranges of the options before
  for (const LayerOverride& layers : overrides_) {
    const std::size_t options_before = earlier.size();
    for (const LayerRange& range : layers.ranges) {
      const LayerRange resolved = Resolve(range, layer_count);
      if (resolved.first < 0 || resolved.last >= layer_count || resolved.first > resolved.last) {
        return Status::Invalid(StrCat("layer range ", RangeText(range), " does not fit a model of ",
                                      layer_count, " layers (option layers)"));
      }
      for (std::size_t i = 0; i < options_before; ++i) {
        if (earlier[i].last < resolved.first || resolved.last < earlier[i].first) continue;
        return Status::Invalid(StrCat("layer range ", RangeText(range),
                                      " meets a range of another layers option in a model of ",
                                      layer_count, " layers"));
      }
      earlier.push_back(resolved);
    }
  }
  return Status::Ok();
}

const StoreSpec* Pipeline::OverrideOf(int layer_index, int layer_count) const {
  for (const LayerOverride& layers : overrides_) {
    for (const LayerRange& range : layers.ranges) {
      const LayerRange resolved = Resolve(range, layer_count);
      if (resolved.first <= layer_index && layer_index <= resolved.last) return &layers.store;
    }
  }
  return nullptr;
}

const StoreSpec& Pipeline::StoreFor(int layer_index, int layer_count, int tier) const {
  KVS_DCHECK(tier >= 0 && tier < tiers());
  if (const StoreSpec* store = OverrideOf(layer_index, layer_count)) return *store;
  return tier == 0 ? main_ : cold_[static_cast<std::size_t>(tier) - 1];
}

Result<LayerStore> BuildStore(const StoreSpec& store, const LayerSpec& layer) {
  return NoThrow([&]() -> Result<LayerStore> {
    LayerStore built;
    if (layer.value_is_key_prefix) KVS_RETURN_IF_ERROR(CheckOneStore(store, layer));
    KVS_ASSIGN_OR_RETURN(built.key, MakeChain(store.key, layer.key_dim, Side::kKey));
    if (layer.value_is_key_prefix) return built;
    KVS_ASSIGN_OR_RETURN(built.value, MakeChain(store.value, layer.value_dim, Side::kValue));
    return built;
  });
}

}  // namespace kvsieve
