// Text of a pipeline spec -> syntax tree. Knows the grammar and where names may stand, not what
// the arguments of a stage mean: that is for the stage's factory.
//
//   pipeline := (evict | section) { "|" section }
//   section  := store { "," option } | option { "," option } | preset
//   store    := ("k" | "v" | "kv") "=" chain { "," ("k" | "v") "=" chain }
#ifndef KVSIEVE_LIB_SPEC_PARSER_H_
#define KVSIEVE_LIB_SPEC_PARSER_H_

#include <optional>
#include <string_view>
#include <vector>

#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"

namespace kvsieve {

// "cold(rows)={store}"
struct ColdSyntax {
  ColdRows rows;
  StoreSpec store;
};

// Both sides of every store are filled: f16 where the spec is silent, the main store's side where
// another one is. Calls carry the columns of the text.
struct SpecSyntax {
  std::optional<SpecCall> evict;  // empty for `none`
  StoreSpec store;
  std::vector<ColdSyntax> cold;  // from warm to coldest
  int cold_column = 1;           // of the first
  std::vector<StoreSpec> tiers;  // from finest to coarsest; then `store` is not used
  int tiers_column = 1;
  std::vector<LayerOverride> overrides;
  std::optional<int> exact_sinks;
  std::optional<int> tail;
  int tail_column = 1;
  Schedule schedule;
  int schedule_column = 1;
  int demote_column = 0;  // of demote=yes; 0: rows keep their tier
  NonFinitePolicy nonfinite = NonFinitePolicy::kError;
};

// Errors: "column N: ...", one line; kUnsupported for what only a later version does.
Result<SpecSyntax> ParseSpec(std::string_view text);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SPEC_PARSER_H_
