#include "lib/spec_parser.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/recipes.h"
#include "lib/spec_call_parser.h"
#include "lib/spec_cursor.h"
#include "lib/spec_layer_ranges.h"
#include "lib/spec_names.h"

namespace kvsieve {
namespace {

constexpr std::size_t kMaxTiers = 16;

constexpr std::string_view kRecipeHasStores =
    "best(...) brings its own stores: leave others out, or write waterfill(budget=...) and "
    "tiers=[...] with yours";

constexpr std::string_view kStoreKeys[] = {"k", "v", "kv"};

bool IsStoreKey(std::string_view name) {
  return std::find(std::begin(kStoreKeys), std::end(kStoreKeys), name) != std::end(kStoreKeys);
}

class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : cursor_(text) {}

  Result<SpecSyntax> Parse();

 private:
  struct Option {
    std::string_view name;
    Status (SpecParser::*parse)(int column);  // called behind the name, which stood at `column`
  };
  static const Option kOptions[];
  static const Option* FindOption(std::string_view name);

  bool StartsWithSection() const;
  Status Evict();
  Status Section();
  Status TakeRecipe(const SpecCall& call);
  Status TakePreset(const StageInfo& preset, int column);
  Status TakeSide(std::string_view side, int column, StoreSpec* store);
  Status TakeOption(std::string_view name, int column);
  Status UnknownItem(std::string_view name, int column) const;

  Status Tail(int column);
  Status ExactSinks(int column);
  Status Layers(int column);
  Status TakeSchedule(int column);
  Status NonFinite(int column);
  Status Demote(int column);
  Status Cold(int column);
  Status Tiers(int column);
  Status Positions(int column);

  Status TakeBracedStore(std::string_view option, StoreSpec* store);
  Status TakeStore(std::string_view option, StoreSpec* store);
  Status CheckTiers() const;
  Status CheckGivenOnce(std::string_view option, int column);
  using Names = std::span<const std::string_view>;
  Result<int> TakeChoice(std::string_view option, int column, Names names);

  SpecCursor cursor_;
  SpecSyntax spec_;
  bool is_recipe_ = false;               // its tiers are those of best(...)
  std::vector<std::string_view> given_;  // options seen so far
  std::vector<LayerRange> all_ranges_;   // of all layers() options
};

const SpecParser::Option SpecParser::kOptions[] = {
    {"tail", &SpecParser::Tail},           {"exact_sinks", &SpecParser::ExactSinks},
    {"layers", &SpecParser::Layers},       {"schedule", &SpecParser::TakeSchedule},
    {"nonfinite", &SpecParser::NonFinite}, {"cold", &SpecParser::Cold},
    {"tiers", &SpecParser::Tiers},         {"positions", &SpecParser::Positions},
    {"demote", &SpecParser::Demote},
};

const SpecParser::Option* SpecParser::FindOption(std::string_view name) {
  const auto found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                  [name](const Option& option) { return option.name == name; });
  return found == std::end(kOptions) ? nullptr : found;
}

Result<SpecSyntax> SpecParser::Parse() {
  if (cursor_.AtEnd()) {
    return SpecError(1, "the spec is empty; write none to keep every row as f16");
  }
  if (StartsWithSection()) {
    KVS_RETURN_IF_ERROR(Section());
  } else if (cursor_.Peek() != '|') {
    KVS_RETURN_IF_ERROR(Evict());
  }
  while (cursor_.Accept("|")) KVS_RETURN_IF_ERROR(Section());
  if (!cursor_.AtEnd()) return cursor_.Unexpected("'|' or the end of the spec");

  KVS_RETURN_IF_ERROR(CheckTiers());
  const SpecCall f16{"f16", 1, {}};
  if (spec_.store.key.empty()) spec_.store.key = {f16};
  if (spec_.store.value.empty()) spec_.store.value = {f16};
  const auto complete = [&](StoreSpec& store) {
    if (store.key.empty()) store.key = spec_.store.key;
    if (store.value.empty()) store.value = spec_.store.value;
  };
  for (ColdSyntax& cold : spec_.cold) complete(cold.store);
  for (LayerOverride& layers : spec_.overrides) complete(layers.store);
  return std::move(spec_);
}

