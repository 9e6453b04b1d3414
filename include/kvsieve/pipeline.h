// A pipeline: which rows stay and how they are stored, composed from a spec string.
//
//   auto pipeline = Pipeline::Parse("snapkv(budget=25%) | k=int8, v=int4(group=32) | tail=64");
//
// The grammar is in docs/specs.md. Immutable and shared freely.
#ifndef KVSIEVE_PIPELINE_H_
#define KVSIEVE_PIPELINE_H_

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/codec.h"
#include "kvsieve/evict.h"
#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"

namespace kvsieve {

// How K and V of one row are stored: two chains, still free of a dimension.
struct StoreSpec {
  std::vector<SpecCall> key;  // transforms, then the codec
  std::vector<SpecCall> value;
};

// Layers [first, last]. Negative numbers count from the end: -1 is the last layer.
struct LayerRange {
  int first = 0;
  int last = 0;
};
// A store that applies to all rows of these layers, instead of the main one and of cold ones.
struct LayerOverride {
  std::vector<LayerRange> ranges;
  StoreSpec store;
};

// When rows are dropped. Always after a step's attention: see Cache::Evict.
struct Schedule {
  enum class Kind : std::uint8_t {
    kOnce,      // when the prompt is finished
    kPerChunk,  // also after each chunk of the prompt: never more than kept rows and one chunk
    kEvery,     // also after every `tokens` tokens of decode
  };
  Kind kind = Kind::kOnce;
  int tokens = 0;  // kEvery only

  std::string Canonical() const;  // "once", "per_chunk", "every(64)"
};

enum class NonFinitePolicy : std::uint8_t { kError, kZero };

class Pipeline {
 public:
  // One line per error, with the column: "column 8: unknown evict stage 'snapkw' (did you mean
  // snapkv?)".
  static Result<Pipeline> Parse(std::string_view spec);

  // Everything that matters for bytes or results written out; parses to the same pipeline.
  const std::string& Canonical() const { return canonical_; }
  // The spec as it was typed.
  const std::string& Typed() const { return typed_; }

  // Null for `none`.
  const Evictor* evictor() const { return evictor_.get(); }
  // Which rows that stay go to colder stores; empty without them.
  const TierRule& tier_rule() const { return tier_rule_; }

  // Whether a plan gives rows their tiers (evictor()->loss_estimator()).
  bool plans_tiers() const { return evictor_ != nullptr && evictor_->loss_estimator() != nullptr; }

  // How many of a layer's last queries the evict stage looks at: rows of a layer with a sliding
  // window are not ranked, but planned.
  int ObservedQueries(const LayerSpec& layer) const {
    if (evictor_ == nullptr || (layer.sliding_window > 0 && !plans_tiers())) return 0;
    return evictor_->needs().window_queries;
  }

  const StoreSpec& main_store() const { return main_; }
  // Of tiers 1, 2, ..., by rank (tier_rule) or by plan (tiers=[...]).
  std::span<const StoreSpec> cold_stores() const { return cold_; }
  std::span<const LayerOverride> layer_overrides() const { return overrides_; }

  // Whether the layer ranges fit a model of `layer_count` layers: an error names a range that
  // leaves the model, or two layers(...) options that meet in it.
  Status CheckLayers(int layer_count) const;

  // The store of tier `tier` (0 = main) in layer number `layer_index` of `layer_count`. A range
  // that leaves the model applies to the layers that exist. Precondition: 0 <= tier < tiers().
  const StoreSpec& StoreFor(int layer_index, int layer_count, int tier) const;
  int tiers() const { return 1 + static_cast<int>(cold_.size()); }
  // The tiers of one layer: 1 where a layers(...) option gives all of its rows one store.
  int TiersOf(int layer_index, int layer_count) const {
    return OverrideOf(layer_index, layer_count) == nullptr ? tiers() : 1;
  }

  int exact_sinks() const { return exact_sinks_; }  // first rows of a head kept in source precision
  // Last rows of a head kept in source precision; rows before them that do not fill a group of the
  // store's codecs stay so too.
  int tail() const { return tail_; }
  const Schedule& schedule() const { return schedule_; }
  // Whether rows that rank low when the schedule selects again move to colder stores.
  bool demotes() const { return demotes_; }
  NonFinitePolicy nonfinite() const { return nonfinite_; }

 private:
  friend class PipelineBuilder;
  const StoreSpec* OverrideOf(int layer_index, int layer_count) const;  // null: none

  std::string typed_;
  std::string canonical_;
  std::shared_ptr<const Evictor> evictor_;
  StoreSpec main_;
  std::vector<StoreSpec> cold_;
  TierRule tier_rule_;
  std::vector<LayerOverride> overrides_;
  int exact_sinks_ = 0;
  int tail_ = 0;
  Schedule schedule_;
  bool demotes_ = false;
  NonFinitePolicy nonfinite_ = NonFinitePolicy::kError;
};

// The chains of one layer and tier, built for its dimensions. Errors carry the column; the caller
// names the layer.
struct LayerStore {
  std::shared_ptr<const Chain> key;
  std::shared_ptr<const Chain> value;  // null: V lies in K (LayerSpec::value_is_key_prefix)
  // K, V: whether a tier behind the first has a chain that begins as the first tier's does. In each
  // head they share what the first transform learns, which lies with the first tier.
  std::array<bool, 2> borrows_first = {};
  // Whether rows may come after the prompt.
  bool grows = true;

  // The sides that are stored.
  std::span<const Side> sides() const {
    static constexpr Side kSides[] = {Side::kKey, Side::kValue};
    return {kSides, value != nullptr ? std::size_t{2} : std::size_t{1}};
  }
  // Precondition: `side` is stored.
  const Chain& chain(Side side) const { return side == Side::kKey ? *key : *value; }
  // Rows that are stored together: K and V of a row go at once.
  int group_rows() const {
    int most = 1;
    for (const Side side : sides()) most = std::max(most, chain(side).codec().group_rows());
    return most;
  }
  bool borrows(Side side) const { return borrows_first[static_cast<std::size_t>(side)]; }
  // Whether a tier that has so many rows after the prompt learns from them: one that never holds a
  // row has no statistics.
  bool learns(std::int64_t rows) const { return grows || rows > 0; }
  // Statistics without those that are borrowed.
  int stats_floats(Side side) const {
    return chain(side).stats_floats() - (borrows(side) ? chain(side).first_stats_floats() : 0);
  }
  int stats_floats() const {
    int floats = 0;
    for (const Side side : sides()) floats += stats_floats(side);
    return floats;
  }
};
// Where V lies in K the value chain must be the key chain, as kv= says: there is one store.
Result<LayerStore> BuildStore(const StoreSpec& store, const LayerSpec& layer);

// Stores with a name, which stand for a whole section: `none | k8v4`. `formula` is the section that
// each is short for.
std::span<const StageInfo> StoragePresetInfos();

// What `kvsieve explain` prints: every stage with its formula and options, what it approximates,
// and bytes per row for `key_dim` and `value_dim`.
Result<std::string> Explain(const Pipeline& pipeline, int key_dim, int value_dim);

}  // namespace kvsieve

#endif  // KVSIEVE_PIPELINE_H_