// Tiers are all stores there are.
Status SpecParser::CheckTiers() const {
  if (spec_.tiers.empty()) return Status::Ok();
  if (!spec_.store.key.empty() || !spec_.store.value.empty()) {
    return SpecError(
        spec_.tiers_column,
        is_recipe_ ? kRecipeHasStores : "tiers=[...] holds all stores: leave k=, v= and kv= out");
  }
  if (!spec_.cold.empty()) {
    return SpecError(spec_.cold_column, is_recipe_ ? kRecipeHasStores
                                                   : "cold(...) takes rows by rank, tiers=[...] "
                                                     "plans them: leave one out");
  }
  return Status::Ok();
}

// Whether the evict stage is left out and a section stands in its place.
bool SpecParser::StartsWithSection() const {
  SpecCursor ahead = cursor_;
  const std::string_view name = ahead.TakeName();
  if (name.empty()) return false;
  return ahead.Peek() == '=' || IsStoreKey(name) || FindOption(name) != nullptr ||
         IsStoragePreset(name);
}

Status SpecParser::Evict() {
  KVS_ASSIGN_OR_RETURN(SpecCall call, TakeCall(cursor_, "an evict stage or none"));
  if (call.name == "none") {
    if (call.args.empty()) return Status::Ok();
    return SpecError(call.args.front().key_column, "none takes no arguments");
  }
  if (call.name == kRecipe) return TakeRecipe(call);
  KVS_RETURN_IF_ERROR(CheckEvictPlace(call));
  spec_.evict = std::move(call);
  return Status::Ok();
}

Status SpecParser::TakeRecipe(const SpecCall& call) {
  KVS_ASSIGN_OR_RETURN(const std::string plan, ExpandRecipe(call));
  KVS_ASSIGN_OR_RETURN(SpecSyntax syntax, SpecParser(plan).Parse());
  spec_.evict = std::move(syntax.evict);
  spec_.tiers = std::move(syntax.tiers);
  spec_.tiers_column = call.column;
  is_recipe_ = true;
  for (StoreSpec& tier : spec_.tiers) {
    PointAt(call.column, tier.key);
    PointAt(call.column, tier.value);
  }
  return Status::Ok();
}

Status SpecParser::Section() {
  SpecCursor ahead = cursor_;
  const std::string_view first = ahead.TakeName();
  const StageInfo* preset = FindStage(StoragePresetInfos(), first);
  if (preset != nullptr && ahead.Peek() != '=') {
    const int column = cursor_.column();
    cursor_ = ahead;
    return TakePreset(*preset, column);
  }
  bool stores_only = true;
  do {
    const int column = cursor_.column();
    const std::string_view name = cursor_.TakeName();
    if (!IsStoreKey(name)) {
      stores_only = false;
      KVS_RETURN_IF_ERROR(TakeOption(name, column));
    } else if (stores_only) {
      KVS_RETURN_IF_ERROR(TakeSide(name, column, &spec_.store));
    } else {
      return SpecError(column, StrCat(name,
                                      "= must come before the options of its section, or "
                                      "after another '|'"));
    }
  } while (cursor_.Accept(","));
  return Status::Ok();
}

// A store with a name, behind which the section must end; its options hold where the spec gives
// none.
Status SpecParser::TakePreset(const StageInfo& preset, int column) {
  if (!spec_.store.key.empty() || !spec_.store.value.empty()) {
    return SpecError(column, StrCat(preset.name, " stores k and v, of which one is given already"));
  }
  if (cursor_.Peek() == ',') {
    return SpecError(cursor_.column(),
                     StrCat(preset.name, " is a whole section: put options behind another '|'"));
  }
  KVS_ASSIGN_OR_RETURN(SpecSyntax syntax, SpecParser(preset.formula).Parse());
  if (!spec_.tail) spec_.tail = syntax.tail;
  if (!spec_.exact_sinks) spec_.exact_sinks = syntax.exact_sinks;
  spec_.store = std::move(syntax.store);
  PointAt(column, spec_.store.key);
  PointAt(column, spec_.store.value);
  return Status::Ok();
}

// "= chain", behind k, v or kv.
Status SpecParser::TakeSide(std::string_view side, int column, StoreSpec* store) {
  KVS_RETURN_IF_ERROR(cursor_.Expect("=", StrCat("after ", side)));
  KVS_ASSIGN_OR_RETURN(std::vector<SpecCall> chain, TakeChain(cursor_));
  const bool key = side != "v";
  const bool value = side != "k";
  if (key && !store->key.empty()) return SpecError(column, "the chain of k is given twice");
  if (value && !store->value.empty()) return SpecError(column, "the chain of v is given twice");
  if (key) store->key = chain;
  if (value) store->value = std::move(chain);
  return Status::Ok();
}

Status SpecParser::TakeOption(std::string_view name, int column) {
  if (name.empty()) return cursor_.Unexpected("a store (k=, v=, kv=) or an option");
  const Option* option = FindOption(name);
  if (option == nullptr) return UnknownItem(name, column);
  return (this->*option->parse)(column);
}

Status SpecParser::UnknownItem(std::string_view name, int column) const {
  const bool alone = cursor_.Peek() != '=';
  if (alone) KVS_RETURN_IF_ERROR(CheckSectionPlace(column, name));
  std::vector<std::string_view> known(std::begin(kStoreKeys), std::end(kStoreKeys));
  for (const Option& option : kOptions) known.push_back(option.name);
  const std::vector<std::string_view> presets = StoragePresetNames();
  if (alone) known.insert(known.end(), presets.begin(), presets.end());
  return SpecError(column, StrCat("unknown ", alone ? "section" : "option", " '", name, "'",
                                  Suggest(name, known)));
}

Status SpecParser::Tail(int column) {
  KVS_RETURN_IF_ERROR(CheckGivenOnce("tail", column));
  spec_.tail_column = column;
  return TakeRows(cursor_, "tail", &spec_.tail);
}

Status SpecParser::ExactSinks(int column) {
  KVS_RETURN_IF_ERROR(CheckGivenOnce("exact_sinks", column));
  return TakeRows(cursor_, "exact_sinks", &spec_.exact_sinks);
}

// "(a..b, ...)={store}"
Status SpecParser::Layers(int /*column*/) {
  LayerOverride layers;
  KVS_RETURN_IF_ERROR(cursor_.Expect("(", "after layers"));
  do {
    KVS_ASSIGN_OR_RETURN(const LayerRange range, TakeLayerRange(cursor_, all_ranges_));
    layers.ranges.push_back(range);
  } while (cursor_.Accept(","));
  KVS_RETURN_IF_ERROR(cursor_.Expect(")", "after the layer ranges"));
  KVS_RETURN_IF_ERROR(TakeBracedStore("layers(...)", &layers.store));
  spec_.overrides.push_back(std::move(layers));
  return Status::Ok();
}

// "={store}", behind `option`.
Status SpecParser::TakeBracedStore(std::string_view option, StoreSpec* store) {
  KVS_RETURN_IF_ERROR(cursor_.Expect("=", StrCat("after ", option)));
  KVS_RETURN_IF_ERROR(cursor_.Expect("{", StrCat("before the store of ", option)));
  KVS_RETURN_IF_ERROR(TakeStore(StrCat(option, "={...}"), store));
  return cursor_.Expect("}", StrCat("after the store of ", option));
}

// "k=chain, v=chain" or "kv=chain".
Status SpecParser::TakeStore(std::string_view option, StoreSpec* store) {
  do {
    const int column = cursor_.column();
    const std::string_view side = cursor_.TakeName();
    if (!IsStoreKey(side)) {
      return SpecError(column, StrCat(option, " takes a store: k=, v= or kv="));
    }
    KVS_RETURN_IF_ERROR(TakeSide(side, column, store));
  } while (cursor_.Accept(","));
  return Status::Ok();
}

Status SpecParser::TakeSchedule(int column) {
  constexpr std::string_view kSchedules[] = {"once", "per_chunk", "every"};
  KVS_ASSIGN_OR_RETURN(const int schedule, TakeChoice("schedule", column, kSchedules));
  spec_.schedule.kind = static_cast<Schedule::Kind>(schedule);
  spec_.schedule_column = column;
  if (spec_.schedule.kind != Schedule::Kind::kEvery) return Status::Ok();

  KVS_RETURN_IF_ERROR(cursor_.Expect("(", "after every: every(n) takes the tokens between"));
  const int tokens_column = cursor_.column();
  const Result<std::int64_t> tokens = ParseInt(cursor_.TakeAtom());
  if (!tokens.ok() || *tokens < 1 || *tokens > kMaxRows) {
    return SpecError(tokens_column,
                     StrCat("schedule=every(n): n is a number of tokens in [1, ", kMaxRows, "]"));
  }
  spec_.schedule.tokens = static_cast<int>(*tokens);
  return cursor_.Expect(")", "after the tokens of every(n)");
}

Status SpecParser::NonFinite(int column) {
  constexpr std::string_view kPolicies[] = {"error", "zero"};
  KVS_ASSIGN_OR_RETURN(const int policy, TakeChoice("nonfinite", column, kPolicies));
  spec_.nonfinite = policy == 0 ? NonFinitePolicy::kError : NonFinitePolicy::kZero;
  return Status::Ok();
}

Status SpecParser::Demote(int column) {
  constexpr std::string_view kAnswers[] = {"no", "yes"};
  KVS_ASSIGN_OR_RETURN(const int answer, TakeChoice("demote", column, kAnswers));
  if (answer == 1) spec_.demote_column = column;
  return Status::Ok();
}

// "(rows)={store}"
Status SpecParser::Cold(int column) {
  if (spec_.cold.size() + 1 == kMaxTiers) {
    return SpecError(column, StrCat("more than ", kMaxTiers - 1, " cold(...) options"));
  }
  if (spec_.cold.empty()) spec_.cold_column = column;
  KVS_RETURN_IF_ERROR(cursor_.Expect("(", "after cold: cold(35%) takes the rows between"));
  const int rows_column = cursor_.column();
  Result<ColdRows> rows = ColdRows::Parse(cursor_.TakeAtom());
  if (!rows.ok()) return SpecError(rows_column, StrCat("option cold: ", rows.message()));
  KVS_RETURN_IF_ERROR(cursor_.Expect(")", "after the rows of cold(...)"));
  ColdSyntax cold{*std::move(rows), {}};
  KVS_RETURN_IF_ERROR(TakeBracedStore("cold(...)", &cold.store));
  spec_.cold.push_back(std::move(cold));
  return Status::Ok();
}

// "=[store; store; ...]"
Status SpecParser::Tiers(int column) {
  if (is_recipe_) return SpecError(column, kRecipeHasStores);
  KVS_RETURN_IF_ERROR(CheckGivenOnce("tiers", column));
  spec_.tiers_column = column;
  KVS_RETURN_IF_ERROR(cursor_.Expect("=", "after tiers"));
  KVS_RETURN_IF_ERROR(cursor_.Expect("[", "before the stores of tiers"));
  do {
    const int store_column = cursor_.column();
    if (spec_.tiers.size() == kMaxTiers) {
      return SpecError(store_column, StrCat("more than ", kMaxTiers, " tiers"));
    }
    StoreSpec store;
    KVS_RETURN_IF_ERROR(TakeStore("tiers=[...]", &store));
    if (store.key.empty() || store.value.empty()) {
      return SpecError(store_column, StrCat("a tier stores both sides: this one has no ",
                                            store.key.empty() ? "k=" : "v="));
    }
    spec_.tiers.push_back(std::move(store));
  } while (cursor_.Accept(";"));
  return cursor_.Expect("]", "after the stores of tiers, which ';' parts");
}

Status SpecParser::Positions(int column) {
  KVS_RETURN_IF_ERROR(cursor_.Expect("=", "after positions"));
  return Status::Unsupported(StrCat("column ", column, ": positions=", cursor_.TakeAtom(),
                                    " is not supported, keys keep their original rotation"));
}

Status SpecParser::CheckGivenOnce(std::string_view option, int column) {
  if (std::find(given_.begin(), given_.end(), option) != given_.end()) {
    return SpecError(column, StrCat("option ", option, " is given twice"));
  }
  given_.push_back(option);
  return Status::Ok();
}

// "= word", one of `names`, behind an option at `column` that may be given once; returns its place.
Result<int> SpecParser::TakeChoice(std::string_view option, int column, Names names) {
  KVS_RETURN_IF_ERROR(CheckGivenOnce(option, column));
  KVS_RETURN_IF_ERROR(cursor_.Expect("=", StrCat("after ", option)));
  const int word_column = cursor_.column();
  const std::string_view word = cursor_.TakeAtom();
  if (word.empty()) return cursor_.Unexpected(StrCat("a value for ", option));
  const auto found = std::find(names.begin(), names.end(), word);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  return SpecError(word_column,
                   StrCat("option ", option, ": unknown value '", word, "'", Suggest(word, names)));
}

}  // namespace

Result<SpecSyntax> ParseSpec(std::string_view text) {
  KVS_RETURN_IF_ERROR(CheckSpecBytes(text));
  return SpecParser(text).Parse();
}

}  // namespace kvsieve
